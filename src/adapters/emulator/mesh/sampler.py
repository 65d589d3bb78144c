"""The device's sampler: greedy, or temperature, top-k and top-p over at most 32 candidates a row.

Which random number a seeded row uses depends on its seed and on the position of the token being sampled, and
on nothing else. The n-th token of a request stands at position prompt_length + n in every batch mix, chunking
or replay after a preemption, so the device needs no counter and a slot no state. Unseeded rows draw from the
device's own generator.
"""
from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt
import torch

GREEDY_BELOW = 1e-5
MAX_CANDIDATES = 32


@attrs.frozen(kw_only=True, eq=False)
class RowSampling:
    """One entry a row, checked. ``seeds[i]`` None: unseeded."""

    temperature: npt.NDArray[np.float64]
    top_k: npt.NDArray[np.int64]
    top_p: npt.NDArray[np.float64]
    seeds: tuple[int | None, ...]

    def greedy(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return self.temperature[rows] < GREEDY_BELOW


def seeded_uniform(seed: int, position: int) -> float:
    """A number in [0, 1) from (seed, position) alone: two rounds of splitmix64."""
    state = _mix((seed & _MASK) ^ _mix((position + 1) & _MASK))
    return (state >> 11) * 2.0**-53


_MASK = (1 << 64) - 1


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def sample(
    logits: torch.Tensor,
    sampling: RowSampling,
    rows: npt.NDArray[np.int64],
    positions: Sequence[int] | npt.NDArray[np.int64],
    generator: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """One token a row of ``logits`` float32 [K, V]. ``rows`` int64 [K] index ``sampling``; ``positions`` [K] are
    the positions of the tokens being sampled. Returns int64 [K]."""
    tokens = torch.argmax(logits, dim=-1).numpy()
    drawn = np.flatnonzero(~sampling.greedy(rows))
    if not len(drawn):
        return tokens
    tokens = tokens.copy()
    width = min(MAX_CANDIDATES, logits.shape[-1])
    values, candidates = torch.topk(logits[torch.from_numpy(drawn)], width, dim=-1)
    for index, scores, ids in zip(drawn.tolist(), values.double().numpy(), candidates.numpy(), strict=True):
        row = int(rows[index])
        seed = sampling.seeds[row]
        draw = generator.random() if seed is None else seeded_uniform(seed, int(positions[index]))
        chances = nucleus(
            scores, float(sampling.temperature[row]), int(sampling.top_k[row]), float(sampling.top_p[row])
        )
        tokens[index] = ids[min(int(np.searchsorted(np.cumsum(chances), draw, side="right")), len(chances) - 1)]
    return tokens


def nucleus(scores: npt.NDArray[np.float64], temperature: float, top_k: int, top_p: float) -> npt.NDArray[np.float64]:
    """Chances of the leading candidates that top-k and top-p leave, from descending ``scores``; they sum to 1.

    The candidate that carries the cumulative chance over ``top_p`` is kept, so at least one always is.
    """
    scaled = scores[: max(top_k, 1)] / temperature
    chances = np.exp(scaled - scaled[0])
    chances /= chances.sum()
    kept = int(np.searchsorted(np.cumsum(chances), top_p, side="left")) + 1
    chances = chances[:kept]
    return np.asarray(chances / chances.sum(), np.float64)
