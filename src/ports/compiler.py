"""Turning a function of tensors into a compiled one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

Function = TypeVar("Function", bound=Callable[..., object])


class GraphCompiler(Protocol):
    """Compiles kernels with static shapes, one artifact a shape, all through one backend object."""

    def kernel(self, function: Function, *, name: str) -> Function:
        """``function`` compiled (or itself, where the engine runs eager). ``name`` is what the compile counter and the
        warm-up report say."""
        ...


class Uncompiled:
    """The compiler of an eager engine: every function is left as it is."""

    def kernel(self, function: Function, *, name: str) -> Function:
        return function
