"""Batches of attention with a paged cache, and what they come to in plain fp32."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import torch

from stepshape.adapters.torch_spyre.attention.forward import AttentionKernels, Staging, TokenMajorAttention
from stepshape.adapters.torch_spyre.attention.steps import AttentionSteps
from stepshape.adapters.torch_spyre.attention.tables import StepTables
from stepshape.domain.attention_plan import AttentionShapes, DecodeForm
from stepshape.domain.buckets import Ladder, block_counts, doubling, geometric, query_sizes
from stepshape.ports.compiler import GraphCompiler, Uncompiled

CPU = torch.device("cpu")


def shapes(
    *,
    decode: DecodeForm = DecodeForm.FLAT,
    block_size: int = 64,
    max_model_len: int = 1024,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 128,
    entries: Ladder | None = None,
    query: Ladder | None = None,
    blocks: Ladder | None = None,
) -> AttentionShapes:
    longest = -(-max_model_len // block_size)
    return AttentionShapes(
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        query=query or query_sizes(max_num_batched_tokens),
        blocks=blocks or block_counts(doubling(max_model_len, block_size), block_size),
        sequences=Ladder((max_num_seqs,)),
        entries=entries or geometric(max_num_seqs * longest + 1, 8, start=2),
        decode=decode,
    )


@attrs.define(eq=False)
class Batch:
    """Sequences with their whole K and V, and a pool with a page table that scatters them."""

    query_lens: list[int]
    context_lens: list[int]
    queries: list[torch.Tensor]
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    block_table: np.ndarray
    pool: int
    block_size: int

    @property
    def rows(self) -> int:
        return sum(self.query_lens)

    def ordered(self, order: Sequence[int]) -> Batch:
        """The same sequences, at the same pages, in another order."""
        return Batch(
            [self.query_lens[i] for i in order],
            [self.context_lens[i] for i in order],
            [self.queries[i] for i in order],
            [self.keys[i] for i in order],
            [self.values[i] for i in order],
            self.block_table[list(order)],
            self.pool,
            self.block_size,
        )

    def slots(self) -> np.ndarray:
        """KV slots of the rows of the step, sequence after sequence."""
        out: list[np.ndarray] = []
        for i, (query, context) in enumerate(zip(self.query_lens, self.context_lens, strict=True)):
            out.append(self._slots(i, np.arange(context, context + query)))
        return np.concatenate(out)

    def _slots(self, sequence: int, positions: np.ndarray) -> np.ndarray:
        pages = self.block_table[sequence, positions // self.block_size].astype(np.int64)
        slots: np.ndarray = pages * self.block_size + positions % self.block_size
        return slots

    def pages(self, dtype: torch.dtype, poison: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V pages with every sequence's CONTEXT in place and ``poison`` in every other slot."""
        _, heads, size = self.keys[0].shape
        pair = tuple(torch.full((self.pool, self.block_size, heads, size), poison, dtype=dtype) for _ in range(2))
        for i, context in enumerate(self.context_lens):
            slots = torch.from_numpy(self._slots(i, np.arange(context)))
            for pages, whole in zip(pair, (self.keys[i], self.values[i]), strict=True):
                pages.view(-1, heads, size)[slots] = whole[:context].to(dtype)
        return pair[0], pair[1]


def batch(
    lens: Sequence[tuple[int, int]],
    *,
    heads: int = 6,
    kv_heads: int = 2,
    size: int = 64,
    block_size: int = 64,
    seed: int = 0,
    pool: int = 0,
) -> Batch:
    """Sequences of (query rows, context tokens) with random contents in fp16 steps."""
    random = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random).half().float()

    counts = [-(-(q + c) // block_size) for q, c in lens]
    pool = pool or sum(counts) + 5
    free = np.random.default_rng(seed).permutation(np.arange(1, pool))
    table = np.zeros((len(lens), max(counts) + 2), dtype=np.int32)
    for i, count in enumerate(counts):
        table[i, :count], free = free[:count], free[count:]
    return Batch(
        [q for q, _ in lens],
        [c for _, c in lens],
        [numbers(q, heads, size) for q, _ in lens],
        [numbers(q + c, kv_heads, size) for q, c in lens],
        [numbers(q + c, kv_heads, size) for q, c in lens],
        table,
        pool,
        block_size,
    )


def reference(cases: Batch, scale: float, soft_cap: float = 0.0, window: int | None = None) -> torch.Tensor:
    """[rows, Hq, D] in fp32: softmax over each row's own past, sequence by sequence, with no pages and no buckets."""
    out = []
    for query, context, q, k, v in zip(
        cases.query_lens, cases.context_lens, cases.queries, cases.keys, cases.values, strict=True
    ):
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * scale
        if soft_cap:
            scores = torch.tanh(scores / soft_cap) * soft_cap
        mine = torch.arange(context, context + query)[:, None]
        theirs = torch.arange(context + query)[None, :]
        hidden = theirs > mine
        if window is not None:
            hidden |= theirs <= mine - window
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1)
        out.append(torch.einsum("hqk,khd->qhd", weights, v))
    return torch.cat(out)


@attrs.define(eq=False)
class Layer:
    """One layer's attention with its steps and buffers."""

    steps: AttentionSteps
    attention: TokenMajorAttention
    staging: Staging
    dtype: torch.dtype
    device: torch.device

    def tables(self, cases: Batch, body: int) -> StepTables:
        return self.steps.build(cases.query_lens, cases.context_lens, cases.block_table, cases.slots(), body)

    def run(
        self, cases: Batch, *, body: int = 0, poison: float = 0.0, tables: StepTables | None = None
    ) -> torch.Tensor:
        """[body, Hq, D] on the host, after storing the step's K and V; ``poison`` fills all that must not matter."""
        body = body or cases.rows
        tables = tables or self.tables(cases, body)
        k_pages, v_pages = (pages.to(self.device) for pages in cases.pages(self.dtype, poison))
        for buffer in (self.staging.query, self.staging.result):
            buffer.fill_(poison)
        query, key, value = (
            _padded([whole[-n:] for whole, n in zip(parts, cases.query_lens, strict=True)], body, poison)
            .to(self.dtype)
            .to(self.device)
            for parts in (cases.queries, cases.keys, cases.values)
        )
        with torch.inference_mode():
            self.attention.store(k_pages, v_pages, key, value, tables)
            return self.attention.attend(query, k_pages, v_pages, tables).cpu()


def layer(
    ladders: AttentionShapes,
    *,
    heads: int = 6,
    size: int = 64,
    scale: float = 0.125,
    soft_cap: float = 0.0,
    window: int | None = None,
    windows: Sequence[int | None] | None = None,
    body: Ladder | None = None,
    dtype: torch.dtype = torch.float16,
    device: torch.device = CPU,
    compiler: GraphCompiler | None = None,
) -> Layer:
    body = body or Ladder({ladders.max_num_batched_tokens, *doubling(ladders.max_num_seqs).sizes})
    steps = AttentionSteps(ladders, windows=windows or (None, window), body=body, device=device, dtype=dtype)
    staging = Staging(steps.rows, heads, size, device=device, dtype=dtype)
    kernels = AttentionKernels(compiler or Uncompiled())
    attention = TokenMajorAttention(kernels, steps, staging, scale=scale, soft_cap=soft_cap, window=window)
    return Layer(steps, attention, staging, dtype, device)


def _padded(parts: list[torch.Tensor], rows: int, poison: float) -> torch.Tensor:
    packed = torch.cat(parts)
    return torch.cat([packed, torch.full((rows - len(packed), *packed.shape[1:]), poison)])
