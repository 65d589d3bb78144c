"""SIGINT, SIGTERM and SIGHUP around a mesh: never between the opening and the handle, never half-way through the
closing.

A handler that raises would otherwise do so between ``open_mesh_device`` and the assignment of what it returned, and
nobody could close that mesh any more.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
UNWOUND = (signal.SIGTERM, signal.SIGHUP)
"""Those that end a process on the spot; SIGHUP comes where the terminal goes away."""


def _in_main_thread() -> bool:
    # Python runs handlers in the main thread alone, and lets no other one set them.
    return threading.current_thread() is threading.main_thread()


@contextmanager
def held_back() -> Iterator[None]:
    """Hold :data:`SIGNALS` back until the block is over, then deliver the first that came to whoever had it."""
    if not _in_main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: set by something that is not Python, which Python cannot put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if came:
            signal.raise_signal(came[0])


class SignalsUnwind:
    """While it is on, SIGTERM and SIGHUP end the process by ``SystemExit``, so that ``finally`` and ``atexit`` run.

    Only where the signal has its default action, which ends the process on the spot: a handler that is there is left
    alone (vLLM's engine process has its own).
    """

    def __init__(self) -> None:
        self._taken: list[signal.Signals] = []

    def start(self) -> None:
        if not _in_main_thread():
            return
        for number in UNWOUND:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._unwind)
                self._taken.append(number)

    def stop(self) -> None:
        """Give the default action back, if it is still ours to give."""
        for number in self._taken:
            if _in_main_thread() and signal.getsignal(number) == self._unwind:
                signal.signal(number, signal.SIG_DFL)
        self._taken = []

    def _unwind(self, number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)
