"""A real mesh: opened in ttnn's order, closed whatever happens after (tenstorrent contract 7.1 and 7.2)."""

from __future__ import annotations

import atexit
import enum
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import attrs
import structlog
import ttnn
from ttnn import cluster

from ...domain.fabric import FabricChoice, choose_fabric
from ...domain.tt_options import DispatchCoreAxis, FabricReliability
from .reasons import first_line
from .signals import SignalsUnwind, held_back

log = structlog.get_logger(__name__)

Member = TypeVar("Member", bound=enum.Enum)


class MeshOpenError(RuntimeError):
    """The mesh could not be opened."""


class MeshCloseError(RuntimeError):
    """The mesh is closed as far as it could be, and something of it failed."""


@attrs.frozen(kw_only=True)
class MeshSettings:
    """What a mesh is opened with. Sizes are bytes; 0 is ttnn's own default."""

    shape: tuple[int, int]
    """(rows, columns)"""
    fabric_config: str | None = None
    """the operator's; None: the model's, else the cluster's"""
    fabric_reliability_mode: FabricReliability | None = None
    model_fabric: Mapping[str, str | int] | None = None
    dispatch_core_axis: DispatchCoreAxis | None = None
    """None: ttnn's default for the machine"""
    trace_region_size: int = 0
    worker_l1_size: int = 0
    l1_small_size: int = 0
    num_command_queues: int = 1


class TtnnMesh:
    """Implements :class:`stepshape.ports.mesh.Mesh`. Made by :func:`open_mesh`; one owner closes it."""

    def __init__(self, device: ttnn.MeshDevice, *, fabric: bool, unwinding: SignalsUnwind) -> None:
        """``fabric``: it was set for this mesh and is disabled after it. ``unwinding`` is on, and goes off then."""
        self._device: ttnn.MeshDevice | None = device
        rows, columns = device.shape
        self._shape = (rows, columns)
        self._num_devices = device.get_num_devices()
        self._fabric = fabric
        self._unwinding = unwinding

    @property
    def shape(self) -> tuple[int, int]:
        return self._shape

    @property
    def num_devices(self) -> int:
        return self._num_devices

    @property
    def handle(self) -> ttnn.MeshDevice:
        if self._device is None:
            raise MeshOpenError("the mesh is closed; open a new one")
        return self._device

    @property
    def closed(self) -> bool:
        return self._device is None

    def synchronize(self, event: Any) -> None:
        ttnn.event_synchronize(event)

    def event_done(self, event: Any) -> bool:
        """ttnn has no way to ask an event without waiting for it."""
        return False

    def close(self) -> None:
        """Close submeshes, mesh and fabric. Every step is tried, whatever the one before it did.

        Safe to call twice. SIGINT and SIGTERM are held back meanwhile. Raises :class:`MeshCloseError` for what
        failed.
        """
        failures: list[str] = []
        try:
            with held_back():
                device, self._device = self._device, None
                if device is None:
                    return
                atexit.unregister(self.close)

                def attempt(what: str, step: Callable[[], None]) -> None:
                    try:
                        step()
                    except Exception as error:
                        failures.append(f"{what}: {first_line(error)}")

                attempt("reading the profiler", lambda: ttnn.ReadDeviceProfiler(device))
                attempt("closing the submeshes", lambda: _close_submeshes(device))
                attempt("closing the mesh", lambda: ttnn.close_mesh_device(device))
                if self._fabric:
                    attempt("disabling the fabric", _disable_fabric)
                log.info("mesh_closed", mesh=f"{self._shape[0]}x{self._shape[1]}", failures=len(failures))
        finally:
            self._unwinding.stop()
        if failures:
            raise MeshCloseError(
                f"the mesh did not close cleanly ({'; '.join(failures)}); reset the chips with tt-smi -r before the "
                "next start"
            )


