"""The ladders of an engine's attention: those drawn from its limits, or those that the environment asks for."""

from __future__ import annotations

import math

import attrs

from .attention_plan import AttentionShapes, DecodeForm
from .buckets import Ladder, block_counts, doubling, geometric, overridden, query_sizes
from .capacity import cdiv

ENTRY_BUDGET = 21
"""Flat decode kernels where the user names no ladder: as many as the public plugin has rectangles for 16 sequences of
8192 tokens."""
FINEST_FACTOR = 1.15
"""Between neighbours of an entry ladder: padding of a fourteenth in the mean. Finer is not worth a compilation."""
MOST_ENTRIES = 4096
"""Entries of one decode kernel where the longest sequence needs no more: a gather of so many pages of 8 KV heads of 128
is 1 GiB, the most that four cores' spans hold (spyre contract 8.7)."""


@attrs.frozen(kw_only=True)
class LadderTexts:
    """Ladders as the environment has them, comma-separated; empty where a variable is unset."""

    kv: str = ""
    """SPYRE_ATTN_KV_BUCKETS, tokens"""
    query: str = ""
    """SPYRE_ATTN_QUERY_BUCKETS, rows"""
    sequences: str = ""
    """SPYRE_ATTN_NUM_SEQS_BUCKETS"""
    entries: str = ""
    """STEPSHAPE_SPYRE_ENTRY_BUCKETS, (sequence, block) pairs of a flat decode"""


def entry_sizes(limit: int, sequences: int, budget: int = ENTRY_BUDGET) -> Ladder:
    """At most ``budget`` totals of blocks, for ``sequences`` at once and never more than ``limit``.

    Sequences are seldom all near their greatest length: most sizes go where totals mostly lie, between two blocks a
    sequence and a quarter of the limit, each the same factor above the one before. A few below and above see to the
    rest. A load that was measured does better with `bucket_planner`.
    """
    start, bend = 2 * sequences, limit // 4
    if bend <= start or budget < 8:
        return geometric(limit, budget, start=min(limit, max(2, sequences // 2)))
    few = {max(2, sequences // 2), max(3, sequences)}
    enough = math.ceil(math.log(bend / start) / math.log(FINEST_FACTOR)) + 1
    fine = geometric(bend, min(budget - 5, enough), start=start).sizes
    coarse = geometric(limit, 4, start=bend).sizes
    return Ladder({*few, *fine, *coarse})


def attention_shapes(
    *,
    block_size: int,
    max_model_len: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    decode: DecodeForm = DecodeForm.FLAT,
    texts: LadderTexts | None = None,
) -> tuple[AttentionShapes, tuple[str, ...]]:
    """An engine's shapes, and what to warn of. Raises ValueError for a ladder that cannot be read.

    One number of sequences, the greatest, does for the flat form: rows cost next to nothing there, and every further
    one multiplies the variants.
    """
    texts = texts or LadderTexts()
    notes: list[str] = []

    def chosen(name: str, text: str, limit: int, default: Ladder) -> Ladder:
        if not text.strip():
            return default
        ladder, warnings = overridden(name, text, limit)
        notes.extend(warnings)
        return ladder

    longest = cdiv(max_model_len, block_size)
    flat = decode is DecodeForm.FLAT
    entries = min(max_num_seqs * longest, max(longest, MOST_ENTRIES)) + 1
    rows = Ladder((max_num_seqs,)) if flat else doubling(max_num_seqs, min(4, max_num_seqs))
    kv = chosen(
        "SPYRE_ATTN_KV_BUCKETS", texts.kv, max_model_len, doubling(max_model_len, min(block_size, max_model_len))
    )
    most = min(max_num_batched_tokens, max_model_len)
    shapes = AttentionShapes(
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        query=chosen("SPYRE_ATTN_QUERY_BUCKETS", texts.query, most, query_sizes(most)),
        blocks=block_counts(kv, block_size),
        sequences=chosen("SPYRE_ATTN_NUM_SEQS_BUCKETS", texts.sequences, max_num_seqs, rows),
        entries=chosen("STEPSHAPE_SPYRE_ENTRY_BUCKETS", texts.entries, entries, entry_sizes(entries, max_num_seqs)),
        decode=decode,
    )
    return shapes, tuple(notes)
