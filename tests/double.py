"""Puts the double of ttnn on the path, and pretends to be a machine."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "ttnn_double"


def plug_in(**fields: Any) -> Any:
    """Be the machine of these fields from now on (``tests/ttnn_double/ttnn/_machine.py``); return it."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    module: Any = importlib.import_module("ttnn._machine")
    queues: Any = importlib.import_module("ttnn._queues")
    queues.forget_devices()
    return module.plug_in(module.Machine(**fields))


def environment(**fields: Any) -> dict[str, str]:
    """The environment of a child process that finds the double in place of ttnn, as the machine of these fields."""
    source = str(FOLDER.parents[1] / "typings")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(FOLDER), source]),
        "TTNN_DOUBLE": json.dumps(fields),
        "OMP_NUM_THREADS": "1",
    }
