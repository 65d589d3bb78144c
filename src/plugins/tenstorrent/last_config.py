"""The last configuration that the platform checked in this process.

vLLM calls ``validate_request`` on the platform class, without a config: this is the one place that remembers it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_last: list[VllmConfig] = []


def keep(vllm_config: VllmConfig) -> None:
    """Remember ``vllm_config`` in place of the one before."""
    _last[:] = [vllm_config]


def get() -> VllmConfig | None:
    """The config that was checked last; None if none was."""
    return _last[0] if _last else None
