"""What the platform reads from this host."""

from __future__ import annotations

import os

from ...adapters.vllm.spyre.config import Host
from ...domain.selection import Device
from .entrypoints import selection

WORKER = "stepshape.plugins.spyre.worker.Worker"


def read_host() -> Host:
    """Read this process's environment once."""
    chosen = selection()
    device = chosen.device or Device.REAL
    return Host(
        device=device,
        problem=chosen.problem,
        environment=dict(os.environ),
        dtypes=("float16",),
        worker=WORKER,
    )
