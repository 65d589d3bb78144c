"""What of the vLLM side is Tenstorrent's alone: configuration, models, worker."""
