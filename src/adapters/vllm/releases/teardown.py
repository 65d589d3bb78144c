"""vLLM's teardown on a host without an accelerator of torch's.

0.26 to 0.33: ``cleanup_dist_env_and_memory`` empties torch's accelerator cache on every platform but the CPU's own, and
torch raises where it has no accelerator; the user would see that traceback at every clean shutdown. There is no hook.
vLLM's CPU runner replaces the same functions in the same way (``v1/worker/cpu_model_runner.py``).
"""

from __future__ import annotations

from typing import Any

import torch


def _nothing_to_empty(*args: Any, **kwargs: Any) -> None:
    """There is no accelerator, so there is no cache."""


def spare_absent_accelerator() -> None:
    """Make emptying the cache of an accelerator that is not there do nothing. Where there is one, nothing changes."""
    if torch.accelerator.is_available():
        return
    for name in ("empty_cache", "empty_host_cache"):
        if callable(getattr(torch.accelerator, name, None)):
            setattr(torch.accelerator, name, _nothing_to_empty)
