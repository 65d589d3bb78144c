"""The end of a server process that has loaded triton for nothing.

0.26 to 0.33: xgrammar brings triton along, and torch and vLLM import it to find that no driver is active. When the
interpreter is gone, libtriton's binding library (triton 3.9) prints a page of "nanobind: leaked ..." to standard error
and offers no way to turn it off. triton's own worker processes close standard error as their last act
(``triton/_compile_warmup_pool.py``); so does this.
"""

from __future__ import annotations

import atexit
import os
import sys


def quiet_exit() -> None:
    """Close standard error when this process has run everything of its own, if libtriton is loaded by then.

    For a command line's process only: what a program registered with ``atexit`` before this call runs after it,
    unheard.
    """
    atexit.register(_close_standard_error)


def _close_standard_error() -> None:
    if "triton._C.libtriton" not in sys.modules:
        return
    sys.stderr.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
