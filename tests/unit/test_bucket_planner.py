"""The planner's ladder is the best there is, and counts of padding are what they say."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepshape.domain.bucket_planner import padded_total, plan_ladder
from stepshape.domain.buckets import Ladder
from stepshape.domain.simulator import continuous_batching

FEW = settings(max_examples=30)
"""The laws are cheap, but they run with every other unit test."""

histograms = st.dictionaries(st.integers(1, 40), st.integers(1, 9), min_size=1, max_size=8)


@FEW
@given(histograms, st.integers(1, 5), st.sampled_from([1, 4]))
def test_no_other_ladder_of_the_budget_pads_less(histogram: dict[int, int], budget: int, multiple: int) -> None:
    top = 48
    planned = plan_ladder(histogram, budget, top=top, multiple=multiple)
    assert len(planned.sizes) <= budget and planned.top == top
    assert all(size % multiple == 0 for size in planned.sizes[:-1])
    candidates = sorted({-(-length // multiple) * multiple for length in histogram} - {top})
    best = min(
        padded_total(histogram, Ladder({*sizes, top}))
        for count in range(budget)
        for sizes in combinations(candidates, count)
    )
    assert padded_total(histogram, planned) == best


@FEW
@given(histograms, st.integers(1, 7))
def test_a_larger_budget_never_pads_more(histogram: dict[int, int], budget: int) -> None:
    fewer, more = (plan_ladder(histogram, n, top=48) for n in (budget, budget + 1))
    assert padded_total(histogram, more) <= padded_total(histogram, fewer)


@FEW
@given(histograms)
def test_a_dear_step_is_spared(histogram: dict[int, int]) -> None:
    """Under a cost that jumps at 20, lengths up to 20 never run at a size above it while the budget allows two."""
    planned = plan_ladder(histogram, 2, top=48, cost=lambda size: 1.0 if size <= 20 else 1000.0)
    short = [length for length in histogram if length <= 20]
    assert not short or (planned.fit(max(short)) or 0) <= 20


def test_a_thousand_lengths_and_a_budget_of_21_are_planned_at_once() -> None:
    histogram = {length: 1 + (length * 7919) % 13 for length in range(1, 1025)}
    planned = plan_ladder(histogram, 21, top=1025)
    assert len(planned.sizes) == 21
    even = Ladder(range(49, 1026, 49)).sizes
    assert padded_total(histogram, planned) <= padded_total(histogram, Ladder({*even[:20], 1025}))


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(ValueError, match="allow 1 or more"):
        plan_ladder({1: 1}, 0, top=4)
    with pytest.raises(ValueError, match="raise the top"):
        plan_ladder({5: 1}, 2, top=4)
    with pytest.raises(ValueError, match="raise the top"):
        padded_total({5: 1}, Ladder((4,)))


@FEW
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9)), min_size=1, max_size=12),
    st.integers(1, 5),
    st.integers(5, 40),
)
def test_simulated_steps_compute_every_token_once_within_the_limits(
    requests: list[tuple[int, int]], rows: int, budget: int
) -> None:
    computed = 0
    for step in continuous_batching(requests, max_num_seqs=rows, max_num_batched_tokens=budget):
        assert 1 <= len(step.query_lens) <= rows and 1 <= sum(step.query_lens) <= budget
        computed += sum(step.query_lens)
    assert computed == sum(prompt + outputs - 1 for prompt, outputs in requests)
