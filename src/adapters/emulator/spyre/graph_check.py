"""The rules of the card, over one graph: its inputs, then each node of the functionalised form."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ....domain.spyre_limits import Limit, LimitBroken
from .checks import DTYPES, Call, check_int_offset, check_stick_offset, describe, judge, on_card
from .coverage import Verdict, plain_name

MATMUL_TARGETS = frozenset((torch.matmul, torch.bmm, operator.matmul, torch.Tensor.matmul))
MATMUL_METHODS = frozenset(("matmul", "__matmul__", "bmm"))


def check_static(inputs: Sequence[Any]) -> None:
    """Every size and stride must be a number. Raises :class:`LimitBroken`."""
    for value in inputs:
        sizes: list[Any] = [value]
        if isinstance(value, torch.Tensor):
            sizes = [*value.shape, *value.stride()]
        if any(isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)) for size in sizes):
            raise LimitBroken(Limit.DYNAMIC_SHAPE, f"an input of sizes {tuple(map(str, sizes))}")


def check_inputs(inputs: Sequence[Any], where: str) -> None:
    """Hold what enters a graph against the rules of inputs. ``where`` names the graph."""
    for value in inputs:
        if not isinstance(value, torch.Tensor):
            continue
        if not on_card(value):
            if value.dim():
                raise LimitBroken(Limit.MIXED_DEVICES, f"input of {where}: {describe(value)}")
            continue
        if value.dtype is torch.bool:
            raise LimitBroken(Limit.BOOL_TRANSFER, f"input of {where}: {describe(value)}")
        if value.dtype not in DTYPES:
            raise LimitBroken(Limit.DTYPE, f"input of {where}: {describe(value)}")
        check_int_offset(value, f"input of {where}")
        check_stick_offset(value, f"input of {where}")


def check_matmul_dims(graph: GraphModule) -> None:
    """Batch dimensions are folded in the functionalised form; the graph as written still shows them."""
    for node in graph.graph.nodes:
        called = node.op == "call_function" and node.target in MATMUL_TARGETS
        if not called and not (node.op == "call_method" and node.target in MATMUL_METHODS):
            continue
        values = [value for value in map(_example, node.args) if isinstance(value, torch.Tensor) and on_card(value)]
        if any(value.dim() > 4 for value in values):
            raise LimitBroken(Limit.BATCHED_MATMUL_DIMS, f"matmul({', '.join(map(describe, values))})")


def check_nodes(graph: GraphModule) -> list[str]:
    """Hold each operator of a functionalised graph against the rules; return the names of those the host runs."""
    on_host = []
    for node in graph.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            call = _call(node, node.target)
            if judge(call) is Verdict.FALLBACK:
                on_host.append(call.name)
            _check_slice(call, node)
            for value in _tensors(node.meta.get("val")):
                if not on_card(value) and value.dim():
                    raise LimitBroken(Limit.MIXED_DEVICES, f"{call.name} makes {describe(value)} inside a graph")
    return on_host


def _call(node: Node, target: torch._ops.OpOverload) -> Call:
    names = [argument.name for argument in target._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    arguments = [_value(given.get(argument.name, argument.default_value)) for argument in target._schema.arguments]
    return Call(plain_name(target._schema.name), arguments, eager=False)


def _check_slice(call: Call, node: Node) -> None:
    if call.name in ("slice", "select", "split", "split_with_sizes", "narrow", "as_strided"):
        for value in _tensors(node.meta.get("val")):
            check_stick_offset(value, call.name)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _example(argument: Any) -> Any:
    return argument.meta.get("example_value") if isinstance(argument, Node) else argument


def _value(argument: Any) -> Any:
    if isinstance(argument, Node):
        return argument.meta.get("val")
    if isinstance(argument, (list, tuple)):
        return [_value(item) for item in argument]
    return argument
