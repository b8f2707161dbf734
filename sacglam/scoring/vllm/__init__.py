"""Scoring with vLLM: the engine and the requests it is sent."""
