"""Tensors and the operations that the reference model is made of, on numpy, as strict as the kernels they stand for.

bfloat16 values are float32 arrays rounded to it. Every chip of a mesh has the same copy.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ._machine import fatal, machine
from ._queues import MeshDevice

if TYPE_CHECKING:
    import torch


class DataType(enum.Enum):
    BFLOAT16 = 0
    UINT32 = 2


class Layout(enum.Enum):
    ROW_MAJOR = 0
    TILE = 1


bfloat16, uint32 = DataType.BFLOAT16, DataType.UINT32
ROW_MAJOR_LAYOUT, TILE_LAYOUT = Layout.ROW_MAJOR, Layout.TILE


class Shape:
    def __init__(self, sides: Sequence[int]) -> None:
        self._sides = tuple(sides)

    def __iter__(self) -> Iterator[int]:
        return iter(self._sides)

    def __getitem__(self, index: int) -> int:
        return self._sides[index]


class Tensor:
    """``device`` None: on the host, with ``copies`` of it; ``values`` None: its reading has not happened yet."""

    def __init__(
        self,
        values: Any,
        shape: Sequence[int],
        dtype: DataType,
        layout: Layout,
        *,
        device: MeshDevice | None,
        copies: int,
    ) -> None:
        self.values = values
        self._shape = tuple(shape)
        self._dtype, self._layout = dtype, layout
        self.device, self.copies = device, copies
        if device is not None:
            device.allocated(self)

    @property
    def shape(self) -> Shape:
        return Shape(self._shape)

    @property
    def dtype(self) -> DataType:
        return self._dtype

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def kind(self) -> tuple[tuple[int, ...], DataType, Layout]:
        return self._shape, self._dtype, self._layout

    def clobber(self) -> None:
        """Something else was written where this tensor lies."""
        anything: Any = np.int64(2**31 - 1) if self._dtype is uint32 else np.float32(np.nan)
        self.values = np.full(self._shape, anything)


class CppTensorToMesh:
    def __init__(self, copies: int) -> None:
        self.copies = copies


def replicate_tensor_to_mesh_mapper(mesh_device: MeshDevice) -> CppTensorToMesh:
    return CppTensorToMesh(mesh_device.get_num_devices())


def _rounded(values: Any) -> Any:
    """To bfloat16, nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def from_torch(
    tensor: torch.Tensor,
    dtype: DataType | None = None,
    *,
    layout: Layout | None = None,
    device: MeshDevice | None = None,
    mesh_mapper: CppTensorToMesh | None = None,
) -> Tensor:
    machine().call("from_torch")
    import torch

    if dtype is uint32 and tensor.dtype is torch.uint32:
        values = tensor.numpy().astype(np.int64)
    elif dtype is bfloat16 and tensor.dtype is torch.bfloat16:
        values = tensor.float().numpy()
    else:
        raise fatal(f"the double converts no {tensor.dtype} to {dtype}")
    copies = 1 if mesh_mapper is None else mesh_mapper.copies
    if device is not None:
        device.require_open()
        device.require_no_recording("a write")
        if copies != device.get_num_devices():
            raise fatal(f"{copies} copies for {device.get_num_devices()} chips; a mesh_mapper says how they are spread")
    return Tensor(values, tensor.shape, dtype, layout or Layout.ROW_MAJOR, device=device, copies=copies)


def to_torch(tensor: Tensor) -> torch.Tensor:
    import torch

    machine().call("to_torch")
    if tensor.device is not None:
        tensor = from_device(tensor)
    if tensor.copies != 1:
        raise fatal(f"the tensor has {tensor.copies} shards and no mesh_composer says how they go together")
    if tensor.values is None:
        raise fatal("the tensor was read before the event of its reading: the memory holds anything")
    if tensor.dtype is bfloat16:
        return torch.from_numpy(tensor.values.copy()).to(torch.bfloat16)
    return torch.from_numpy(tensor.values.astype(np.uint32))


