"""The attention backend that vLLM's layers find: it hands each layer's tensors to the step that the runner prepared.

Metadata is built by the runner, once a step for all layers, so the builder that vLLM asks for is only asked what it
supports.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import attrs
import torch
from torch import Tensor
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    MultipleOf,
)

STICK = 64


@attrs.frozen(eq=False)
class PagedKV:
    """A layer's own pages on the device, each [NB, block, KV heads, D]. vLLM of before 0.27 reads device and type."""

    k: Tensor
    v: Tensor

    @property
    def device(self) -> torch.device:
        return self.k.device

    @property
    def dtype(self) -> torch.dtype:
        return self.k.dtype


@attrs.frozen
class LayerTraits:
    """What a layer's attention is, apart from its tensors."""

    scale: float
    soft_cap: float
    """0.0: none"""
    window: int | None
    """tokens, the token itself included; None: everything before it"""


class StepAttention(AttentionMetadata):
    """One step of one engine, as every layer sees it."""

    def attend(self, layer: str, query: Tensor, key: Tensor, value: Tensor, pages: PagedKV) -> Tensor:
        """For the layer of that name: store ``key`` and ``value`` [T, KV, D] and return the attention of ``query``
        [T, H, D], pad rows zero."""
        raise NotImplementedError


class Layer(Protocol):
    """The part of vLLM's attention layer that is read here."""

    layer_name: str


class SpyreAttentionBuilder(AttentionMetadataBuilder[StepAttention]):
    """Never builds: the runner does."""

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        return AttentionCGSupport.NEVER

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("the runner of Spyre prepares a step's attention itself; do not build metadata here")

    def build(self, *args: Any, **kwargs: Any) -> StepAttention:
        raise NotImplementedError("the runner of Spyre prepares a step's attention itself; do not build metadata here")


class SpyreAttentionBackend(AttentionBackend):
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[SpyreAttentionImpl]:
        return SpyreAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[SpyreAttentionBuilder]:
        return SpyreAttentionBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(STICK)]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % STICK == 0

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True


class SpyreAttentionImpl(AttentionImpl[StepAttention]):
    """Raises NotImplementedError for what a layer asks and the kernels cannot do."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        **extra: Any,
    ) -> None:
        refused = (
            (alibi_slopes is not None, "attention with ALiBi"),
            (attn_type != AttentionType.DECODER, f"attention of type {attn_type}"),
            (kv_sharing_target_layer_name is not None, "a layer that reads another layer's KV cache"),
            (extra.get("sinks") is not None, "attention with sinks"),
        )
        for asked, what in refused:
            if asked:
                raise NotImplementedError(f"{what} does not run on Spyre; serve a model without it")
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = scale
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.window = sliding_window
        self.soft_cap = logits_soft_cap or 0.0
        self.kv_cache_dtype = kv_cache_dtype

    def traits(self) -> LayerTraits:
        """Read after loading, which may have set the scale of a padded head right."""
        return LayerTraits(self.scale, self.soft_cap, self.window)

    def forward(  # type: ignore[override]
        self,
        layer: Layer,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: PagedKV,
        attn_metadata: StepAttention,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """``output`` [T, H, D] comes from torch.empty; every row of it is written, pad rows with zeros."""
        output.copy_(attn_metadata.attend(layer.layer_name, query, key, value, kv_cache))
        return output
