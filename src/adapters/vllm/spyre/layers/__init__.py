"""vLLM's layer classes over a device's layer arithmetic, put in place of vLLM's own by its out-of-tree registry."""
