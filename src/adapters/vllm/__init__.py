"""Everything that touches a vLLM class."""
