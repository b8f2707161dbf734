"""The vLLM engine: what is asked of it, how, and with which adapter."""
