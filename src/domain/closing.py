"""How long requests may run on after the engine was told to end.

The engine is killed when the time is over, with its device open; so a part of it belongs to the closing.
"""

from __future__ import annotations

CLOSING_SECONDS = 10.0
"""What closing a mesh and ending its process may take on a busy host."""


def drain_seconds(shutdown_timeout: float) -> float:
    """Seconds of ``shutdown_timeout`` in which requests may still finish by themselves; at least half of it is left
    for the closing, or :data:`CLOSING_SECONDS`."""
    return max(shutdown_timeout - CLOSING_SECONDS, shutdown_timeout / 2)
