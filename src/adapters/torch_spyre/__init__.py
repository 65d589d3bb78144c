"""Device code of Spyre: layers, kernels, compilation, the table of limits. No vLLM."""
