"""Whether the engine was told to end, and when what still runs has to go."""

from __future__ import annotations

import time

from ...domain.closing import drain_seconds


class Closing:
    """``shutdown_timeout``: seconds until vLLM kills the engine, from :meth:`told` on."""

    def __init__(self, shutdown_timeout: float) -> None:
        self._patience = drain_seconds(shutdown_timeout)
        self._told_at: float | None = None

    def told(self) -> None:
        """Called in a signal handler, so it does no more than look at the clock."""
        if self._told_at is None:
            self._told_at = time.monotonic()

    @property
    def time_is_up(self) -> bool:
        return self._told_at is not None and time.monotonic() - self._told_at >= self._patience
