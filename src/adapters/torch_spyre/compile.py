"""Compiles a model block by block, in place, through one backend object (spyre contract 4.5).

A graph of the whole model costs the compiler a time that grows with depth, for every body shape. Blocks of a stack
share one graph: the first differs (it has no residual yet), all others are the same, so a shape costs two artifacts
however deep the model is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

Backend = Callable[..., Any]
"""What ``torch.compile`` takes as ``backend``: a graph module and example inputs to a callable."""
DYNAMO_LIMIT = 100_000
"""Graphs of one code object. Dynamo's own limit of 256 is met in serving, as a recursion error."""


def raise_dynamo_limits() -> None:
    """After the device is loaded: torch-spyre's start resets them."""
    config: Any = torch._dynamo.config
    config.cache_size_limit = DYNAMO_LIMIT
    config.accumulated_cache_size_limit = DYNAMO_LIMIT


class CountingBackend:
    """One backend object for everything that is compiled, and the number of artifacts it has made, by kind.

    Dynamo keys its cache by the backend object: blocks with a backend each would share nothing.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.artifacts = 0
        self.sealed: int | None = None

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any], **options: Any) -> Any:
        self.artifacts += 1
        return self._backend(graph, inputs, **options)

    def seal(self) -> None:
        """Warm-up is over: what comes from here on is late."""
        self.sealed = self.artifacts

    @property
    def late(self) -> int:
        """Artifacts since the seal."""
        return 0 if self.sealed is None else self.artifacts - self.sealed


class TorchCompiler:
    """:class:`stepshape.ports.compiler.GraphCompiler` over ``torch.compile``."""

    def __init__(self, backend: CountingBackend) -> None:
        self.backend = backend

    def kernel(self, function: Any, *, name: str) -> Any:
        """``function`` compiled with static shapes. ``name`` is for the report only."""
        return torch.compile(function, backend=self.backend, dynamic=False, fullgraph=True)

    def blocks(self, blocks: Iterable[nn.Module]) -> None:
        """Each compiled in place: a wrapper in its stead would rename its parameters."""
        for block in blocks:
            block.compile(backend=self.backend, dynamic=False, fullgraph=True)


def find_blocks(model: nn.Module, is_attention: Callable[[nn.Module], bool]) -> list[nn.Module]:
    """The decoder blocks of ``model``, found by structure: the entries of every ModuleList in which some entry holds an
    attention layer. A list of bare attention layers is not one (contract 8.20). Empty: none was found.
    """
    found: list[nn.Module] = []
    seen: set[int] = set()
    for module in model.modules():
        if not isinstance(module, nn.ModuleList):
            continue
        blocks = [block for block in module if type(block).__name__ != "PPMissingLayer"]
        if not blocks or any(is_attention(block) for block in blocks):
            continue
        if not any(is_attention(inner) for block in blocks for inner in block.modules()):
            continue
        for block in blocks:
            if id(block) not in seen:
                seen.add(id(block))
                found.append(block)
    return found
