"""Entry points and composition roots: the only place that knows every ring."""
