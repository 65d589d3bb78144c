"""Attention plans say what each kernel covers, and warm-up covers every step that can be scheduled."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepshape.domain.attention_ladders import LadderTexts, attention_shapes, entry_sizes
from stepshape.domain.attention_plan import (
    AttentionShapes,
    DecodeForm,
    FlatDecode,
    OneSequence,
    RectangularDecode,
    UnplannedShapeError,
    active_blocks,
    attention_plan,
)
from stepshape.domain.buckets import Ladder
from stepshape.domain.padding import Cells, decode_cells, single_cells
from stepshape.domain.warmup import BodyRows, Warmed, step_variants, warmup_plan

FEW = settings(max_examples=30)
"""The laws are cheap, but they run with every other unit test."""

SMALL = attention_shapes(block_size=16, max_model_len=200, max_num_seqs=5, max_num_batched_tokens=48)[0]


def test_a_step_of_decodes_and_a_chunk() -> None:
    shapes = attrs.evolve(SMALL, entries=Ladder((4, 8, 16, 66)))
    plan = attention_plan(shapes, [1, 30, 1, 0], [32, 20, 15, 9])
    (decode,), (single,) = plan.decodes, plan.singles
    assert decode.variant == FlatDecode(5, 8)
    assert (decode.sequences, decode.rows) == ((0, 2), (0, 31))
    assert (decode.first, decode.counts, decode.low, decode.high) == ((0, 0), (3, 1), (0, 0), (1, 16))
    assert single.variant == OneSequence(48, 4)
    assert (single.sequence, single.row, single.query, single.context, single.first, single.count) == (
        1,
        1,
        30,
        20,
        0,
        4,
    )
    assert decode_cells(plan) == Cells(4, 8)
    assert single_cells(plan) == Cells(30 * 4, 48 * 4)


def test_a_window_begins_with_the_earliest_rows_block() -> None:
    plan = attention_plan(SMALL, [1, 20], [100, 60], window=24)
    (decode,), (single,) = plan.decodes, plan.singles
    assert (decode.first, decode.counts, decode.low, decode.high) == ((4,), (3,), (13,), (5,))
    assert (single.first, single.count) == (2, 3)
    assert decode.variant.windowed and single.variant.windowed


def test_a_rectangle_holds_sequences_times_the_longest_and_is_far_emptier() -> None:
    flat, rectangle = (
        attention_plan(
            attention_shapes(block_size=16, max_model_len=512, max_num_seqs=8, max_num_batched_tokens=48, decode=form)[
                0
            ],
            [1] * 5,
            [500, 3, 3, 3, 3],
        )
        for form in (DecodeForm.FLAT, DecodeForm.RECTANGULAR)
    )
    assert rectangle.variants == {RectangularDecode(8, 32)}
    assert decode_cells(rectangle) == Cells(36, 256)
    assert decode_cells(flat).padded < 50


def test_off_runs_every_sequence_alone() -> None:
    shapes = attrs.evolve(SMALL, decode=DecodeForm.OFF)
    plan = attention_plan(shapes, [1, 1], [0, 90])
    assert not plan.decodes and plan.variants == {OneSequence(1, 1), OneSequence(1, 8)}


def test_more_entries_than_one_kernel_holds_run_as_several() -> None:
    shapes = attrs.evolve(SMALL, entries=Ladder((4, 14)))
    plan = attention_plan(shapes, [1] * 5, [190, 190, 10, 10, 10])
    assert [decode.counts for decode in plan.decodes] == [(12,), (12, 1), (1, 1)]
    assert len(plan.decodes) <= shapes.most_decodes


def test_a_length_above_its_ladder_is_refused_with_the_length() -> None:
    with pytest.raises(UnplannedShapeError, match="has 201 tokens where max_model_len is 200"):
        attention_plan(SMALL, [1], [200])
    with pytest.raises(UnplannedShapeError, match="49 is above the top of the query ladder, 48"):
        attention_plan(SMALL, [49], [0])
    with pytest.raises(ValueError, match="entries ladder ends at 13 where a step can need 14"):
        attrs.evolve(SMALL, entries=Ladder((13,)))


batches = st.lists(
    st.one_of(st.tuples(st.just(1), st.integers(0, 199)), st.tuples(st.integers(0, 9), st.integers(0, 150))),
    min_size=1,
    max_size=5,
)
windows = st.one_of(st.none(), st.integers(1, 250))


@FEW
@given(batches, windows, st.sampled_from(DecodeForm), st.sampled_from([14, 20, 61]))
def test_each_row_is_planned_once_over_exactly_its_blocks(
    lens: list[tuple[int, int]], window: int | None, form: DecodeForm, top: int
) -> None:
    shapes = attrs.evolve(SMALL, decode=form, entries=Ladder((5, top)))
    query, context = [q for q, _ in lens], [c for _, c in lens]
    plan = attention_plan(shapes, query, context, window)
    rows = list(chain.from_iterable(range(single.row, single.row + single.query) for single in plan.singles))
    rows += list(chain.from_iterable(decode.rows for decode in plan.decodes))
    assert sorted(rows) == list(range(sum(query)))
    spans = [(s.sequence, s.first, s.count) for s in plan.singles]
    for decode in plan.decodes:
        spans += zip(decode.sequences, decode.first, decode.counts, strict=True)
        if isinstance(decode.variant, FlatDecode):
            assert sum(decode.counts) < decode.variant.entries, "one entry is always spare"
    for sequence, first, count in spans:
        keys = [
            key
            for key in range(context[sequence] + query[sequence])
            if window is None or key > context[sequence] - window
        ]
        assert (first, count) == (keys[0] // 16, keys[-1] // 16 - keys[0] // 16 + 1)
    assert len(plan.decodes) <= shapes.most_decodes


@FEW
@given(batches, windows, st.randoms())
def test_the_order_of_the_batch_changes_no_flat_shape(
    lens: list[tuple[int, int]], window: int | None, random: object
) -> None:
    order = list(range(len(lens)))
    random.shuffle(order)  # type: ignore[attr-defined]
    plans = [
        attention_plan(SMALL, [some[i][0] for i in range(len(some))], [some[i][1] for i in range(len(some))], window)
        for some in (lens, [lens[i] for i in order])
    ]
    assert plans[0].variants == plans[1].variants


def states(shapes: AttentionShapes, windows: tuple[int | None, ...], body: Ladder) -> Iterator[frozenset[Warmed]]:
    """What runs in every step that can be scheduled, as far as shapes can tell steps apart: each sequence alone, in
    every state; and decodes together, in every (number, total of blocks, most blocks)."""
    most = shapes.max_num_batched_tokens
    for query in range(1, min(most, shapes.max_model_len) + 1):
        for context in range(shapes.max_model_len - query + 1):
            yield step_variants(shapes, windows, body, [query], [context])
    for window in windows:
        at: dict[int, int] = {}
        for context in range(shapes.max_model_len):
            at.setdefault(active_blocks(1, context, window, shapes.block_size)[1], context)
        longest = max(at)
        for rows in range(1, min(most, shapes.max_num_seqs) + 1):
            for high in range(1, longest + 1):
                for total in range(rows + high - 1, rows * high + 1):
                    left, counts = total - high, [high]
                    for place in range(rows - 1):
                        take = min(high, left - (rows - 2 - place))
                        counts.append(take)
                        left -= take
                    yield step_variants(shapes, (window,), body, [1] * rows, [at[count] for count in counts])


CONFIGURATIONS = [
    pytest.param(
        {"block_size": 16, "max_model_len": 130, "max_num_seqs": 5, "max_num_batched_tokens": 40}, (None,), id="plain"
    ),
    pytest.param(
        {"block_size": 16, "max_model_len": 130, "max_num_seqs": 5, "max_num_batched_tokens": 40},
        (None, 33),
        id="two windows",
    ),
    pytest.param(
        {
            "block_size": 8,
            "max_model_len": 100,
            "max_num_seqs": 3,
            "max_num_batched_tokens": 100,
            "texts": LadderTexts(kv="24,40", query="2,7,30", sequences="2", entries="5,9,20"),
        },
        (20, 21),
        id="overridden",
    ),
    pytest.param(
        {"block_size": 64, "max_model_len": 50, "max_num_seqs": 2, "max_num_batched_tokens": 200},
        (None,),
        id="shorter than a block",
    ),
    pytest.param(
        {"block_size": 4, "max_model_len": 90, "max_num_seqs": 9, "max_num_batched_tokens": 10},
        (7,),
        id="deep and narrow",
    ),
]


@pytest.mark.parametrize(("limits", "windows"), CONFIGURATIONS)
@pytest.mark.parametrize("form", DecodeForm)
def test_every_schedulable_state_lands_on_a_warmed_variant_and_nothing_else_is_warmed(
    limits: dict[str, object], windows: tuple[int | None, ...], form: DecodeForm
) -> None:
    shapes = attention_shapes(**limits, decode=form)[0].for_pool(16)  # type: ignore[arg-type]
    body = Ladder({1, 4, shapes.max_num_batched_tokens})
    plan = warmup_plan(shapes, windows, body)
    reached = frozenset(chain.from_iterable(states(shapes, windows, body)))
    attention = {variant for variant in plan.variants if not isinstance(variant, BodyRows)}
    assert reached <= plan.variants
    assert attention <= reached
    assert len(plan.steps) == len(plan.variants)
    for step in plan.steps:
        assert step.warms in step_variants(
            shapes, (step.window,), body, step.query_lens, step.context_lens
        ) or isinstance(step.warms, BodyRows)
        assert sum(step.query_lens) <= step.body_rows


@FEW
@given(
    st.lists(st.tuples(st.integers(1, 600), st.integers(0, 33_000)), min_size=1, max_size=24),
    st.sampled_from([None, 512, 4096]),
    st.sampled_from(DecodeForm),
)
def test_steps_of_a_large_engine_are_warmed(lens: list[tuple[int, int]], window: int | None, form: DecodeForm) -> None:
    shapes, body, warmed = large(form, window)
    query: list[int] = []
    for rows, _ in lens:
        query.append(max(1, min(rows, 2048 - sum(query) - len(lens))))
    context = [min(tokens, 32_768 - rows) for rows, (_, tokens) in zip(query, lens, strict=True)]
    assert step_variants(shapes, (window,), body, query, context) <= warmed


_LARGE: dict[tuple[DecodeForm, int | None], tuple[AttentionShapes, Ladder, frozenset[Warmed]]] = {}


def large(form: DecodeForm, window: int | None) -> tuple[AttentionShapes, Ladder, frozenset[Warmed]]:
    if (form, window) not in _LARGE:
        shapes = attention_shapes(
            block_size=128, max_model_len=32_768, max_num_seqs=32, max_num_batched_tokens=2048, decode=form
        )[0]
        body = Ladder((1, 2, 4, 8, 16, 32, 512, 1024, 2048))
        _LARGE[form, window] = shapes, body, warmup_plan(shapes, (window,), body).variants
    return _LARGE[form, window]


def test_a_declared_body_that_no_step_reaches_is_skipped_and_reported() -> None:
    plan = warmup_plan(SMALL, (None,), Ladder((1, 40, 64, 128)))
    assert plan.skipped == (BodyRows(128),)
    assert {BodyRows(1), BodyRows(40), BodyRows(64)} == {v for v in plan.variants if isinstance(v, BodyRows)}


def test_the_number_of_variants_is_that_of_the_public_plugin_for_the_same_engine() -> None:
    """16 sequences of 8192 tokens: 7 chunks and 21 decodes; the public plugin has 14 and 21 (spyre contract 3.2)."""
    shapes = attention_shapes(block_size=128, max_model_len=8192, max_num_seqs=16, max_num_batched_tokens=512)[0]
    body = Ladder((1, 2, 4, 8, 16, 512))
    variants = warmup_plan(shapes, (None,), body).variants
    kinds = [type(variant) for variant in variants]
    assert (kinds.count(BodyRows), kinds.count(OneSequence), kinds.count(FlatDecode)) == (6, 7, 21)


@FEW
@given(st.integers(1, 64), st.integers(1, 300))
def test_entry_ladders_hold_their_limit_within_their_budget(sequences: int, longest: int) -> None:
    limit = sequences * longest + 1
    ladder = entry_sizes(limit, sequences)
    assert ladder.top == limit and len(ladder.sizes) <= 21 and ladder.sizes[0] >= 1


def test_ladders_come_from_the_environment_with_warnings() -> None:
    shapes, notes = attention_shapes(
        block_size=128,
        max_model_len=2048,
        max_num_seqs=4,
        max_num_batched_tokens=512,
        texts=LadderTexts(kv="512,4096", query="64,512", sequences="2,4", entries="8,65"),
    )
    assert (shapes.blocks.sizes, shapes.query.sizes) == ((4, 16), (64, 512))
    assert (shapes.sequences.sizes, shapes.entries.sizes) == ((2, 4), (8, 65))
    assert notes == (
        "SPYRE_ATTN_KV_BUCKETS: 4096 above the limit of 2048 left out",
        "SPYRE_ATTN_KV_BUCKETS: 2048 added, since a step can be that long",
    )


@FEW
@given(st.integers(2, 600), st.sampled_from(DecodeForm))
def test_no_kernel_gathers_as_many_rows_as_its_source_has(pool: int, form: DecodeForm) -> None:
    shapes = attention_shapes(block_size=16, max_model_len=256, max_num_seqs=6, max_num_batched_tokens=48, decode=form)[
        0
    ].for_pool(pool)
    for variant in warmup_plan(shapes, (None,), Ladder((48,))).variants:
        if isinstance(variant, FlatDecode):
            groups = shapes.groups(variant)
            assert variant.entries not in (pool, variant.sequences)
            assert groups * shapes.radix != variant.entries and variant.sequences * shapes.radix != groups
        elif isinstance(variant, RectangularDecode):
            assert variant.sequences * variant.blocks not in (pool, variant.sequences)
        elif isinstance(variant, OneSequence):
            assert variant.blocks != pool
