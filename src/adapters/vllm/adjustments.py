"""Writes what the rules changed into a ``VllmConfig``, and says so once."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.logger import init_logger

from ...domain.rules import Adjustment

# vLLM's own logger: its lines reach the user of `vllm serve`, under its format and level.
log = init_logger(f"vllm.{__name__}")


def apply_adjustment(vllm_config: VllmConfig, adjustment: Adjustment, *, device: str, quiet: bool) -> None:
    """Set the field; a change is logged, as a warning if it takes away what was asked for, unless ``quiet``."""
    owner: Any = vllm_config
    *path, name = adjustment.field.value.split(".")
    for part in path:
        owner = getattr(owner, part)
    before = getattr(owner, name)
    setattr(owner, name, adjustment.value)
    if quiet or before == adjustment.value:
        return
    say = log.warning if adjustment.asked_for else log.info
    say("%s: %s set from %s to %s: %s", device, name, before, adjustment.value, adjustment.why)
