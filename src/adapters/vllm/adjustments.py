"""Writes what the rules changed into a ``VllmConfig``, and says so once; what it would overwrite unasked is refused."""

from __future__ import annotations

from collections.abc import Collection
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


def scheduler_refusal(vllm_config: VllmConfig, ours: Collection[str]) -> str | None:
    """A scheduler that the user named, and that this platform would replace by one of ``ours``."""
    named = vllm_config.scheduler_config.scheduler_cls
    if named is None or named in ours:
        return None
    name = named if isinstance(named, str) else named.__qualname__
    return (
        f"scheduler_cls={name} does not plan steps of one shape, as this device wants them; leave --scheduler-cls out"
    )
