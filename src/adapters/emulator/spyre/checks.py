"""The rules of the card, over one operator call: eager calls and the nodes of a graph alike.

A check reads dtypes, devices, sizes, strides and offsets, never values, so a fake tensor is as good as a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch

from ....domain.spyre_limits import LM_HEAD_ALIGN, SPAN_BYTES, SPAN_WAYS, STICK, Limit, LimitBroken
from .coverage import ALLOCATIONS, BOOKKEEPING, COMPILED_ONLY, EAGER, HOST, MATMULS, VIEWS, Verdict

DTYPES = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int64, torch.bool))
COPIES = frozenset(("_copy_from", "copy"))
GATHERS = frozenset(("embedding", "gather", "index", "index_select"))
VOCABULARY_WIDTH = 16384
"""Columns from which a matmul may be an lm head's; it is one if it is also VOCABULARY_RATIO times as wide as deep."""
VOCABULARY_RATIO = 8


@attrs.frozen
class Call:
    """One operator with its arguments in the order of its schema. ``on_card`` says whether a tensor is the card's."""

    name: str
    """torch's, plain: ``add``, ``index_copy``"""
    arguments: Sequence[Any]
    eager: bool
    rounding: bool = True
    """off: the card keeps float32 precision, and only then may a copy to the host widen"""

    def tensors(self) -> list[torch.Tensor]:
        return list(_tensors(self.arguments))

    def shape(self) -> str:
        """The card's tensors, as the key of a compile: ``float16[4, 64], int32[4]``."""
        return ", ".join(shape_text(tensor) for tensor in self.tensors() if on_card(tensor))

    def describe(self) -> str:
        shown = ", ".join(describe(tensor) for tensor in self.tensors())
        return f"{self.name}({shown})"

    def broken(self, limit: Limit) -> LimitBroken:
        return LimitBroken(limit, self.describe())


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def shape_text(tensor: torch.Tensor) -> str:
    """``float16[4, 64]``."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def describe(tensor: torch.Tensor) -> str:
    """``float16[4, 64] on spyre``, with offset where there is one."""
    offset = int(tensor.storage_offset())
    return f"{shape_text(tensor)} on {tensor.device.type}" + (f" at offset {offset}" if offset else "")


def on_card(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "spyre"


def judge(call: Call) -> Verdict:
    """Hold one call against every rule. Raises :class:`LimitBroken`."""
    for check in CHECKS:
        check(call)
    if call.name in VIEWS or call.name in ALLOCATIONS or call.name in BOOKKEEPING:
        return Verdict.FREE
    if call.name == "_copy_from":
        source, target = call.tensors()[:2]
        return Verdict.KERNEL if on_card(source) and on_card(target) else Verdict.FREE
    known = call.name in EAGER or (not call.eager and call.name in COMPILED_ONLY)
    if known:
        return Verdict.KERNEL
    if call.name in HOST:
        return Verdict.FALLBACK
    if "::" in call.name:
        return Verdict.FREE  # not torch's own: an opaque operator, whose inside is judged on its own
    raise call.broken(Limit.COMPILED_ONLY if call.name in COMPILED_ONLY else Limit.UNCOVERED_OPERATOR)


def mixed_devices(call: Call) -> None:
    if call.name in COPIES or call.name in BOOKKEEPING:
        return
    tensors = call.tensors()
    if any(on_card(tensor) for tensor in tensors) and any(not on_card(tensor) and tensor.dim() for tensor in tensors):
        raise call.broken(Limit.MIXED_DEVICES)


def dtypes(call: Call) -> None:
    for tensor in call.tensors():
        if on_card(tensor) and tensor.dtype not in DTYPES and tensor.dtype is not torch.uint8:
            raise call.broken(Limit.DTYPE)


def casts(call: Call) -> None:
    if call.name not in COPIES or not call.eager:
        return
    first, second = call.tensors()[:2]
    source, target = (first, second) if call.name == "_copy_from" else (second, first)
    if not on_card(source) or source.dtype is target.dtype:
        return
    # Without rounding a float16 of the card is more than a float16: reading it as float32 is the point of the mode.
    if not call.rounding and not on_card(target) and target.dtype is torch.float32 and source.dtype.is_floating_point:
        return
    raise call.broken(Limit.EAGER_CAST)


def bool_transfers(call: Call) -> None:
    if call.name != "_copy_from":
        return
    source, target = call.tensors()[:2]
    if on_card(source) != on_card(target) and torch.bool in (source.dtype, target.dtype):
        raise call.broken(Limit.BOOL_TRANSFER)


def input_offsets(call: Call) -> None:
    if not call.eager or call.name in VIEWS or call.name in BOOKKEEPING:
        return
    crosses = call.name == "_copy_from" and len({on_card(tensor) for tensor in call.tensors()[:2]}) == 2
    for tensor in call.tensors():
        if not crosses:
            check_int_offset(tensor, call.name)
            check_stick_offset(tensor, call.name)


def check_int_offset(tensor: torch.Tensor, where: str) -> None:
    """An int32 tensor of the card that a kernel or a graph takes in must start at its storage's start."""
    if tensor.dtype is torch.int32 and on_card(tensor) and tensor.storage_offset():
        raise LimitBroken(Limit.INT_OFFSET, f"{where}: {describe(tensor)}")


