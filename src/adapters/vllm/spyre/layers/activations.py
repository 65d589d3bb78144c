"""GELU with a gate, where vLLM's form does not lower in eager mode."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from vllm.model_executor.layers.activation import GeluAndMul

from .....ports.layers import LayerMath


def activation_classes(math: LayerMath[Tensor]) -> dict[str, type[nn.Module]]:
    """vLLM's class name to the class that takes its place."""
    gelu_tanh_and_mul = math.gelu_tanh_and_mul

    class SpyreGeluAndMul(GeluAndMul):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if self.approximate != "tanh":
                raise NotImplementedError(
                    f"a gated GELU of form {self.approximate!r} does not run on Spyre; serve a model with the tanh form"
                )

        def forward_oot(self, x: Tensor) -> Tensor:
            return gelu_tanh_and_mul(x)

    return {"GeluAndMul": SpyreGeluAndMul}
