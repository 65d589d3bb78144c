# What Stepshape uses of ttnn 0.81.1, and nothing more: mypy holds our code to it, and tests/ttnn holds it against the
# wheel (names, members, parameters, defaults). A parameter that is left out here is one that we do not pass.
import enum
from collections.abc import Iterator, Sequence
from typing import overload

import torch

from . import cluster as cluster

# -- mesh

class MeshShape:
    @overload
    def __init__(self, s0: int, s1: int) -> None: ...
    @overload
    def __init__(self, shape: Sequence[int]) -> None: ...
    def __iter__(self) -> Iterator[int]: ...
    def __getitem__(self, index: int) -> int: ...

class MeshDevice:
    @property
    def shape(self) -> MeshShape: ...
    def get_num_devices(self) -> int: ...
    def get_device_ids(self) -> list[int]: ...
    def get_submeshes(self) -> list[MeshDevice]: ...
    def create_submeshes(self, submesh_shape: MeshShape) -> list[MeshDevice]: ...

class DispatchCoreAxis(enum.Enum):
    ROW = 0
    COL = 1

class DispatchCoreConfig:
    def __init__(self, type: None = None, axis: DispatchCoreAxis | None = None) -> None: ...

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

def set_fabric_config(
    config: FabricConfig,
    reliability_mode: FabricReliabilityMode = FabricReliabilityMode.STRICT_INIT,
    num_planes: int | None = None,
    fabric_tensix_config: FabricTensixConfig = FabricTensixConfig.DISABLED,
    fabric_udm_mode: FabricUDMMode = FabricUDMMode.DISABLED,
    fabric_manager_mode: FabricManagerMode = FabricManagerMode.DEFAULT,
) -> None: ...
def open_mesh_device(
    mesh_shape: MeshShape | None = None,
    l1_small_size: int = 0,
    trace_region_size: int = 0,
    num_command_queues: int = 1,
    dispatch_core_config: DispatchCoreConfig | None = None,
    *,
    worker_l1_size: int = 0,
) -> MeshDevice: ...
def close_mesh_device(mesh_device: MeshDevice) -> None: ...
def ReadDeviceProfiler(device: MeshDevice) -> None: ...
def GetNumAvailableDevices() -> int: ...
def get_arch_name() -> str: ...

# -- queues, events, traces

class MeshEvent: ...
class MeshTraceId: ...

def record_event(mesh_device: MeshDevice, cq_id: int | None = None) -> MeshEvent: ...
def wait_for_event(cq_id: int | None = None, *, mesh_event: MeshEvent) -> None: ...
def event_synchronize(mesh_event: MeshEvent) -> None: ...
def synchronize_device(device: MeshDevice, cq_id: int | None = None) -> None: ...
def begin_trace_capture(mesh_device: MeshDevice, *, cq_id: int | None = None) -> MeshTraceId: ...
def end_trace_capture(mesh_device: MeshDevice, trace_id: MeshTraceId, *, cq_id: int | None = None) -> None: ...
def execute_trace(
    mesh_device: MeshDevice, trace_id: MeshTraceId, *, cq_id: int | None = None, blocking: bool = True
) -> None: ...
def release_trace(mesh_device: MeshDevice, trace_id: MeshTraceId) -> None: ...

# -- tensors

class DataType(enum.Enum):
    BFLOAT16 = 0
    UINT32 = 2

class Layout(enum.Enum):
    ROW_MAJOR = 0
    TILE = 1

bfloat16: DataType
uint32: DataType
ROW_MAJOR_LAYOUT: Layout
TILE_LAYOUT: Layout

class Shape:
    def __iter__(self) -> Iterator[int]: ...
    def __getitem__(self, index: int) -> int: ...

class Tensor:
    @property
    def shape(self) -> Shape: ...
    @property
    def dtype(self) -> DataType: ...
    @property
    def layout(self) -> Layout: ...

class CppTensorToMesh: ...

def replicate_tensor_to_mesh_mapper(mesh_device: MeshDevice) -> CppTensorToMesh: ...
def from_torch(
    tensor: torch.Tensor,
    dtype: DataType | None = None,
    *,
    layout: Layout | None = None,
    device: MeshDevice | None = None,
    mesh_mapper: CppTensorToMesh | None = None,
) -> Tensor: ...
def to_torch(tensor: Tensor) -> torch.Tensor: ...
def from_device(tensor: Tensor, blocking: bool = True, *, queue_id: int | None = None) -> Tensor: ...
def copy_host_to_device_tensor(host_tensor: Tensor, device_tensor: Tensor, cq_id: int | None = None) -> None: ...
def get_device_tensors(tensor: Tensor) -> list[Tensor]: ...

# -- operations

def embedding(
    input_tensor: Tensor, weight: Tensor, *, layout: Layout | None = None, output_tensor: Tensor | None = None
) -> Tensor: ...
def matmul(
    input_tensor_a: Tensor, input_tensor_b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False
) -> Tensor: ...
def add(input_tensor_a: Tensor, input_tensor_b: Tensor, *, output_tensor: Tensor | None = None) -> Tensor: ...
def argmax(
    input_tensor: Tensor, dim: int | None = None, keepdim: bool = False, *, output_tensor: Tensor | None = None
) -> Tensor: ...
def to_layout(tensor: Tensor, layout: Layout) -> Tensor: ...
def reshape(input_tensor: Tensor, shape: Sequence[int]) -> Tensor: ...
