"""The end of vLLM's processes: quick enough not to be killed, and quiet.

Quick, 0.26 to 0.33: a spawned engine process ends by way of the interpreter's finalization, which collects garbage
several times over the heap of everything imported: seconds on a busy host, after which the front end says "force
killing" although the mesh is long closed. vLLM freezes the heap first on ROCm alone (``v1/engine/core.py``,
``run_engine_core``).

Quiet: xgrammar brings triton along, and torch and vLLM import it to find that no driver is active. When the
interpreter is gone, libtriton's binding library (triton 3.9) prints a page of "nanobind: leaked ..." to standard
error and offers no way to turn it off. triton's own worker processes close standard error as their last act
(``triton/_compile_warmup_pool.py``); so does this.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys


def quick_exit() -> None:
    """Leave the heap to the operating system when this process ends. Calling it again changes nothing."""
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)


def quiet_exit() -> None:
    """Close standard error when this process has run everything of its own, if libtriton is loaded by then. Calling
    it again changes nothing.

    For processes that are all vLLM's: what a program registered with ``atexit`` before this call runs after it,
    unheard.
    """
    atexit.unregister(_close_standard_error)
    atexit.register(_close_standard_error)


def _close_standard_error() -> None:
    if "triton._C.libtriton" not in sys.modules:
        return
    sys.stderr.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
