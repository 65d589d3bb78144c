"""Readbacks of a contract model: already on the host, or to be finished once its events have passed."""
from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...ports.generator import HostResult
from ...ports.mesh import Mesh


class HostReadback:
    """A step whose values came back with the call."""

    def __init__(self, result: HostResult[torch.Tensor]) -> None:
        self._result = result

    def read(self) -> HostResult[torch.Tensor]:
        return self._result

    def done(self) -> bool:
        return True


class DeferredReadback:
    """A step in flight. Exactly one thread finishes it, the others get what it got (8.20): the result, or
    the exception, which every further ``read`` raises again."""

    def __init__(self, mesh: Mesh, events: Sequence[Any], finish: Callable[[], HostResult[torch.Tensor]]) -> None:
        self._mesh = mesh
        self._events: Sequence[Any] = events
        self._finish: Callable[[], HostResult[torch.Tensor]] | None = finish
        self._lock = threading.Lock()
        self._result: HostResult[torch.Tensor] | None = None
        self._error: BaseException | None = None

    def read(self) -> HostResult[torch.Tensor]:
        with self._lock:
            if self._finish is not None:
                try:
                    for event in self._events:
                        self._mesh.synchronize(event)
                    self._result = self._finish()
                except BaseException as error:
                    self._error = error
                # Let go of the device's handles.
                self._finish, self._events = None, ()
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise AssertionError("a finished readback has a result or an error")
        return self._result

    def done(self) -> bool:
        # Without the lock: a reader may hold it while it waits, and then the answer is simply no.
        if self._finish is None:
            return True
        return all(self._mesh.event_done(event) for event in self._events)
