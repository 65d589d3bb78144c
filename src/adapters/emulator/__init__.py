"""Devices emulated on a CPU, strict about the contracts of the real ones."""
