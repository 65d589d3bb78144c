"""Ladders: how lengths round up, and the shapes of ladder the field asks for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepshape.domain.buckets import (
    Ladder,
    block_counts,
    body_sizes,
    doubling,
    gapped,
    geometric,
    overridden,
    padded,
    query_sizes,
    ramped,
    volume,
    within_volume,
)

FEW = settings(max_examples=30)
"""The laws are cheap, but they run with every other unit test."""

ladders = st.sets(st.integers(1, 5000), min_size=1, max_size=30).map(Ladder)


@FEW
@given(ladders, st.integers(0, 6000))
def test_a_length_takes_the_smallest_size_that_holds_it(ladder: Ladder, amount: int) -> None:
    fitting = [size for size in ladder.sizes if size >= amount]
    assert ladder.fit(amount) == (min(fitting) if fitting else None)


@FEW
@given(ladders)
def test_the_least_of_a_size_is_the_smallest_length_that_lands_on_it(ladder: Ladder) -> None:
    for size in ladder.sizes:
        least = ladder.least(size)
        assert ladder.fit(least) == size
        assert least == 1 or ladder.fit(least - 1) != size


@FEW
@given(ladders, st.sets(st.integers(1, 5000), max_size=20))
def test_an_avoiding_ladder_holds_as_much_and_nothing_barred(ladder: Ladder, taken: set[int]) -> None:
    other = ladder.avoiding(taken)
    assert len(other.sizes) == len(ladder.sizes) and not taken & set(other.sizes)
    assert all(mine >= theirs for mine, theirs in zip(other.sizes, ladder.sizes, strict=True))


def test_sizes_are_sorted_and_each_stands_once() -> None:
    assert Ladder((4, 1, 4)).sizes == (1, 4)
    with pytest.raises(ValueError, match="at least one size"):
        Ladder(())
    with pytest.raises(ValueError, match="zero or more"):
        Ladder((-1, 2))


def test_field_case_38_a_batch_takes_the_nearest_declared_size() -> None:
    declared = Ladder((1, 8, 32))
    assert [declared.fit(users) for users in (1, 2, 9, 32, 33)] == [1, 8, 32, 32, None]


def test_field_case_40_the_volume_holds_at_every_step_to_come_with_a_block_of_slack() -> None:
    limit = volume(4, 1024, 64)
    assert limit == 4 * 1088
    assert within_volume(limit, [1024, 1024, 10, 1], 64)
    assert within_volume(limit, [1020] * 4, 64)
    assert not within_volume(limit, [1025, 1, 1, 1], 64)
    assert not within_volume(limit, [1024] * 5, 64)
    assert within_volume(0, [], 64)


@FEW
@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 500)), min_size=1, max_size=8), st.integers(1, 40_000))
def test_what_is_admitted_by_its_last_step_never_breaks_the_volume_before(
    rows: list[tuple[int, int]], limit: int
) -> None:
    if within_volume(limit, [prompt + outputs for prompt, outputs in rows], 64):
        for step in range(max(outputs for _, outputs in rows) + 1):
            now = [prompt + min(step, outputs) for prompt, outputs in rows]
            assert -(-max(now) // 64) * 64 * len(rows) + 64 * len(rows) <= limit


def test_field_case_41_linear_and_padded_ladders() -> None:
    assert ramped(2, 32, 64).sizes == (2, 4, 8, 16, 32, 64)
    assert padded(0, 8, 64, most=16, percent=50).sizes == (0, 1, 2, 4, 8, 16, 32, 48, 64)


@FEW
@given(st.integers(1, 64), st.integers(1, 4000), st.integers(1, 300), st.integers(0, 90))
def test_a_padded_ladder_keeps_its_bounds_where_its_step_allows(step: int, top: int, most: int, percent: int) -> None:
    sizes = padded(0, step, top, most=most, percent=percent).sizes
    assert sizes[-1] == top
    for below, size in pairwise(sizes):
        if size > step and size - below > step:
            assert size - below <= most
            assert (size - below - 1) * 100 <= percent * size


def test_field_case_42_a_maximum_gap() -> None:
    assert gapped(512, 64).fit(300) == 320
    assert gapped(512, 64).sizes == (16, 32, 64, 128, 192, 256, 320, 384, 448, 512)


def test_the_ladders_of_the_contract() -> None:
    assert doubling(2048, 128).sizes == (128, 256, 512, 1024, 2048)
    assert doubling(3000, 100).sizes == (128, 256, 512, 1024, 2048, 3000)
    assert doubling(6, 1).sizes == (1, 2, 4, 6)
    assert body_sizes(512, 4).sizes == (1, 2, 4, 512)
    assert body_sizes(512, 16).sizes == (1, 2, 4, 8, 16, 512)
    assert body_sizes(512, 6).sizes == (1, 2, 4, 6, 512)
    assert body_sizes(2048, 16).top == 512
    assert query_sizes(512).sizes == (1, 512)
    assert query_sizes(2048).sizes == (1, 512, 1024, 1536, 2048)
    assert query_sizes(700).sizes == (1, 512, 700)
    assert block_counts(doubling(8192, 128), 128).sizes == (1, 2, 4, 8, 16, 32, 64)
    with pytest.raises(ValueError, match="the limit is 1 or more"):
        doubling(0)


@FEW
@given(st.integers(1, 40_000), st.integers(1, 40), st.integers(1, 50))
def test_a_geometric_ladder_ends_at_its_limit_within_its_number(limit: int, count: int, start: int) -> None:
    sizes = geometric(limit, count, start).sizes
    assert sizes[-1] == limit and len(sizes) <= count


def test_an_override_is_read_cut_and_topped() -> None:
    assert overridden("X", "512, 128", 512) == (Ladder((128, 512)), ())
    ladder, notes = overridden("X", "64,4096", 512)
    assert ladder.sizes == (64, 512)
    assert notes == ("X: 4096 above the limit of 512 left out", "X: 512 added, since a step can be that long")


@pytest.mark.parametrize("text", ["", ",", "0", "4,-1", "four", "1.5"])
def test_an_override_that_is_no_ladder_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a ladder; give whole numbers"):
        overridden("X", text, 512)
