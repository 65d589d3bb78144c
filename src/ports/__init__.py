"""The vocabulary: frozen values and Protocols. Imports the standard library and attrs, nothing else."""
