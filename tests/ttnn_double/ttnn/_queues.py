"""Devices, command queues, events and traces, with the order that events guarantee and no other.

A command runs as late as it may: when the host waits for it, or when a command of another queue that waits for its
event does. Queues named eager run as early as they may. What is right under both is right under any timing.
"""

from __future__ import annotations

import enum
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from ._machine import fatal, machine


class DispatchCoreAxis(enum.Enum):
    ROW = 0
    COL = 1


class DispatchCoreConfig:
    def __init__(self, *, axis: DispatchCoreAxis | None = None) -> None:
        machine().require_chips()
        self.axis = axis


class FabricConfig(enum.Enum):
    DISABLED = 0
    FABRIC_1D_NEIGHBOR_EXCHANGE = 1
    FABRIC_1D = 2
    FABRIC_1D_RING = 3
    FABRIC_2D = 4
    FABRIC_2D_TORUS_X = 5
    FABRIC_2D_TORUS_Y = 6
    FABRIC_2D_TORUS_XY = 7
    CUSTOM = 8


class FabricReliabilityMode(enum.Enum):
    STRICT_INIT = 0
    RELAXED_INIT = 1


class FabricTensixConfig(enum.Enum):
    DISABLED = 0
    MUX = 1


class FabricUDMMode(enum.Enum):
    DISABLED = 0
    ENABLED = 1


class FabricManagerMode(enum.Enum):
    ENABLED = 0
    INIT_FABRIC = 1
    TERMINATE_FABRIC = 2
    DEFAULT = 3


class MeshShape:
    def __init__(self, *sides: Any) -> None:
        self._sides: tuple[int, ...] = tuple(sides[0]) if len(sides) == 1 else sides

    def __iter__(self) -> Iterator[int]:
        return iter(self._sides)

    def __getitem__(self, index: int) -> int:
        return self._sides[index]


class MeshEvent:
    """A point in one queue of one device; its number counts that queue's commands."""

    def __init__(self, device: MeshDevice, queue: int, number: int) -> None:
        self.device, self.queue, self.number = device, queue, number


class MeshTraceId:
    def __init__(self, device: MeshDevice) -> None:
        self.device = device


class _Queue:
    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self.submitted = 0
        self.done = 0

    def run_to(self, number: int) -> None:
        while self.done < number:
            # Out of the queue first: what it waits for may come back to this queue.
            command = self.waiting.popleft()
            self.done += 1
            command()


_open: list[MeshDevice] = []


class MeshDevice:
    def __init__(
        self, shape: Sequence[int], ids: Sequence[int], *, queues: int, trace_region: int, parent: MeshDevice | None
    ) -> None:
        self._shape = MeshShape(*shape)
        self._ids = list(ids)
        self._queues = [_Queue() for _ in range(queues)]
        self._children: list[MeshDevice] = []
        self.parent = parent
        self.open = True
        self.trace_region = trace_region
        self.compiled: set[Hashable] = set()
        self.recording: list[tuple[Callable[[], None], tuple[Any, ...]]] | None = None
        self.traces: dict[MeshTraceId, list[tuple[Callable[[], None], tuple[Any, ...]]]] = {}
        self.late: weakref.WeakSet[Any] = weakref.WeakSet()
        """tensors that were allocated after a trace was captured"""

    # -- ttnn's own

    @property
    def shape(self) -> MeshShape:
        return self._shape

    def get_num_devices(self) -> int:
        return len(self._ids)

    def get_device_ids(self) -> list[int]:
        return list(self._ids)

    def get_submeshes(self) -> list[MeshDevice]:
        return [child for child in self._children if child.open]

    def create_submeshes(self, submesh_shape: MeshShape) -> list[MeshDevice]:
        machine().call("create_submeshes", "x".join(map(str, submesh_shape)))
        rows, columns = self._shape
        high, wide = submesh_shape
        if rows % high or columns % wide:
            raise fatal(f"submeshes of {high}x{wide} do not tile a {rows}x{columns} mesh")
        for top in range(0, rows, high):
            for left in range(0, columns, wide):
                ids = [self._ids[(top + r) * columns + left + c] for r in range(high) for c in range(wide)]
                self._children.append(
                    MeshDevice(
                        (high, wide), ids, queues=len(self._queues), trace_region=self.trace_region, parent=self
                    )
                )
        return list(self._children)

    # -- the double's

    def submit(self, cq_id: int | None, command: Callable[[], None]) -> int:
        """Append a command; returns its number in the queue."""
        queue = self.queue(cq_id)
        queue.waiting.append(command)
        queue.submitted += 1
        if (cq_id or 0) in machine().eager:
            queue.run_to(queue.submitted)
        return queue.submitted

    def queue(self, cq_id: int | None) -> _Queue:
        self.require_open()
        number = cq_id or 0
        if not 0 <= number < len(self._queues):
            raise fatal(f"cq_id {number} is out of range: the device was opened with {len(self._queues)}")
        return self._queues[number]

    def require_open(self) -> None:
        if not self.open:
            raise fatal("the device is closed")

    def finish(self, cq_id: int | None = None) -> None:
        for queue in self._queues if cq_id is None else [self.queue(cq_id)]:
            queue.run_to(queue.submitted)

    def allocated(self, tensor: Any) -> None:
        if self.traces:
            self.late.add(tensor)

    def require_no_recording(self, what: str) -> None:
        if self.recording is not None:
            raise fatal(f"{what} is not supported during trace capture")


def GetNumAvailableDevices() -> int:  # noqa: N802  (ttnn's name)
    machine().call("GetNumAvailableDevices")
    machine().require_chips()
    return machine().chips


