"""What the demo serves on: how a device is selected, how the model is launched on it, what its report says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from rich.table import Table

from .bucket_table import bucket_table
from .step_table import step_table
from .vllm_server import GALAXY_ENVIRONMENT, GALAXY_FLAGS


@attrs.frozen(kw_only=True)
class DemoSystem:
    environment: Mapping[str, str]
    flags: Sequence[str]
    """of ``vllm serve``"""
    mark: str
    """begins the lines of the server's log that the demo shows"""
    table: Callable[[Mapping[str, Any]], Table]
    """of the report that the worker leaves"""
    stem: str
    """of the files in the folder of runs"""


MESH = DemoSystem(
    environment=GALAXY_ENVIRONMENT, flags=GALAXY_FLAGS, mark="Tenstorrent (", table=step_table, stem="demo"
)
# A chat of the demo has a prompt of about forty tokens: bodies of 64 rows hold one, and twelve decodes have their own.
SPYRE = DemoSystem(
    environment={"STEPSHAPE_SPYRE_DEVICE": "emulated"},
    flags=("--max-model-len", "512", "--max-num-seqs", "12", "--max-num-batched-tokens", "64"),
    mark="Spyre (",
    table=bucket_table,
    stem="demo-spyre",
)
SYSTEMS: Mapping[str, DemoSystem] = {"mesh": MESH, "spyre": SPYRE}
