"""The mesh's command queue: one thread runs what is submitted, in order; events say how far it is."""
from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import attrs

from ....ports.step import Phase
from .faults import Fault, FaultClock, FaultKind, InjectedFaultError
from .latency import NO_LATENCY, LatencyModel

Result = TypeVar("Result")


class MeshClosedError(RuntimeError):
    """Work was given to, or awaited from, a mesh that has been closed."""


class EmulatedEvent(Generic[Result]):
    """A point in the queue, with what the command before it returned.

    ``synchronize`` waits and raises what the command raised; it may be called from any thread, any number
    of times. ``synchronized`` is True once the host has done so: a read before that is a broken rule.
    """

    def __init__(self) -> None:
        self._passed = threading.Event()
        self._result: Result | None = None
        self._error: BaseException | None = None
        self.synchronized = False

    def synchronize(self) -> None:
        self._passed.wait()
        self.synchronized = True
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        return self._passed.is_set()

    def result(self) -> Result:
        """Wait as ``synchronize`` does and return what the command returned."""
        self.synchronize()
        return self._result  # type: ignore[return-value]

    def pass_with(self, result: Result | None, error: BaseException | None) -> None:
        """For the queue alone: the command is over."""
        self._result, self._error = result, error
        self._passed.set()


@attrs.frozen(eq=False)
class _Command:
    work: Callable[[], Any]
    event: EmulatedEvent[Any]
    phase: Phase
    rows: int
    tokens: int


class CommandQueue:
    """Owns the device thread. ``phase`` EMPTY marks commands that are no model step (no latency, no faults)."""

    def __init__(self, *, latency: LatencyModel = NO_LATENCY, faults: tuple[Fault, ...] = ()) -> None:
        self._latency = latency
        self._faults = FaultClock(faults)
        self._commands: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._gate = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="emulated-mesh", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._closing.is_set()

    def submit(
        self, work: Callable[[], Result], *, phase: Phase = Phase.EMPTY, rows: int = 0, tokens: int = 0
    ) -> EmulatedEvent[Result]:
        """Append ``work``; returns its event at once. Raises :class:`MeshClosedError` after ``close``."""
        event: EmulatedEvent[Result] = EmulatedEvent()
        with self._gate:
            if self.closed:
                raise MeshClosedError("the mesh is closed; open a new one before submitting work")
            self._commands.put(_Command(work, event, phase, rows, tokens))
        return event

    def close(self) -> bool:
        """Stop the thread; commands that have not begun fail. Returns False if it was closed before."""
        with self._gate:
            if self.closed:
                return False
            self._closing.set()
            self._commands.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        return True

    def _run(self) -> None:
        while (command := self._commands.get()) is not None:
            if self.closed:
                error = MeshClosedError("the mesh was closed before this command ran; read all steps, then close")
                command.event.pass_with(None, error)
                continue
            result, failure = None, None
            try:
                result = self._execute(command)
            # Everything goes to whoever waits for the event: this thread must outlive any one command.
            except BaseException as error:
                failure = error
            command.event.pass_with(result, failure)
            # Do not keep the last step's tensors alive while waiting for the next command.
            del command, result, failure

    def _execute(self, command: _Command) -> Any:
        faults = () if command.phase is Phase.EMPTY else self._faults.next(command.phase)
        for fault in faults:
            if fault.kind is FaultKind.HANG:
                self._closing.wait(fault.seconds)
        begin = time.monotonic()
        result = command.work()
        least = self._latency.seconds(command.phase, rows=command.rows, tokens=command.tokens)
        least = max([least, *(fault.seconds for fault in faults if fault.kind is FaultKind.SLOW)])
        left = begin + least - time.monotonic()
        if left > 0:
            self._closing.wait(left)
        for fault in faults:
            if fault.kind is FaultKind.READBACK_ERROR:
                raise InjectedFaultError(f"injected readback error at {command.phase.value} step {fault.step}")
        return result