def open_mesh(settings: MeshSettings) -> TtnnMesh:
    """Open a mesh: fabric first, then the mesh; a mesh that fails to open leaves no fabric behind.

    The end of the process closes it, if nobody does before: its ordinary end, an exception nobody caught, SIGINT,
    SIGTERM. Both are held back during the opening, so that there is no mesh that nobody holds. Raises
    :class:`MeshOpenError`, or ``FabricError`` for an argument of the model's that is none.
    """
    rows, columns = settings.shape
    kind = cluster_name()
    fabric = choose_fabric(
        cluster=kind,
        num_devices=rows * columns,
        model=settings.model_fabric,
        config=settings.fabric_config,
        reliability=settings.fabric_reliability_mode,
    )
    unwinding = SignalsUnwind()
    unwinding.start()
    try:
        mesh = _open_held_back(settings, kind, fabric, unwinding)
    except BaseException:
        unwinding.stop()
        raise
    log.info(
        "mesh_opened",
        mesh=f"{rows}x{columns}",
        chips=mesh.num_devices,
        cluster=kind,
        fabric="none" if fabric is None else f"{fabric.config} ({fabric.why})",
    )
    return mesh


def cluster_name() -> str:
    """``ttnn.cluster.ClusterType``'s member of this machine. Raises :class:`MeshOpenError` where there is no chip."""
    try:
        return cluster.get_cluster_type().name
    except RuntimeError as error:
        raise MeshOpenError(
            f"ttnn finds no Tenstorrent machine ({first_line(error)}); check that the driver is loaded and that "
            "/dev/tenstorrent can be read"
        ) from error


def _open_held_back(
    settings: MeshSettings, kind: str, fabric: FabricChoice | None, unwinding: SignalsUnwind
) -> TtnnMesh:
    rows, columns = settings.shape
    with held_back():
        try:
            if fabric is not None:
                _set_fabric(fabric)
            mesh = TtnnMesh(_open(settings), fabric=fabric is not None, unwinding=unwinding)
        except Exception as error:
            if fabric is not None:
                with suppress(Exception):  # what stopped the opening is what the user has to read
                    _disable_fabric()
            if isinstance(error, MeshOpenError):
                raise
            raise MeshOpenError(
                f"the {rows}x{columns} mesh did not open ({first_line(error)}); check MESH_DEVICE against the "
                f"machine (cluster {kind}), and that no other process holds the chips"
            ) from error
        atexit.register(mesh.close)
        return mesh


def _open(settings: MeshSettings) -> ttnn.MeshDevice:
    axis = settings.dispatch_core_axis
    return ttnn.open_mesh_device(
        ttnn.MeshShape(*settings.shape),
        l1_small_size=settings.l1_small_size,
        trace_region_size=settings.trace_region_size,
        num_command_queues=settings.num_command_queues,
        dispatch_core_config=ttnn.DispatchCoreConfig(
            axis=None if axis is None else member(ttnn.DispatchCoreAxis, axis.value.upper(), "dispatch_core_axis")
        ),
        worker_l1_size=settings.worker_l1_size,
    )


def _set_fabric(choice: FabricChoice) -> None:
    rest = choice.rest
    planes = rest.get("num_planes")
    if isinstance(planes, str):
        raise MeshOpenError(f"num_planes of the model's fabric_config is {planes!r}; use a whole number")
    # Every argument, so that what a process set before does not stand; the values are ttnn's defaults.
    ttnn.set_fabric_config(
        member(ttnn.FabricConfig, choice.config, "fabric_config"),
        member(ttnn.FabricReliabilityMode, choice.reliability_mode, "fabric_reliability_mode"),
        num_planes=planes,
        fabric_tensix_config=member(
            ttnn.FabricTensixConfig, rest.get("fabric_tensix_config", "DISABLED"), "fabric_tensix_config"
        ),
        fabric_udm_mode=member(ttnn.FabricUDMMode, rest.get("fabric_udm_mode", "DISABLED"), "fabric_udm_mode"),
        fabric_manager_mode=member(
            ttnn.FabricManagerMode, rest.get("fabric_manager_mode", "DEFAULT"), "fabric_manager_mode"
        ),
    )


def member(kind: type[Member], name: str | int, option: str) -> Member:
    """The member of ttnn's enum ``kind`` of that name. Raises :class:`MeshOpenError` with those there are."""
    for candidate in kind:
        if candidate.name == name:
            return candidate
    raise MeshOpenError(
        f"{option} is {name!r}, which ttnn's {kind.__name__} does not have; use one of "
        f"{', '.join(candidate.name for candidate in kind)}"
    )


def _close_submeshes(device: ttnn.MeshDevice) -> None:
    for submesh in device.get_submeshes():
        ttnn.close_mesh_device(submesh)


def _disable_fabric() -> None:
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)
