"""The vLLM plugin for Tenstorrent meshes."""
