"""What the platform reads from this host."""

from __future__ import annotations

import os

from ...adapters.emulator.spyre.switches import SwitchError, read_switches
from ...adapters.vllm.spyre.config import Host
from ...domain.selection import Device
from .entrypoints import selection

WORKER = "stepshape.plugins.spyre.worker.Worker"


def read_host() -> Host:
    """Read this process's environment once."""
    chosen = selection()
    device = chosen.device or Device.REAL
    problems = [] if chosen.problem is None else [chosen.problem]
    if device is Device.EMULATED:
        try:
            read_switches(os.environ)
        except SwitchError as error:
            problems.append(str(error))
    return Host(
        device=device,
        problems=tuple(problems),
        environment=dict(os.environ),
        dtypes=("float16",),
        worker=WORKER,
    )
