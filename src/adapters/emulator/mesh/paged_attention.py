"""The attention function that transformers' modelling code calls, and the two kinds of paged step behind it.

A model runs on one packed sequence ``[1, tokens]`` of all rows of a step; the extra keyword argument
``paged_step`` travels through its layers to here and knows which token belongs to which row.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import attrs
import numpy as np
import numpy.typing as npt
import torch
from transformers import AttentionInterface

from .attention_math import Scoring, one_query_a_row, one_sequence
from .kv_cache import PagedKVCache

ATTENTION_NAME = "stepshape_paged"


class UnsupportedAttentionError(ValueError):
    """A layer asks for attention in a way that the paged function does not know."""


@attrs.frozen(eq=False)
class AttentionCall:
    """One layer's call. query [T, H, D], key [T, KV, D], value [T, KV, Dv]."""

    layer: int
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scoring: Scoring


class AttentionStep(Protocol):
    """What a forward pass attends to. Returns [T, H, Dv]."""

    def attend(self, call: AttentionCall) -> torch.Tensor: ...


def paged_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    is_causal: bool | None = None,
    paged_step: AttentionStep | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, H, T, D], key [1, KV, T, D], value [1, KV, T, Dv] -> [1, T, H, Dv]."""
    if paged_step is None:
        raise UnsupportedAttentionError("its layers do not hand keyword arguments on to their attention")
    if attention_mask is not None or position_bias is not None:
        raise UnsupportedAttentionError("its layers bring a mask or a position bias of their own")
    if is_causal is False:
        raise UnsupportedAttentionError("it attends to later positions")
    scoring = Scoring(
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    call = AttentionCall(
        module.layer_idx, query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1), scoring
    )
    return paged_step.attend(call)[None], None


def register_paged_attention() -> str:
    """Make the function known to transformers; returns the ``attn_implementation`` to load a model with."""
    AttentionInterface.register(ATTENTION_NAME, paged_attention)
    return ATTENTION_NAME


@attrs.frozen(eq=False)
class PageTables:
    """The page tables of a step: ``tables[k]`` is int64 [rows, W] buffer rows; layer i uses ``of_layer[i]``."""

    tables: tuple[npt.NDArray[np.int64], ...]
    of_layer: Sequence[int]

    def places(self, rows: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], block: int) -> list[torch.Tensor]:
        """Flat cache places int64 [T] a table, of token t at ``positions[t]`` of row ``rows[t]``."""
        return [
            torch.from_numpy(table[rows, positions // block] * block + positions % block) for table in self.tables
        ]


@attrs.frozen
class Span:
    """A row of a prefill: tokens [begin, end) of the packed sequence, at positions from ``start`` on."""

    row: int
    begin: int
    end: int
    start: int


class PrefillStep:
    """Each row attends to its own past and itself. Every row writes before any row reads, so a row may
    read a prefix that another row of the same step computes."""

    def __init__(
        self,
        cache: PagedKVCache,
        tables: PageTables,
        spans: Sequence[Span],
        rows: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
    ) -> None:
        self._cache, self._tables, self._spans = cache, tables, spans
        self._places = tables.places(rows, positions, cache.block_size)
        self._pages = [
            [
                torch.from_numpy(table[span.row, : -(-(span.start + span.end - span.begin) // cache.block_size)])
                for span in spans
            ]
            for table in tables.tables
        ]

    def attend(self, call: AttentionCall) -> torch.Tensor:
        table = self._tables.of_layer[call.layer]
        self._cache.write(call.layer, self._places[table], call.key, call.value)
        parts = []
        for span, pages in zip(self._spans, self._pages[table], strict=True):
            query, key, value = (part[span.begin : span.end] for part in (call.query, call.key, call.value))
            if span.start:
                context = span.start + span.end - span.begin
                key, value = (part[:context].to(query.dtype) for part in self._cache.gather(call.layer, pages))
            parts.append(
                one_sequence(
                    query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), span.start, call.scoring
                )
            )
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class DecodeStep:
    """One token a row. Rows of similar context run together, padded to the longest of their group."""

    def __init__(
        self,
        cache: PagedKVCache,
        tables: PageTables,
        rows: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
    ) -> None:
        self._cache, self._tables = cache, tables
        self._places = tables.places(rows, positions, cache.block_size)
        self._groups = [_DecodeGroup(cache, tables, rows, positions, members) for members in _groups(positions)]

    def attend(self, call: AttentionCall) -> torch.Tensor:
        table = self._tables.of_layer[call.layer]
        self._cache.write(call.layer, self._places[table], call.key, call.value)
        if len(self._groups) == 1:
            return self._groups[0].attend(call, table, call.query)
        heads, size = call.query.shape[1], call.value.shape[2]
        out = torch.empty((len(call.query), heads, size), dtype=call.query.dtype)
        for group in self._groups:
            out[group.members] = group.attend(call, table, call.query[group.members])
        return out


class _DecodeGroup:
    def __init__(
        self,
        cache: PagedKVCache,
        tables: PageTables,
        rows: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        members: npt.NDArray[np.int64],
    ) -> None:
        self.members = torch.from_numpy(members)
        self._cache = cache
        self._positions = torch.from_numpy(positions[members])[:, None]
        self._context = int(positions[members].max()) + 1
        width = -(-self._context // cache.block_size)
        self._pages = [torch.from_numpy(table[rows[members], :width]) for table in tables.tables]
        self._hidden: dict[int | None, torch.Tensor | None] = {}

    def attend(self, call: AttentionCall, table: int, query: torch.Tensor) -> torch.Tensor:
        keys, values = self._cache.gather(call.layer, self._pages[table])
        keys, values = keys[:, : self._context].to(query.dtype), values[:, : self._context].to(query.dtype)
        return one_query_a_row(query, keys, values, self._unseen(call.scoring.window), call.scoring)

    def _unseen(self, window: int | None) -> torch.Tensor | None:
        if window not in self._hidden:
            keys = torch.arange(self._context)[None, :]
            hidden = keys > self._positions
            if window is not None:
                hidden |= keys <= self._positions - window
            self._hidden[window] = hidden if bool(hidden.any()) else None
        return self._hidden[window]


def _groups(positions: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Indices by context length, cut where the longest would more than double the padding of the shortest."""
    order = np.argsort(-positions, kind="stable")
    groups, begin = [], 0
    for index in range(1, len(order) + 1):
        longest = int(positions[order[begin]])
        if index == len(order) or longest > 2 * int(positions[order[index]]) + 64:
            # In row order: a single group is then the whole batch as it came.
            groups.append(np.sort(order[begin:index]))
            begin = index
    return groups
