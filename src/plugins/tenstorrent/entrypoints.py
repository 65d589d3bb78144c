"""The functions vLLM's plugin groups point at."""

from __future__ import annotations


def platform_plugin() -> str | None:
    """Return the platform class path, or None where the platform does not apply."""
    return None


def register() -> None:
    """Register models with vLLM."""