def check_stick_offset(tensor: torch.Tensor, where: str) -> None:
    """A float tensor of the card must start on a stick, within its row."""
    if not tensor.dtype.is_floating_point or not on_card(tensor) or not tensor.storage_offset() or not tensor.dim():
        return
    rows = [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride > 1 and size > 1]
    column = tensor.storage_offset() % min(rows) if rows else tensor.storage_offset()
    stick = STICK * 2 // tensor.dtype.itemsize
    if tensor.stride(-1) == 1 and tensor.shape[-1] > 1 and column % stick:
        raise LimitBroken(Limit.STICK_OFFSET, f"{where}: {describe(tensor)}, {column} elements into a row")


def eager_indices(call: Call) -> None:
    if not call.eager or call.name not in ("index", "index_copy", "index_put"):
        return
    if any(tensor.dtype is torch.int32 for tensor in call.tensors()[1:]):
        raise call.broken(Limit.EAGER_INDEX)


def matmuls(call: Call) -> None:
    if call.name not in MATMULS:
        return
    tensors = call.tensors()
    left, right = tensors[-2:] if call.name in ("addmm", "baddbmm") else tensors[:2]
    if torch.float32 in (left.dtype, right.dtype):
        raise call.broken(Limit.FP32_MATMUL)
    inner = left.shape[-1]
    wide = right.shape[0] if call.name == "linear" else right.shape[-1]
    if inner % STICK or (right.dim() > 2 and wide % STICK):
        raise call.broken(Limit.MATMUL_STICKS)
    if wide >= VOCABULARY_WIDTH and wide >= VOCABULARY_RATIO * inner and wide % LM_HEAD_ALIGN:
        raise call.broken(Limit.LM_HEAD_WIDTH)
    if max(left.dim(), right.dim()) > 4:
        raise call.broken(Limit.BATCHED_MATMUL_DIMS)


def gathers(call: Call) -> None:
    if call.name not in GATHERS:
        return
    source, dim, index = _gathered(call)
    if index is None or not on_card(source):
        return
    if source.dim() and call.name != "gather" and index.numel() == source.shape[dim]:
        raise call.broken(Limit.GATHER_WHOLE)
    if source.numel() * source.element_size() > SPAN_WAYS * SPAN_BYTES:
        raise call.broken(Limit.GATHER_SPAN)


def _gathered(call: Call) -> tuple[torch.Tensor, int, torch.Tensor | None]:
    """Source, dimension and index of a gather; no index where several are given at once."""
    source = call.arguments[0]
    if call.name == "embedding":
        return source, 0, call.arguments[1]
    if call.name in ("index_select", "gather"):
        return source, int(call.arguments[1]), call.arguments[2]
    given = [(dim, index) for dim, index in enumerate(call.arguments[1]) if index is not None]
    return (source, *given[0]) if len(given) == 1 else (source, 0, None)


def dim0_slices(call: Call) -> None:
    tensors = call.tensors()
    if not tensors or tensors[0].dim() < 5:
        return
    shape = tuple(tensors[0].shape)
    if call.name == "slice":
        dim, start = [*call.arguments[1:3], 0, None][:2]
        cut = dim == 0 and ((start or 0) != 0 or _slice_end(call, shape[0]) < shape[0])
    elif call.name == "as_strided":
        size = tuple(call.arguments[1])
        cut = len(size) == len(shape) and size[1:] == shape[1:] and size[0] < shape[0]
    else:
        return
    if cut:
        raise call.broken(Limit.DIM0_SLICE)


def _slice_end(call: Call, rows: int) -> int:
    end = call.arguments[3] if len(call.arguments) > 3 else None
    return rows if end is None else min(int(end), rows)


def collectives(call: Call) -> None:
    """Those of a graph; eager ones reach a process group, which calls :func:`check_collective`."""
    if call.name.partition("::")[0] not in ("_c10d_functional", "c10d"):
        return
    for tensor in call.tensors():
        if on_card(tensor) and tensor.dim() and tensor.shape[-1] % STICK:
            raise call.broken(Limit.COLLECTIVE_WIDTH)


CHECKS: tuple[Callable[[Call], None], ...] = (
    mixed_devices,
    dtypes,
    casts,
    bool_transfers,
    input_offsets,
    eager_indices,
    matmuls,
    gathers,
    dim0_slices,
    collectives,
)


def check_collective(operator: str, tensor: torch.Tensor, group_size: int, world_size: int) -> None:
    """Hold a collective of ``group_size`` ranks against the card's rules. Raises :class:`LimitBroken`."""
    detail = f"{operator} of {describe(tensor)} over {group_size} of {world_size} ranks"
    if group_size != world_size:
        raise LimitBroken(Limit.COLLECTIVE_WORLD, detail)
    if tensor.dim() and tensor.shape[-1] % STICK:
        raise LimitBroken(Limit.COLLECTIVE_WIDTH, detail)
