"""The ``torch.compile`` backend of the emulated card: it checks the functionalised graph, executes the original.

The functionalised graph is what the card's compiler sees; running it as well would double a step (contract 11.7).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from .checks import check_int_offset, check_stick_offset, shape_text
from .device import loaded_shim, tally
from .graph_check import check_inputs, check_matmul_dims, check_nodes, check_static

OWN_NAMESPACES = frozenset(("aten", "prims", "prim", "_c10d_functional"))
"""Operators that a compiler takes into the graph; those of other namespaces are opaque to it."""


class CheckingBackend:
    """A compiler for graphs of the card. One object for all blocks of a model: artifacts are shared through it."""

    def __init__(self, name: str, kernel: str | None = None) -> None:
        self.name = name
        self.kernel = kernel
        """what its artifacts are counted under; None: the file and function a graph comes from"""
        self._kernels: dict[str, CheckingBackend] = {}

    def __call__(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Check ``graph`` and return it as a function. Raises :class:`LimitBroken` for a rule broken.

        ``inputs`` are fake tensors; torch wraps what is raised here, the message keeps the rule's name.
        """
        shim = loaded_shim()
        kernel = self.kernel or origin(graph)
        before = shim.swap_in_graph(True)  # tracing is no call of the card
        try:
            check_static(inputs)
            check_inputs(inputs, kernel)
            check_matmul_dims(graph)
            for functional in functionalised(graph, inputs):
                tally().fallbacks.update(check_nodes(functional))
        finally:
            shim.swap_in_graph(before)
        tally().artifacts[kernel, shape_of(graph, inputs)] += 1
        run_opaque_outside(graph)
        return executable(graph, inputs, kernel)

    def for_kernel(self, kernel: str) -> CheckingBackend:
        """The backend under which ``kernel`` counts by its own name: the same object each time."""
        if kernel not in self._kernels:
            self._kernels[kernel] = CheckingBackend(self.name, kernel)
        return self._kernels[kernel]


_BACKENDS: dict[str, CheckingBackend] = {}


def checking_backend(name: str = "stepshape_spyre") -> CheckingBackend:
    """The backend of that name, registered with torch.compile under it: the same object each time."""
    if name not in _BACKENDS:
        # Here, not above: dynamo costs seconds, and only an engine that compiles needs it.
        from torch._dynamo.backends.registry import register_backend

        _BACKENDS[name] = CheckingBackend(name)
        register_backend(compiler_fn=_BACKENDS[name], name=name)
    return _BACKENDS[name]


def functionalised(graph: GraphModule, inputs: Sequence[Any]) -> list[GraphModule]:
    """The aten graphs that the card's compiler would get, without views' mutations; ``graph`` is left as it is."""
    from torch._dynamo.backends.common import aot_autograd

    seen: list[GraphModule] = []

    def keep(functional: GraphModule, _: Sequence[Any]) -> GraphModule:
        seen.append(functional)
        return functional

    aot_autograd(fw_compiler=keep, inference_compiler=keep, keep_inference_input_mutations=True)(graph, inputs)
    return seen


def origin(graph: GraphModule) -> str:
    """``llama.forward``: file and function of the outermost frame that the first operator was traced in."""
    for node in graph.graph.nodes:
        for line in (node.meta.get("stack_trace") or "").splitlines():
            parts = line.strip().split('"')
            if line.strip().startswith("File ") and " in " in line:
                return f"{Path(parts[1]).stem}.{line.rsplit(' in ', 1)[1].strip()}"
    return "graph"


def shape_of(graph: GraphModule, inputs: Sequence[Any]) -> str:
    """The shapes of a graph's inputs, parameters left out."""
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    shown = []
    for node, value in zip(placeholders, inputs, strict=False):
        if not isinstance(value, torch.Tensor) or "parameters" in str(node.target):
            continue
        shown.append(shape_text(value))
    return ", ".join(shown)


def run_opaque_outside(graph: GraphModule) -> None:
    """Opaque operators are called from the graph but run outside it: eager rules hold for what they do."""
    for node in graph.graph.nodes:
        if node.op != "call_function" or namespace_of(node.target) in OWN_NAMESPACES:
            continue
        node.target = outside(node.target)
    graph.recompile()


def namespace_of(target: Any) -> str:
    """``vllm`` of ``torch.ops.vllm.anything``; functions that are no operators count as torch's own."""
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace
    if isinstance(target, torch._ops.OpOverloadPacket):
        return str(target._qualified_op_name).partition("::")[0]
    return "aten"


def outside(operator: Callable[..., Any]) -> Callable[..., Any]:
    """``operator``, called as from eager code."""
    swap = loaded_shim().swap_in_graph

    def call(*arguments: Any, **named: Any) -> Any:
        before = swap(False)
        try:
            return operator(*arguments, **named)
        finally:
            swap(before)

    return call


def executable(graph: GraphModule, inputs: Sequence[Any], kernel: str) -> Callable[..., Any]:
    """``graph`` as a function whose operators count as one artifact.

    Dynamo guards neither the offset of an int32 input (the card then reads the wrong rows, and nobody is told) nor, on
    the card, that of a float one, which costs an artifact for each offset.
    """
    swap = loaded_shim().swap_in_graph
    checked = [index for index, value in enumerate(inputs) if isinstance(value, torch.Tensor) and value.dim()]
    offsets_seen = {tuple(int(inputs[index].storage_offset()) for index in checked)}
    forward = graph.forward
    shape = shape_of(graph, inputs)

    def run(*arguments: Any) -> Any:
        offsets = tuple([arguments[index].storage_offset() for index in checked])
        if offsets not in offsets_seen:
            for index in checked:
                check_int_offset(arguments[index], f"input of {kernel}")
                check_stick_offset(arguments[index], f"input of {kernel}")
            offsets_seen.add(offsets)
            tally().artifacts[kernel, f"{shape} at offsets {offsets}"] += 1
        before = swap(True)
        try:
            return forward(*arguments)
        finally:
            swap(before)

    return run
