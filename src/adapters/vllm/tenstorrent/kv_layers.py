"""vLLM's KV cache configuration as the layers that a generator allocates (contract 3.2 and 6.6)."""
from __future__ import annotations

import re
from typing import Any

from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    UniformTypeKVCacheSpecs,
)

from ....ports.generator import KVCacheLayer

_LAYER = re.compile(r"(^|\.)layers\.(\d+)(\.|$)")


def num_attention_layers(vllm_config: Any) -> int:
    return int(vllm_config.model_config.get_total_num_hidden_layers())


def default_spec(vllm_config: Any) -> dict[str, KVCacheSpec]:
    """One layer stands for all: they have one shape, so one block table serves them."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    dtype = model.dtype
    return {
        "model.layers.0": FullAttentionSpec(
            block_size=cache.block_size,
            num_kv_heads=model.get_total_num_kv_heads(),
            head_size=model.get_head_size(),
            dtype=dtype,
        )
    }


def kv_layers(config: KVCacheConfig, *, layers: int, devices_per_lane: int) -> list[KVCacheLayer]:
    """One entry an attention layer. Each lane's pool has the full number of blocks; heads are split over the lane's
    chips, at least one a chip."""
    specs = _specs(config)
    if len(specs) == 1:
        spec = next(iter(specs.values()))
        return [_layer(spec, config.num_blocks, devices_per_lane, index) for index in range(layers)]
    by_index = _by_index(specs, layers)
    return [_layer(by_index[index], config.num_blocks, devices_per_lane, index) for index in range(layers)]


def layer_groups(config: KVCacheConfig, layers: int) -> list[int] | None:
    """KV cache group of each layer; None where one group serves all."""
    if len(config.kv_cache_groups) == 1:
        return None
    groups = {name: g for g, group in enumerate(config.kv_cache_groups) for name in group.layer_names}
    by_index = _by_index(groups, layers)
    return [by_index[index] for index in range(layers)]


def _specs(config: KVCacheConfig) -> dict[str, KVCacheSpec]:
    specs: dict[str, KVCacheSpec] = {}
    for group in config.kv_cache_groups:
        spec = group.kv_cache_spec
        for name in group.layer_names:
            specs[name] = spec.kv_cache_specs[name] if isinstance(spec, UniformTypeKVCacheSpecs) else spec
    return specs


def _by_index(named: dict[str, Any], layers: int) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for name, value in named.items():
        match = _LAYER.search(name)
        if match is None:
            raise ValueError(
                f"KV cache layer {name!r} names no index; a model's get_kv_cache_spec must use 'layers.<n>'"
            )
        found[int(match.group(2))] = value
    missing = [index for index in range(layers) if index not in found]
    if missing:
        raise ValueError(
            f"no KV cache spec covers layers {missing}; a model's get_kv_cache_spec must name every layer once"
        )
    return found


def _layer(spec: KVCacheSpec, num_blocks: int, devices_per_lane: int, index: int) -> KVCacheLayer:
    if not isinstance(spec, AttentionSpec):
        raise ValueError(f"a {type(spec).__name__} cannot be laid out on a mesh; use an attention spec")
    heads = spec.num_kv_heads
    return KVCacheLayer(
        shape=(
            num_blocks,
            max(1, heads // min(devices_per_lane, heads)),
            spec.block_size,
            spec.head_size,
        ),
        dtype=str(spec.dtype).removeprefix("torch."),
        tensor=index,
    )