def get_arch_name() -> str:
    return machine().arch if machine().chips else "invalid"


def open_mesh_device(
    mesh_shape: MeshShape,
    l1_small_size: int = 0,
    trace_region_size: int = 0,
    num_command_queues: int = 1,
    dispatch_core_config: DispatchCoreConfig | None = None,
    *,
    worker_l1_size: int = 0,
) -> MeshDevice:
    rows, columns = mesh_shape
    axis = dispatch_core_config.axis if dispatch_core_config else None
    machine().call(
        "open_mesh_device",
        f"{rows}x{columns} queues={num_command_queues} trace={trace_region_size} l1={worker_l1_size} "
        f"small={l1_small_size} axis={axis.name if axis else None}",
    )
    machine().require_chips()
    if rows * columns > machine().chips:
        raise fatal(f"a {rows}x{columns} mesh is larger than the system mesh of {machine().chips}")
    if any(device.open for device in _open):
        raise fatal("device 0 is already open")
    if num_command_queues not in (1, 2):
        raise fatal(f"{num_command_queues} command queues; there are 1 or 2")
    device = MeshDevice(
        (rows, columns), range(rows * columns), queues=num_command_queues, trace_region=trace_region_size, parent=None
    )
    _open[:] = [device]
    return device


def close_mesh_device(mesh_device: MeshDevice) -> None:
    machine().call("close_mesh_device", "x".join(map(str, mesh_device.shape)))
    if not mesh_device.open:
        raise fatal("the device is closed already")
    if mesh_device.get_submeshes():
        raise fatal("submeshes are still open")
    mesh_device.finish()
    mesh_device.open = False


def set_fabric_config(
    config: FabricConfig,
    reliability_mode: FabricReliabilityMode = FabricReliabilityMode.STRICT_INIT,
    num_planes: int | None = None,
    fabric_tensix_config: FabricTensixConfig = FabricTensixConfig.DISABLED,
    fabric_udm_mode: FabricUDMMode = FabricUDMMode.DISABLED,
    fabric_manager_mode: FabricManagerMode = FabricManagerMode.DEFAULT,
) -> None:
    detail = config.name
    if config is not FabricConfig.DISABLED:
        detail += f" {reliability_mode.name} planes={num_planes} {fabric_tensix_config.name} {fabric_udm_mode.name}"
        detail += f" {fabric_manager_mode.name}"
    machine().call("set_fabric_config", detail)
    if any(device.open for device in _open):
        raise fatal("the fabric cannot change while devices are open")


def ReadDeviceProfiler(device: MeshDevice) -> None:  # noqa: N802  (ttnn's name)
    machine().call("ReadDeviceProfiler")
    device.require_open()


def record_event(mesh_device: MeshDevice, cq_id: int | None = None) -> MeshEvent:
    machine().call("record_event", str(cq_id or 0))
    mesh_device.require_no_recording("an event")
    number = mesh_device.submit(cq_id, lambda: None)
    return MeshEvent(mesh_device, cq_id or 0, number)


def wait_for_event(cq_id: int | None = None, *, mesh_event: MeshEvent) -> None:
    machine().call("wait_for_event", str(cq_id or 0))
    device = mesh_event.device
    device.require_no_recording("an event")
    other = device.queue(mesh_event.queue)
    if not machine().ignores_waits:
        device.submit(cq_id, lambda: other.run_to(mesh_event.number))


def event_synchronize(mesh_event: MeshEvent) -> None:
    machine().call("event_synchronize")
    mesh_event.device.queue(mesh_event.queue).run_to(mesh_event.number)


def synchronize_device(device: MeshDevice, cq_id: int | None = None) -> None:
    machine().call("synchronize_device")
    device.finish(cq_id)


def begin_trace_capture(mesh_device: MeshDevice, *, cq_id: int | None = None) -> MeshTraceId:
    machine().call("begin_trace_capture", str(cq_id or 0))
    if machine().slow_dispatch:
        raise fatal("traces are not supported with slow dispatch")
    mesh_device.queue(cq_id)
    mesh_device.require_no_recording("a second capture")
    mesh_device.recording = []
    return MeshTraceId(mesh_device)


def end_trace_capture(mesh_device: MeshDevice, trace_id: MeshTraceId, *, cq_id: int | None = None) -> None:
    machine().call("end_trace_capture", str(cq_id or 0))
    recorded, mesh_device.recording = mesh_device.recording, None
    if recorded is None:
        raise fatal("no capture is on")
    needed = 1024 * len(recorded)
    if needed > mesh_device.trace_region:
        raise fatal(f"the trace needs {needed} B and the trace region has {mesh_device.trace_region}")
    mesh_device.traces[trace_id] = recorded


def execute_trace(
    mesh_device: MeshDevice, trace_id: MeshTraceId, *, cq_id: int | None = None, blocking: bool = True
) -> None:
    machine().call("execute_trace", str(cq_id or 0))
    mesh_device.require_no_recording("a replay")
    if trace_id not in mesh_device.traces:
        raise fatal("the trace does not belong to this device")

    def replay() -> None:
        # A trace writes wherever memory was free when it was captured.
        for tensor in list(mesh_device.late):
            tensor.clobber()
        for command, _kept in mesh_device.traces[trace_id]:
            command()

    number = mesh_device.submit(cq_id, replay)
    if blocking:
        mesh_device.queue(cq_id).run_to(number)


def release_trace(mesh_device: MeshDevice, trace_id: MeshTraceId) -> None:
    machine().call("release_trace")
    del mesh_device.traces[trace_id]


def forget_devices() -> None:
    """For a new machine: no device of the old one is open."""
    _open.clear()
