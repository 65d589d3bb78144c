"""The emulated mesh: a grid of chips behind one command queue, with submeshes and events."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import structlog

from ....ports.step import Phase
from .command_queue import CommandQueue, EmulatedEvent
from .faults import FAULTS_VARIABLE, Fault, read_faults
from .latency import LATENCY_VARIABLE, NO_LATENCY, LatencyModel, read_latency

Result = TypeVar("Result")
GALAXY_CHIPS = 32

log = structlog.get_logger(__name__)


class MeshOpenError(RuntimeError):
    """The mesh asked for is not there."""


class EmulatedMesh:
    """Implements :class:`stepshape.ports.mesh.Mesh`; ``handle`` is the mesh itself.

    ``latency`` and ``faults`` are the queue's; a submesh shares its parent's queue and is closed with it.
    ``seed`` fixes what the device draws for unseeded rows (None: different every time).
    """

    def __init__(
        self,
        shape: tuple[int, int],
        *,
        latency: LatencyModel = NO_LATENCY,
        faults: tuple[Fault, ...] = (),
        seed: int | None = None,
        parent: EmulatedMesh | None = None,
        device_ids: tuple[int, ...] | None = None,
    ) -> None:
        rows, columns = shape
        self._shape = (rows, columns)
        self.device_ids = device_ids if device_ids is not None else tuple(range(rows * columns))
        self.latency: LatencyModel = latency if parent is None else parent.latency
        self.seed: int | None = seed if parent is None else parent.seed
        self._parent = parent
        self._queue: CommandQueue = CommandQueue(latency=latency, faults=faults) if parent is None else parent._queue
        self._submitted = 0

    @property
    def shape(self) -> tuple[int, int]:
        return self._shape

    @property
    def num_devices(self) -> int:
        return self._shape[0] * self._shape[1]

    @property
    def handle(self) -> EmulatedMesh:
        return self

    @property
    def closed(self) -> bool:
        return self._queue.closed

    def create_submeshes(self, shape: tuple[int, int]) -> list[EmulatedMesh]:
        """Cut the mesh into equal pieces, row-major. Raises :class:`MeshOpenError` if they do not tile it."""
        rows, columns = shape
        if rows < 1 or columns < 1 or self._shape[0] % rows or self._shape[1] % columns:
            raise MeshOpenError(
                f"submeshes of {rows}x{columns} do not tile a {self._shape[0]}x{self._shape[1]} mesh; "
                "use divisors of its rows and columns"
            )
        pieces = []
        for top in range(0, self._shape[0], rows):
            for left in range(0, self._shape[1], columns):
                ids = tuple(
                    self.device_ids[(top + row) * self._shape[1] + left + column]
                    for row in range(rows)
                    for column in range(columns)
                )
                pieces.append(EmulatedMesh(shape, parent=self, device_ids=ids))
        return pieces

    def submit(
        self, work: Callable[[], Result], *, phase: Phase = Phase.EMPTY, rows: int = 0, tokens: int = 0
    ) -> EmulatedEvent[Result]:
        """Queue ``work`` (see :meth:`CommandQueue.submit`)."""
        self._submitted += 1
        return self._queue.submit(work, phase=phase, rows=rows, tokens=tokens)

    def record_event(self) -> EmulatedEvent[None]:
        """An event that passes once all work submitted so far is over."""
        return self._queue.submit(lambda: None)

    def synchronize(self, event: Any) -> None:
        _as_event(event).synchronize()

    def event_done(self, event: Any) -> bool:
        return _as_event(event).done()

    def close(self) -> None:
        """Stop the device thread. Idempotent; on a submesh it does nothing (the parent owns the queue)."""
        if self._parent is None and self._queue.close():
            log.info("mesh_closed", mesh=f"{self._shape[0]}x{self._shape[1]}", commands=self._submitted)


def open_emulated_mesh(
    shape: tuple[int, int],
    *,
    available: int = GALAXY_CHIPS,
    latency: LatencyModel = NO_LATENCY,
    faults: tuple[Fault, ...] = (),
    seed: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> EmulatedMesh:
    """Open a ``(rows, columns)`` mesh out of ``available`` chips.

    ``environment`` may name a latency table and faults (``STEPSHAPE_TT_LATENCY``, ``STEPSHAPE_TT_FAULTS``) in
    place of the arguments. Raises :class:`MeshOpenError`, ``LatencyError`` or ``FaultError``.
    """
    rows, columns = shape
    named = environment or {}
    if named.get(LATENCY_VARIABLE, "").strip():
        latency = read_latency(named[LATENCY_VARIABLE])
    if named.get(FAULTS_VARIABLE, "").strip():
        faults = read_faults(named[FAULTS_VARIABLE])
    if rows < 1 or columns < 1:
        raise MeshOpenError(f"a {rows}x{columns} mesh has no chips; give rows and columns of at least 1")
    if rows * columns > available:
        raise MeshOpenError(
            f"a {rows}x{columns} mesh needs {rows * columns} chips and {available} are there; "
            "choose a smaller MESH_DEVICE"
        )
    mesh = EmulatedMesh((rows, columns), latency=latency, faults=faults, seed=seed)
    log.info("mesh_opened", mesh=f"{rows}x{columns}", chips=rows * columns)
    return mesh


def _as_event(event: Any) -> EmulatedEvent[Any]:
    if not isinstance(event, EmulatedEvent):
        raise TypeError(f"{type(event).__name__} is not an event of the emulated mesh; pass what the model returned")
    return event
