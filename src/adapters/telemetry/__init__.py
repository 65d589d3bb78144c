"""Where the step reports go: logs, metrics, traces."""
