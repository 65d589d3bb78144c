"""When vLLM's engine process is asked to end.

0.33: the engine process takes SIGTERM and SIGINT, lets its requests run on (where ``shutdown_timeout`` is not 0) and
ends when none is left; after ``shutdown_timeout`` seconds the front end kills it, and the device stays as it is. The
engine tells neither scheduler nor worker, and there is no hook; so its handler is called through one of ours.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_ENGINE = "vllm.v1.engine.core"


def when_engine_is_told_to_end(call: Callable[[], None]) -> bool:
    """Have ``call`` run, inside the signal handler, before the engine's own. It must do next to nothing.

    False, and nothing is changed, where this is no engine process of vLLM's: an engine inside the user's own process
    is closed by the user.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    numbers = (signal.SIGTERM, signal.SIGINT)
    handlers = [signal.getsignal(number) for number in numbers]
    if any(getattr(handler, "__module__", None) != _ENGINE for handler in handlers):
        return False
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, _chain(call, handler))
    return True


def _chain(call: Callable[[], None], then: Any) -> Callable[[int, FrameType | None], None]:
    def handle(number: int, frame: FrameType | None) -> None:
        call()
        then(number, frame)

    return handle
