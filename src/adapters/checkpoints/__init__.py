"""Checkpoints in other formats, turned into Hugging Face checkpoint folders."""
