"""A double of ttnn 0.81.1, for machines without a card: the part of it that Stepshape uses, refusing what it refuses.

On the path of the tests that want it, and of no other. ``tests/ttnn`` holds the names and parameters of the real wheel
against the stub that both the double and our code are typed with.
"""

from . import cluster
from ._machine import Machine, fatal, machine, plug_in
from ._queues import (
    DispatchCoreAxis,
    DispatchCoreConfig,
    FabricConfig,
    FabricManagerMode,
    FabricReliabilityMode,
    FabricTensixConfig,
    FabricUDMMode,
    GetNumAvailableDevices,
    MeshDevice,
    MeshEvent,
    MeshShape,
    MeshTraceId,
    ReadDeviceProfiler,
    begin_trace_capture,
    close_mesh_device,
    end_trace_capture,
    event_synchronize,
    execute_trace,
    get_arch_name,
    open_mesh_device,
    record_event,
    release_trace,
    set_fabric_config,
    synchronize_device,
    wait_for_event,
)
from ._tensors import (
    ROW_MAJOR_LAYOUT,
    TILE_LAYOUT,
    CppTensorToMesh,
    DataType,
    Layout,
    Shape,
    Tensor,
    add,
    argmax,
    bfloat16,
    copy_host_to_device_tensor,
    embedding,
    from_device,
    from_torch,
    get_device_tensors,
    matmul,
    replicate_tensor_to_mesh_mapper,
    reshape,
    to_layout,
    to_torch,
    uint32,
)

__all__ = [
    "Machine", "fatal", "machine", "plug_in", "cluster",
    "DispatchCoreAxis", "DispatchCoreConfig", "FabricConfig", "FabricManagerMode", "FabricReliabilityMode",
    "FabricTensixConfig", "FabricUDMMode", "GetNumAvailableDevices", "MeshDevice", "MeshEvent", "MeshShape",
    "MeshTraceId", "ReadDeviceProfiler", "begin_trace_capture", "close_mesh_device", "end_trace_capture",
    "event_synchronize", "execute_trace", "get_arch_name", "open_mesh_device", "record_event", "release_trace",
    "set_fabric_config", "synchronize_device", "wait_for_event",
    "ROW_MAJOR_LAYOUT", "TILE_LAYOUT", "CppTensorToMesh", "DataType", "Layout", "Shape", "Tensor", "add", "argmax",
    "bfloat16", "copy_host_to_device_tensor", "embedding", "from_device", "from_torch", "get_device_tensors", "matmul",
    "replicate_tensor_to_mesh_mapper", "reshape", "to_layout", "to_torch", "uint32",
]  # fmt: skip
