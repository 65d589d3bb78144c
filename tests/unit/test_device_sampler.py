from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stepshape.adapters.emulator.mesh.sampler import RowSampling, nucleus, sample, seeded_uniform


def sampling(rows: list[tuple[float, int, float, int | None]]) -> RowSampling:
    return RowSampling(
        temperature=np.array([row[0] for row in rows]),
        top_k=np.array([row[1] for row in rows]),
        top_p=np.array([row[2] for row in rows]),
        seeds=tuple(row[3] for row in rows),
    )


def draw(logits: torch.Tensor, rows: RowSampling, positions: list[int], seed: int = 0) -> list[int]:
    out: npt.NDArray[np.int64] = sample(
        logits, rows, np.arange(len(logits)), positions, np.random.default_rng(seed)
    )
    return [int(token) for token in out]


def test_greedy_takes_the_first_of_the_largest() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0], [5.0, 0.0, 0.0, 0.0]])
    assert draw(logits, sampling([(0.0, 1, 1.0, None)] * 2), [1, 1]) == [1, 0]


@pytest.mark.parametrize(("top_k", "top_p"), [(1, 1.0), (32, 0.0), (1, 0.0)])
def test_one_candidate_leaves_no_choice(top_k: int, top_p: float) -> None:
    logits = torch.randn(64, 50)
    hot = sampling([(2.0, top_k, top_p, None)] * 64)
    assert draw(logits, hot, [3] * 64) == logits.argmax(-1).tolist()


def test_frequencies_follow_the_chances() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -50.0]]).expand(4000, 4)
    counts = Counter(draw(logits, sampling([(1.0, 3, 1.0, seed) for seed in range(4000)]), [7] * 4000))
    chances = torch.softmax(logits[0, :3], -1)
    assert set(counts) == {0, 1, 2}
    for token in range(3):
        assert counts[token] / 4000 == pytest.approx(float(chances[token]), abs=0.03)


def test_a_seeded_draw_depends_on_seed_and_position_alone() -> None:
    logits = torch.zeros(1, 32).expand(6, 32)
    rows = [(1.0, 32, 1.0, 5)] * 2 + [(1.0, 32, 1.0, None), (1.0, 32, 1.0, 6), (1.0, 32, 1.0, 5), (1.0, 32, 1.0, -9)]
    first = draw(logits, sampling(rows), [10, 10, 10, 10, 11, 10], seed=1)
    again = draw(logits, sampling(rows), [10, 10, 10, 10, 11, 10], seed=2)
    assert first[0] == first[1] == again[0]
    assert first[3:] == again[3:]
    assert len({first[0], first[3], first[4], first[5]}) > 1


def test_unseeded_rows_differ() -> None:
    logits = torch.zeros(1, 32).expand(16, 32)
    assert len(set(draw(logits, sampling([(1.0, 32, 1.0, None)] * 16), [4] * 16))) > 4


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**20))
def test_seeded_numbers_are_in_range_and_repeat(seed: int, position: int) -> None:
    number = seeded_uniform(seed, position)
    assert 0 <= number < 1
    assert number == seeded_uniform(seed, position)


@given(
    st.lists(st.floats(-30, 30), min_size=1, max_size=32),
    st.floats(0.01, 5),
    st.integers(1, 40),
    st.floats(0, 1),
)
def test_the_nucleus_is_the_least_that_reaches_top_p(
    scores: list[float], temperature: float, top_k: int, top_p: float
) -> None:
    ordered = np.sort(np.array(scores))[::-1]
    chances = nucleus(ordered, temperature, top_k, top_p)
    assert 1 <= len(chances) <= min(top_k, len(scores))
    assert chances.sum() == pytest.approx(1)
    assert (np.diff(chances) <= 0).all()
    full = np.exp((ordered[:top_k] - ordered[0]) / temperature)
    full /= full.sum()
    assert len(chances) == len(full) or full[: len(chances)].sum() >= top_p - 1e-9
    assert len(chances) == 1 or full[: len(chances) - 1].sum() < top_p + 1e-9
