"""The attention kernels, token-major, with static shapes. Functions of tensors and plain numbers, compiled by shape.

Every kernel here keeps four rules.
* What is not attended to cannot matter, whatever bits it holds: scores are SELECTED by bounds, never only added to (a
  NaN survives any mask that is added), and values are selected too (0 x NaN is NaN). Spyre contract 8.34.
* Pages and rows are gathered by whole index tensors with `index_select`; subscripting widens int32 (contract 3.4).
* A sequence's bits depend on its own data and on the bucket shapes alone, not on its place in the batch: every sum
  that crosses entries runs over places counted from the sequence's own start, and maxima do not care for order.

* Nothing is copied only to change its order: `clone` exists inside compiled graphs alone. Heads come to the front by
  gathering from a permuted view, which lands contiguous.

Shapes: R staging rows, Hq query heads = KV heads x G, D head size, NB pages of bs slots. Matrix products run in the
tensors' own type (fp16): the device multiplies no fp32 matrices.
"""

from __future__ import annotations

import torch

CHUNK_TOKENS = 1024
"""KV tokens that the per-sequence kernel scores at a time: bounds the size of a score tile (A x 1024 a head), and is
exact as an fp16 bound."""


def kv_store(
    k_pages: torch.Tensor, v_pages: torch.Tensor, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> None:
    """Write ``key`` and ``value`` [T, KV, D] into pages [NB, bs, KV, D] at ``slots`` [T] int64, in place.

    The slot axis is outermost, or the scatter hits other rows (contract 8.4). Slots that repeat hold padding.
    """
    _, _, heads, size = k_pages.shape
    k_pages.view(-1, heads, size).index_copy_(0, slots, key)
    v_pages.view(-1, heads, size).index_copy_(0, slots, value)


def stage_rows(staging: torch.Tensor, rows: torch.Tensor, query: torch.Tensor) -> None:
    """Copy body rows ``query`` [T, Hq, D] into ``staging`` [R, Hq, D] at ``rows`` [T] int64.

    Kernels read the staging buffer, so that their shapes do not carry the body bucket (contract 3.6)."""
    staging.index_copy_(0, rows, query)


def take_rows(staging: torch.Tensor, rows: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    """[T, Hq, D]: the staged results of the body's rows, and exact zeros in its padding.

    Left alone, padding holds whatever the allocator gave, and the next layer writes K and V from it (contract 11,
    fault 1)."""
    taken = staging.index_select(0, rows)
    return torch.where(live > 0, taken, torch.zeros_like(taken))


def sequence_attention(
    staging: torch.Tensor,
    out: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    rows: torch.Tensor,
    pages: torch.Tensor,
    low: torch.Tensor | None,
    high: torch.Tensor,
    slot_numbers: torch.Tensor,
    scale: float,
    soft_cap: float,
) -> None:
    """One sequence: query rows ``staging[rows]`` over its pages, written to ``out[rows]`` (both [R, Hq, D]).

    Tables as in `SequenceTables`; ``slot_numbers`` [CHUNK_TOKENS] counts 0, 1, 2, ... in the model's type. Softmax is
    kept online over chunks of `CHUNK_TOKENS`. ``soft_cap`` 0 means none.
    """
    block_size, kv_heads, size = k_pages.shape[1:]
    queries, heads = rows.shape[0], staging.shape[1]
    group = heads // kv_heads
    blocks = max(1, CHUNK_TOKENS // block_size)
    query = staging.view(-1, kv_heads, group, size).permute(1, 2, 0, 3).index_select(2, rows)
    query = query.view(kv_heads, group * queries, size)
    keys = k_pages.permute(2, 0, 1, 3).index_select(1, pages)
    values = v_pages.permute(2, 0, 1, 3).index_select(1, pages)
    best = total = result = None
    for chunk, start in enumerate(range(0, pages.shape[0], blocks)):
        tokens = min(blocks, pages.shape[0] - start) * block_size
        k = keys[:, start : start + blocks].view(kv_heads, tokens, size)
        v = values[:, start : start + blocks].view(kv_heads, tokens, size)
        numbers = slot_numbers[:tokens]
        ends = high[chunk, :queries].view(queries, 1)
        starts = None if low is None else low[chunk, :queries].view(queries, 1)
        widest = None if starts is None else -(-starts).amax(0, keepdim=True)
        v = _within(v, numbers.view(tokens, 1), widest, ends.amax(0, keepdim=True), 0.0)
        scores = _scores(query, k.transpose(1, 2), scale, soft_cap).view(kv_heads, group, queries, tokens)
        scores = _within(scores, numbers, starts, ends, _lowest(scores))
        top = scores.amax(-1, keepdim=True)
        if best is not None:
            top = torch.maximum(best, top)
        weights = _within(torch.exp(scores - top), numbers, starts, ends, 0.0)
        part = torch.bmm(weights.view(kv_heads, group * queries, tokens), v).view(kv_heads, group, queries, size)
        sums = weights.sum(-1, keepdim=True)
        if best is None or total is None or result is None:
            best, total, result = top, sums, part
        else:
            keep = torch.exp(best - top)
            best, total, result = top, total * keep + sums, result * keep + part
    assert result is not None and total is not None, "a sequence has one block or more"
    out.index_copy_(0, rows, (result / total).view(heads, queries, size).permute(1, 0, 2))


def flat_decode(
    staging: torch.Tensor,
    out: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    rows: torch.Tensor,
    pages: torch.Tensor,
    owner: torch.Tensor,
    low: torch.Tensor | None,
    high: torch.Tensor,
    first_round: torch.Tensor,
    second_round: torch.Tensor,
    slot_numbers: torch.Tensor,
    radix: int,
    scale: float,
    soft_cap: float,
) -> None:
    """Single query rows ``staging[rows]`` over ONE flat list of (sequence, block) entries, written to ``out[rows]``.

    Every entry attends alone and leaves (largest score, sum of weights, mean value). The partial results of a sequence
    are brought together in two rounds of gathers: places [G, radix] of entries into groups, then [B, radix] of groups
    into rows, each summed along its places. A matrix product with a 0/1 matrix would do it in one step, but the order
    of its sums, and so the last bit, would depend on where in the batch a sequence stands. Tables as in `FlatTables`.
    """
    best, sums, means = _partials(
        staging, k_pages, v_pages, rows, pages, owner, low, high, slot_numbers, scale, soft_cap
    )

    def together(part: torch.Tensor, largest: bool) -> torch.Tensor:
        for places in (first_round, second_round):
            part = part.index_select(0, places).view(-1, radix, *part.shape[1:])
            part = part.amax(1) if largest else part.sum(1)
        return part

    # A spare entry has an owner like any other, whose numbers must not reach it: others count on its weight being 0.
    real = high.view(-1, 1) > 0
    nothing = torch.zeros_like(sums)
    weight = torch.where(real, sums * torch.exp(best - together(best, True).index_select(0, owner)), nothing)
    share = torch.where(real, weight / _not_zero(together(weight, False)).index_select(0, owner), nothing)
    attended = together(share.unsqueeze(-1) * means, False)
    out.index_copy_(0, rows, attended)


def rectangular_decode(
    staging: torch.Tensor,
    out: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    rows: torch.Tensor,
    pages: torch.Tensor,
    owner: torch.Tensor,
    low: torch.Tensor | None,
    high: torch.Tensor,
    slot_numbers: torch.Tensor,
    scale: float,
    soft_cap: float,
) -> None:
    """As `flat_decode`, over sequences x blocks of the longest. Tables as in `RectangularTables`."""
    best, sums, means = _partials(
        staging, k_pages, v_pages, rows, pages, owner, low, high, slot_numbers, scale, soft_cap
    )
    sequences = rows.shape[0]

    def by_row(part: torch.Tensor) -> torch.Tensor:
        return part.view(sequences, -1, *part.shape[1:])

    best, sums, means = by_row(best), by_row(sums), by_row(means)
    weight = sums * torch.exp(best - best.amax(1, keepdim=True))
    share = weight / _not_zero(weight.sum(1, keepdim=True))
    attended = (share.unsqueeze(-1) * means).sum(1)
    out.index_copy_(0, rows, attended)


def _partials(
    staging: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    rows: torch.Tensor,
    pages: torch.Tensor,
    owner: torch.Tensor,
    low: torch.Tensor | None,
    high: torch.Tensor,
    slot_numbers: torch.Tensor,
    scale: float,
    soft_cap: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each entry alone: (largest score [E, Hq], sum of weights / bs [E, Hq], mean value [E, Hq, D]).

    The sum is divided by bs so that a thousand blocks of even scores do not leave fp16; an entry with no slot attended
    to has sum 0 and mean 0.
    """
    block_size, kv_heads, size = k_pages.shape[1:]
    heads = staging.shape[1]
    group = heads // kv_heads
    entries = pages.shape[0]
    query = staging.index_select(0, rows).index_select(0, owner).view(entries * kv_heads, group, size)
    k = k_pages.permute(0, 2, 1, 3).index_select(0, pages).view(entries * kv_heads, block_size, size)
    v = v_pages.permute(0, 2, 1, 3).index_select(0, pages)
    numbers = slot_numbers[:block_size]
    ends = high.view(entries, 1, 1, 1)
    starts = None if low is None else low.view(entries, 1, 1, 1)
    v = _within(v, numbers.view(block_size, 1), starts, ends, 0.0)
    scores = _scores(query, k.transpose(1, 2), scale, soft_cap).view(entries, kv_heads, group, block_size)
    scores = _within(scores, numbers, starts, ends, _lowest(query))
    best = scores.amax(-1, keepdim=True)
    weights = _within(torch.exp(scores - best), numbers, starts, ends, 0.0)
    sums = weights.sum(-1, keepdim=True)
    means = torch.bmm(
        weights.view(entries * kv_heads, group, block_size), v.view(entries * kv_heads, block_size, size)
    ).view(entries, kv_heads, group, size) / _not_zero(sums)
    return best.view(entries, heads), sums.view(entries, heads) / block_size, means.view(entries, heads, size)


def _within(
    values: torch.Tensor, numbers: torch.Tensor, low: torch.Tensor | None, high: torch.Tensor, other: float
) -> torch.Tensor:
    """``values`` where low <= number < high, ``other`` elsewhere, whatever was there. Bools stay inside the selection:
    the device has none to keep."""
    filling = torch.full_like(values, other)
    values = torch.where(numbers < high, values, filling)
    return values if low is None else torch.where(numbers >= low, values, filling)


def _scores(query: torch.Tensor, keys: torch.Tensor, scale: float, soft_cap: float) -> torch.Tensor:
    scores = torch.bmm(query, keys) * scale
    return torch.tanh(scores / soft_cap) * soft_cap if soft_cap > 0 else scores


def _not_zero(sums: torch.Tensor) -> torch.Tensor:
    """Sums to divide by: where nothing was summed, 1."""
    return torch.where(sums > 0, sums, torch.ones_like(sums))


def _lowest(like: torch.Tensor) -> float:
    return torch.finfo(like.dtype).min
