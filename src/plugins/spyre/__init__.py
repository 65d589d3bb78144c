"""The vLLM plugin for IBM Spyre."""
