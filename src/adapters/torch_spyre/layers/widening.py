"""Checkpoint weights brought into padded heads and padded MLPs, tensor by tensor as they are read (spyre contract 2.10
and 2.11). Weights are whole here: sharding comes after.

All added rows and columns are zero and stay inert: a zero query lane adds nothing to a score, a zero value lane gives a
zero output lane that the zero column of ``o_proj`` drops, and silu(0) * 0 = 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....domain.head_padding import Widening


def _spread(weight: Tensor, dim: int, lanes: tuple[int, ...], widening: Widening) -> Tensor:
    """``weight`` with each head of ``widening.orig`` entries along ``dim`` moved to ``lanes`` of a padded head."""
    moved = weight.movedim(dim, 0)
    heads, rest = divmod(moved.shape[0], widening.orig)
    if rest:
        raise ValueError(
            f"{moved.shape[0]} rows are no whole number of heads of {widening.orig} lanes; the checkpoint does not "
            "match its config"
        )
    out = moved.new_zeros(heads, widening.padded, *moved.shape[1:])
    out[:, torch.tensor(lanes)] = moved.reshape(heads, widening.orig, *moved.shape[1:])
    return out.reshape(heads * widening.padded, *moved.shape[1:]).movedim(0, dim).contiguous()


def widen_heads(name: str, weight: Tensor, widening: Widening, query_heads: int, kv_heads: int) -> Tensor:
    """The weight of that checkpoint name in padded heads; other weights as they are."""
    if not widening.needed:
        return weight
    owner, _, kind = name.rpartition(".")
    layer = owner.rpartition(".")[2]
    if kind not in ("weight", "bias"):
        return weight
    if layer == "qkv_proj":
        sizes = [query_heads * widening.orig, kv_heads * widening.orig, kv_heads * widening.orig]
        query, key, value = torch.split(weight, sizes)
        return torch.cat(
            [
                _spread(query, 0, widening.rotary_lanes(), widening),
                _spread(key, 0, widening.rotary_lanes(), widening),
                _spread(value, 0, widening.value_lanes(), widening),
            ]
        )
    if layer in ("q_proj", "k_proj", "q_norm", "k_norm"):
        return _spread(weight, 0, widening.rotary_lanes(), widening)
    if layer == "v_proj":
        return _spread(weight, 0, widening.value_lanes(), widening)
    if layer == "o_proj" and kind == "weight":
        return _spread(weight, 1, widening.value_lanes(), widening)
    return weight


def _extend(weight: Tensor, dim: int, size: int) -> Tensor:
    shape = list(weight.shape)
    shape[dim] = size
    out = weight.new_zeros(shape)
    out.narrow(dim, 0, weight.shape[dim]).copy_(weight)
    return out


def widen_mlp(name: str, weight: Tensor, widening: Widening) -> Tensor:
    """The weight of that checkpoint name in a padded MLP; other weights as they are."""
    if not widening.needed:
        return weight
    owner, _, kind = name.rpartition(".")
    layer = owner.rpartition(".")[2]
    if kind not in ("weight", "bias"):
        return weight
    if layer == "gate_up_proj":
        gate, up = weight.chunk(2, dim=0)
        return torch.cat([_extend(gate, 0, widening.padded), _extend(up, 0, widening.padded)])
    if layer in ("gate_proj", "up_proj"):
        return _extend(weight, 0, widening.padded)
    if layer == "down_proj" and kind == "weight":
        return _extend(weight, 1, widening.padded)
    return weight
