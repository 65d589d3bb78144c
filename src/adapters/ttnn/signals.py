"""SIGINT and SIGTERM around a mesh: never between the opening and the handle, never half-way through the closing.

A handler that raises would otherwise do so between ``open_mesh_device`` and the assignment of what it returned, and
nobody could close that mesh any more.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _in_main_thread() -> bool:
    # Python runs handlers in the main thread alone, and lets no other one set them.
    return threading.current_thread() is threading.main_thread()


@contextmanager
def held_back() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back until the block is over, then deliver the first that came to whoever had it."""
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


class SigtermUnwinds:
    """While it is on, SIGTERM ends the process by ``SystemExit``, so that ``finally`` and ``atexit`` run.

    Only where SIGTERM has its default action, which ends the process on the spot: a handler that is there is left
    alone (vLLM's engine process has its own).
    """

    def __init__(self) -> None:
        self._on = False

    def start(self) -> None:
        if _in_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._unwind)
            self._on = True

    def stop(self) -> None:
        """Give the default action back, if it is still ours to give."""
        if self._on and _in_main_thread() and signal.getsignal(signal.SIGTERM) == self._unwind:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._on = False

    def _unwind(self, number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)
