"""Attention itself, for one sequence (prefill) and for one query a row (decode).

Plain attention goes through torch's scaled_dot_product_attention in the very form that transformers uses, so
that float32 greedy text agrees. Soft caps (Gemma 2) and sinks (GPT-OSS) follow those models' own eager code.
"""
from __future__ import annotations

import attrs
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own idiom)


@attrs.frozen(eq=False)
class Scoring:
    """How a layer turns scores into weights. ``window``: a query at q sees keys k > q - window (None: all)."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    """float [query heads]"""

    @property
    def plain(self) -> bool:
        return self.softcap is None and self.sinks is None


def one_sequence(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, start: int, scoring: Scoring
) -> torch.Tensor:
    """query [H, T, D] at positions start.., key [KV, start + T, D], value [KV, start + T, Dv] -> [T, H, Dv]."""
    length, context = query.shape[1], key.shape[1]
    grouped = query.shape[0] != key.shape[0]
    windowed = scoring.window is not None and context > scoring.window
    if scoring.plain and start == 0 and not windowed:
        out = F.scaled_dot_product_attention(
            query[None], key[None], value[None], is_causal=length > 1, scale=scoring.scale, enable_gqa=grouped
        )
        return out[0].transpose(0, 1)
    queries = torch.arange(start, start + length)[:, None]
    keys = torch.arange(context)[None, :]
    seen = keys <= queries
    if scoring.window is not None:
        seen &= keys > queries - scoring.window
    if scoring.plain:
        out = F.scaled_dot_product_attention(
            query[None], key[None], value[None], attn_mask=seen, scale=scoring.scale, enable_gqa=grouped
        )
        return out[0].transpose(0, 1)
    groups = query.shape[0] // key.shape[0]
    key, value = key.repeat_interleave(groups, 0), value.repeat_interleave(groups, 0)
    scores = torch.matmul(query, key.transpose(1, 2)) * scoring.scale
    sinks = None if scoring.sinks is None else scoring.sinks[:, None, None]
    return torch.matmul(_weights(scores, ~seen, sinks, scoring.softcap), value).transpose(0, 1)


def one_query_a_row(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, hidden: torch.Tensor | None, scoring: Scoring
) -> torch.Tensor:
    """query [R, H, D], key [R, L, KV, D], value [R, L, KV, Dv], hidden bool [R, L] (None: all seen) -> [R, H, Dv].

    The query heads of one KV head are laid out as that head's queries, so that keys need no repeating.
    """
    rows, heads, size = query.shape
    kv_heads = key.shape[2]
    grouped = query.view(rows, kv_heads, heads // kv_heads, size)
    keys, values = key.transpose(1, 2), value.transpose(1, 2)
    if scoring.plain:
        bias = None if hidden is None else _bias(hidden, query.dtype)
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=bias, scale=scoring.scale)
        return out.reshape(rows, heads, -1)
    scores = torch.matmul(grouped, keys.transpose(2, 3)) * scoring.scale
    sinks = None if scoring.sinks is None else scoring.sinks.view(1, kv_heads, -1, 1)
    mask = None if hidden is None else hidden[:, None, None, :]
    return torch.matmul(_weights(scores, mask, sinks, scoring.softcap), values).reshape(rows, heads, -1)


def _bias(hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))[:, None, None, :]


def _weights(
    scores: torch.Tensor, hidden: torch.Tensor | None, sinks: torch.Tensor | None, softcap: float | None
) -> torch.Tensor:
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is None:
        return torch.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)
    # A sink is one more column that takes weight and gives no value (GPT-OSS).
    column = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    combined = torch.cat([scores, column], dim=-1)
    combined = combined - combined.max(dim=-1, keepdim=True).values
    return torch.softmax(combined, dim=-1)[..., :-1]
