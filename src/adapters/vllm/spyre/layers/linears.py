"""The five linear layers with their weights stored transposed (spyre contract 2.1)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)

from .....ports.layers import LayerMath


def linear_classes(math: LayerMath[Tensor]) -> dict[str, type[nn.Module]]:
    """vLLM's class name to the class that takes its place."""
    linear, transposed = math.linear, math.transposed

    class TransposedLinearMethod(UnquantizedLinearMethod):
        """After loading the weight is [in, out]; a bias stays as it is."""

        def process_weights_after_loading(self, layer: Any) -> None:
            layer.weight = nn.Parameter(transposed(layer.weight.data), requires_grad=False)

        def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
            return linear(x, layer.weight, bias)

    def take_over(layer: Any) -> None:
        # A quantized layer keeps its own method: the platform has refused it already.
        if type(layer.quant_method) is UnquantizedLinearMethod:
            layer.quant_method = TransposedLinearMethod()

    class SpyreReplicatedLinear(ReplicatedLinear):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            take_over(self)

    class SpyreColumnParallelLinear(ColumnParallelLinear):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            take_over(self)

    class SpyreMergedColumnParallelLinear(MergedColumnParallelLinear):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            take_over(self)

    class SpyreQKVParallelLinear(QKVParallelLinear):
        """The result stays one [T, (Hq + 2 Hkv) * D]; the model splits it into views."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            take_over(self)

    class SpyreRowParallelLinear(RowParallelLinear):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            take_over(self)

    return {
        "ReplicatedLinear": SpyreReplicatedLinear,
        "ColumnParallelLinear": SpyreColumnParallelLinear,
        "MergedColumnParallelLinear": SpyreMergedColumnParallelLinear,
        "QKVParallelLinear": SpyreQKVParallelLinear,
        "RowParallelLinear": SpyreRowParallelLinear,
    }
