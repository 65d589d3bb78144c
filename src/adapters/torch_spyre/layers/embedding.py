"""The vocabulary embedding of one rank (spyre contract 2.4).

Finding the local row of a token takes comparisons and bool tensors, which the device lacks; a table does it. Tables
have two columns, the second unused: a row of one element does not lower.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Shard(Protocol):
    """Which token ids a rank owns, by vLLM's names: [org start, org end) and [added start, added end), the added ones
    stored after ``num_org_vocab_padding`` rows."""

    org_vocab_start_index: int
    org_vocab_end_index: int
    added_vocab_start_index: int
    added_vocab_end_index: int

    @property
    def num_org_vocab_padding(self) -> int: ...


def shard_tables(shard: Shard, num_embeddings: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``reindex`` int64 [V, 2], the local row of each token or 0, and ``keep`` [V, 2], 1 where the rank owns it."""
    ids = torch.arange(num_embeddings)
    org = (ids >= shard.org_vocab_start_index) & (ids < shard.org_vocab_end_index)
    added = (ids >= shard.added_vocab_start_index) & (ids < shard.added_vocab_end_index)
    org_rows = shard.org_vocab_end_index - shard.org_vocab_start_index
    offset = shard.added_vocab_start_index - org_rows - shard.num_org_vocab_padding
    rows = torch.where(org, ids - shard.org_vocab_start_index, torch.where(added, ids - offset, 0))
    reindex = torch.stack([rows, torch.zeros_like(rows)], dim=1)
    owned = (org | added).to(dtype)
    return reindex, torch.stack([owned, owned], dim=1)


def embed(ids: Tensor, weight: Tensor) -> Tensor:
    """Rows of ``weight`` [V, h] for int64 ``ids`` [T]."""
    return torch.nn.functional.embedding(ids, weight)


def embed_shard(ids: Tensor, weight: Tensor, reindex: Tensor, keep: Tensor) -> Tensor:
    """A rank's part [T, h] of the embedding: zero for tokens that other ranks own. The sum over ranks is the whole."""
    rows = torch.index_select(reindex, 0, ids)[:, 0]
    kept = torch.nn.functional.embedding(ids, keep)[:, 0:1]
    return torch.nn.functional.embedding(rows, weight) * kept
