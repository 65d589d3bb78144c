"""Token-major attention on torch-spyre: step tables, kernels, and the forward that joins them."""