def from_device(tensor: Tensor, blocking: bool = True, *, queue_id: int | None = None) -> Tensor:
    machine().call("from_device", str(queue_id or 0))
    device = _on_device(tensor)
    device.require_no_recording("a read")
    host = Tensor(None, tensor._shape, tensor.dtype, tensor.layout, device=None, copies=device.get_num_devices())

    def read() -> None:
        host.values = tensor.values.copy()

    number = device.submit(queue_id, read)
    if blocking:
        device.queue(queue_id).run_to(number)
    return host


def copy_host_to_device_tensor(host_tensor: Tensor, device_tensor: Tensor, cq_id: int | None = None) -> None:
    machine().call("copy_host_to_device_tensor", str(cq_id or 0))
    device = _on_device(device_tensor)
    device.require_no_recording("a write")
    if host_tensor.device is not None:
        raise fatal("the source is on a device")
    if host_tensor.kind != device_tensor.kind or host_tensor.copies != device_tensor.copies:
        raise fatal(f"{host_tensor.kind} x {host_tensor.copies} over {device_tensor.kind} x {device_tensor.copies}")
    values = host_tensor.values.copy()

    def write() -> None:
        device_tensor.values = values

    device.submit(cq_id, write)


def get_device_tensors(tensor: Tensor) -> list[Tensor]:
    if tensor.device is not None:
        raise fatal("the double takes host tensors apart only")
    return [_Shard(tensor) for _ in range(tensor.copies)]


class _Shard(Tensor):
    """One chip's copy of a host tensor, whose values may still be on their way."""

    def __init__(self, whole: Tensor) -> None:
        super().__init__(None, tuple(whole.shape), whole.dtype, whole.layout, device=None, copies=1)
        self.values = whole.values


def _on_device(*tensors: Tensor) -> MeshDevice:
    device = tensors[0].device
    if device is None or any(tensor.device is not device for tensor in tensors):
        raise fatal("operands must be on one device")
    device.require_open()
    return device


def _launch(
    name: str,
    operands: Sequence[Tensor],
    settings: tuple[Any, ...],
    shape: Sequence[int],
    dtype: DataType,
    layout: Layout,
    compute: Callable[..., Any],
    output: Tensor | None = None,
) -> Tensor:
    """Submit one kernel, or record it."""
    machine().call(name)
    device = _on_device(*operands)
    if output is None:
        output = Tensor(
            None, shape, dtype, layout, device=device, copies=device.get_num_devices()
        )
    elif output.kind != (tuple(shape), dtype, layout) or output.device is not device:
        raise fatal(f"{name}: output_tensor is {output.kind}, the result {(tuple(shape), dtype, layout)}")
    program = (name, tuple(tensor.kind for tensor in operands), output.kind, settings)
    if program not in device.compiled:
        if device.recording is not None:
            raise fatal(f"{name}: a program is compiled during trace capture")
        if device.traces:
            raise fatal(f"{name}: a program is compiled after a trace was captured")
        device.compiled.add(program)
    result: Tensor = output

    def kernel() -> None:
        result.values = compute(*(tensor.values for tensor in operands))

    if device.recording is not None:
        device.recording.append((kernel, (*operands, result)))
    else:
        device.submit(0, kernel)
    return result


def embedding(
    input_tensor: Tensor, weight: Tensor, *, layout: Layout | None = None, output_tensor: Tensor | None = None
) -> Tensor:
    if input_tensor.dtype is not uint32 or input_tensor.layout is not Layout.ROW_MAJOR:
        raise fatal("embedding: indices are uint32 in row-major order")
    if weight.dtype is not bfloat16 or weight.layout is not Layout.ROW_MAJOR or len(tuple(weight.shape)) != 2:
        raise fatal("embedding: weights are bfloat16 in row-major order, in two dimensions")

    def look_up(indices: Any, table: Any) -> Any:
        if indices.max(initial=0) >= len(table):
            raise fatal(f"embedding: index {indices.max()} of {len(table)} rows")
        return table[indices]

    shape = (*input_tensor.shape, weight.shape[1])
    return _launch(
        "embedding", (input_tensor, weight), (layout,), shape, bfloat16, layout or Layout.ROW_MAJOR, look_up,
        output_tensor,
    )  # fmt: skip


