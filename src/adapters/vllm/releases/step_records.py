"""What the scheduler's own records hold in one release and not in another.

* Up to 0.31 ``SchedulerOutput`` wants ``num_common_prefix_blocks`` (for cascade attention, which this platform has
  not); from 0.32 it has a default.
* 0.33 counts the steps in which something ran (``num_executed_steps``), for its own spacing of prefills.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput

_WANTED = tuple(
    f.name
    for f in dataclasses.fields(SchedulerOutput)
    if f.name == "num_common_prefix_blocks" and f.default_factory is dataclasses.MISSING
)


def fields_without_default() -> dict[str, Any]:
    """Arguments that this release's ``SchedulerOutput`` cannot be made without and that say nothing here."""
    return {name: [] for name in _WANTED}


def counts_executed_steps(scheduler: Any) -> bool:
    """Whether this release's scheduler keeps that count, so that a pass beside its own must keep it too."""
    return "num_executed_steps" in vars(scheduler)
