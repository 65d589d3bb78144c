"""Ctrl-C or SIGTERM while ``vllm serve`` starts.

0.26 to 0.33: the server's handler raises KeyboardInterrupt, and ``zmq_socket_ctx``, in which the front end waits for
the engine, swallows it: the front end then waits ten minutes for an engine that was not told either. Ctrl-C only asks
asyncio, which is not looked at while the front end waits. uvicorn's handlers replace all of them once the server is up.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

from vllm.logger import init_logger

log = init_logger(f"vllm.{__name__}")

_LAUNCHER = "_interrupt_init"


def end_when_told_during_start_up() -> None:
    """In a front end that starts, end the process at once and in order: SystemExit, which vLLM lets through, with the
    signal's exit status. Nothing is changed in any other process, or when called again."""
    if threading.current_thread() is not threading.main_thread():
        return
    if getattr(signal.getsignal(signal.SIGTERM), "__name__", None) != _LAUNCHER:
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    # Once: what follows is the engine's end, which a second signal must not cut short.
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    log.info("told to stop (%s) while starting; ending", signal.Signals(number).name)
    raise SystemExit(128 + number)