def matmul(
    input_tensor_a: Tensor, input_tensor_b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False
) -> Tensor:
    a, b = tuple(input_tensor_a.shape), tuple(input_tensor_b.shape)
    if any(t.layout is not Layout.TILE or t.dtype is not bfloat16 for t in (input_tensor_a, input_tensor_b)):
        raise fatal("matmul: operands are bfloat16 in tiles")
    a = (*a[:-2], a[-1], a[-2]) if transpose_a else a
    b = (*b[:-2], b[-1], b[-2]) if transpose_b else b
    alone = all(side == 1 for side in b[:-2])
    if a[-1] != b[-2] or not (alone or a[:-2] == b[:-2]):
        raise fatal(f"matmul: {a} by {b}")

    def multiply(left: Any, right: Any) -> Any:
        left = left.swapaxes(-1, -2) if transpose_a else left
        right = right.swapaxes(-1, -2) if transpose_b else right
        return _rounded(left @ right)

    settings = (transpose_a, transpose_b)
    return _launch(
        "matmul", (input_tensor_a, input_tensor_b), settings, (*a[:-1], b[-1]), bfloat16, Layout.TILE, multiply
    )


def add(input_tensor_a: Tensor, input_tensor_b: Tensor, *, output_tensor: Tensor | None = None) -> Tensor:
    if input_tensor_a.kind != input_tensor_b.kind or input_tensor_a.layout is not Layout.TILE:
        raise fatal(f"add: {input_tensor_a.kind} and {input_tensor_b.kind}; the double adds equal tiles")
    return _launch(
        "add", (input_tensor_a, input_tensor_b), (), tuple(input_tensor_a.shape), input_tensor_a.dtype, Layout.TILE,
        lambda a, b: _rounded(a + b), output_tensor,
    )  # fmt: skip


def argmax(
    input_tensor: Tensor, dim: int | None = None, keepdim: bool = False, *, output_tensor: Tensor | None = None
) -> Tensor:
    shape = tuple(input_tensor.shape)
    if dim != len(shape) - 1 or keepdim or input_tensor.layout is not Layout.ROW_MAJOR:
        raise fatal("argmax: the double reduces the last dimension of a row-major tensor")

    def best(values: Any) -> Any:
        if np.isnan(values).any():
            raise fatal("argmax: NaN")
        index = values.argmax(-1)
        if ((values == values.max(-1, keepdims=True)).sum(-1) > 1).any():
            raise fatal("argmax: two largest values; which one a kernel takes is not said")
        return index

    return _launch(
        "argmax", (input_tensor,), (dim,), shape[:-1], uint32, Layout.ROW_MAJOR, best, output_tensor
    )


def to_layout(tensor: Tensor, layout: Layout) -> Tensor:
    if tensor.layout is layout:
        return tensor
    shape = tuple(tensor.shape)
    return _launch("to_layout", (tensor,), (layout,), shape, tensor.dtype, layout, lambda values: values.copy())


def reshape(input_tensor: Tensor, shape: Sequence[int]) -> Tensor:
    shape = tuple(shape)
    if np.prod(shape) != np.prod(tuple(input_tensor.shape)):
        raise fatal(f"reshape: {tuple(input_tensor.shape)} to {shape}")
    return _launch(
        "reshape", (input_tensor,), (shape,), shape, input_tensor.dtype, input_tensor.layout,
        lambda values: values.reshape(shape).copy(),
    )  # fmt: skip
