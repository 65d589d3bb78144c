"""Rotary embeddings over the cache of 2x2 rotations (spyre contract 2.3), in padded heads where heads are padded."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import (
    LinearScalingRotaryEmbedding,
    Llama3RotaryEmbedding,
    RotaryEmbedding,
    YaRNScalingRotaryEmbedding,
)

from .....ports.layers import LayerMath
from ..config import resolved


def _rotary_dim(head_size: int, rotary_dim: int) -> int:
    """The lanes that the checkpoint rotates: the frequencies are those of its own head size, not of the padded one.
    Raises NotImplementedError where only a part of the head is rotated."""
    if rotary_dim != head_size:
        raise NotImplementedError(
            f"a rotary embedding of {rotary_dim} of {head_size} lanes does not run on Spyre; serve a model that "
            "rotates the whole head"
        )
    widening = resolved(get_current_vllm_config()).heads
    return widening.orig if head_size == widening.padded else rotary_dim


def rotary_classes(math: LayerMath[Tensor]) -> dict[str, type[nn.Module]]:
    """vLLM's class name to the class that takes its place."""
    rotation_cache, rotations, rotate = math.rotation_cache, math.rotations, math.rotate

    def prepare(layer: Any) -> None:
        if not layer.is_neox_style:
            raise NotImplementedError(
                "a rotary embedding of neighbouring lanes does not run on Spyre; serve a model that rotates halves"
            )
        # A buffer, so that it moves with the model: built inside a traced graph it takes the runtime down.
        layer.register_buffer("rotation_cache", rotation_cache(layer.cos_sin_cache, layer.head_size), persistent=False)
        del layer.cos_sin_cache  # only vLLM's own forward reads it, and it would take device memory

    def turn(
        layer: Any, positions: Tensor, query: Tensor, key: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        matrices = rotations(layer.rotation_cache, positions)
        return rotate(query, matrices), None if key is None else rotate(key, matrices)

    class SpyreRotaryEmbedding(RotaryEmbedding):
        def __init__(self, head_size: int, rotary_dim: int, *args: Any, **kwargs: Any) -> None:
            super().__init__(head_size, _rotary_dim(head_size, rotary_dim), *args, **kwargs)
            prepare(self)

        def forward_oot(self, positions: Tensor, query: Tensor, key: Tensor | None = None) -> Any:
            return turn(self, positions, query, key)

    class SpyreLlama3RotaryEmbedding(Llama3RotaryEmbedding):
        def __init__(self, head_size: int, rotary_dim: int, *args: Any, **kwargs: Any) -> None:
            super().__init__(head_size, _rotary_dim(head_size, rotary_dim), *args, **kwargs)
            prepare(self)

        def forward_oot(self, positions: Tensor, query: Tensor, key: Tensor | None = None) -> Any:
            return turn(self, positions, query, key)

    class SpyreLinearScalingRotaryEmbedding(LinearScalingRotaryEmbedding):
        def __init__(self, head_size: int, rotary_dim: int, *args: Any, **kwargs: Any) -> None:
            super().__init__(head_size, _rotary_dim(head_size, rotary_dim), *args, **kwargs)
            prepare(self)

        def forward_oot(self, positions: Tensor, query: Tensor, key: Tensor | None = None) -> Any:
            return turn(self, positions, query, key)

    class SpyreYaRNScalingRotaryEmbedding(YaRNScalingRotaryEmbedding):
        def __init__(self, head_size: int, rotary_dim: int, *args: Any, **kwargs: Any) -> None:
            super().__init__(head_size, _rotary_dim(head_size, rotary_dim), *args, **kwargs)
            prepare(self)

        def forward_oot(self, positions: Tensor, query: Tensor, key: Tensor | None = None) -> Any:
            return turn(self, positions, query, key)

    return {
        "RotaryEmbedding": SpyreRotaryEmbedding,
        "Llama3RotaryEmbedding": SpyreLlama3RotaryEmbedding,
        "LinearScalingRotaryEmbedding": SpyreLinearScalingRotaryEmbedding,
        "YaRNScalingRotaryEmbedding": SpyreYaRNScalingRotaryEmbedding,
    }
