"""Scoring with vLLM: the engine, the requests it is sent and the adapters it loads."""
