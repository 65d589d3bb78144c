"""Reading sampling parameters off the wire, strictly (contract 3.8)."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .rules import Rule, RuleBroken
from .sampler import GREEDY_BELOW, RowSampling


class WireSampling(Protocol):
    """What of tt-metal's TTSamplingParams the device reads: lists of one value a row."""

    @property
    def temperature(self) -> Sequence[float]: ...
    @property
    def top_k(self) -> Sequence[int]: ...
    @property
    def top_p(self) -> Sequence[float]: ...
    @property
    def presence_penalty(self) -> Sequence[float]: ...
    @property
    def frequency_penalty(self) -> Sequence[float]: ...
    @property
    def repetition_penalty(self) -> Sequence[float]: ...
    @property
    def seed(self) -> Sequence[int | None]: ...


def read_sampling(params: WireSampling, rows: int, *, vocab_size: int, max_top_k: int) -> RowSampling:
    """Copy and check ``params`` of ``rows`` rows. Raises :class:`RuleBroken`."""
    for field, values in (
        ("temperature", params.temperature),
        ("top_k", params.top_k),
        ("top_p", params.top_p),
        ("seed", params.seed),
        ("presence_penalty", params.presence_penalty),
        ("frequency_penalty", params.frequency_penalty),
        ("repetition_penalty", params.repetition_penalty),
    ):
        if not isinstance(values, list):
            raise RuleBroken(Rule.SAMPLING_WIRE, f"{field} is a {type(values).__name__}, not a list")
        if len(values) != rows:
            raise RuleBroken(Rule.SAMPLING_WIRE, f"{field} has {len(values)} values for {rows} rows")
    temperature = np.asarray(params.temperature, np.float64)
    top_k = np.asarray(params.top_k, np.int64)
    top_p = np.asarray(params.top_p, np.float64)
    _require("temperature", np.isfinite(temperature) & (temperature >= 0), params.temperature)
    _require("top_k", (top_k >= 1) & (top_k <= vocab_size), params.top_k)
    _require("top_p", (top_p >= 0) & (top_p <= 1), params.top_p)
    for row, seed in enumerate(params.seed):
        # -1 is the persistent batch's "no seed"; on the wire that is None.
        if seed is not None and (isinstance(seed, bool) or seed == -1 or not -(2**63) <= seed < 2**63):
            raise RuleBroken(Rule.SAMPLING_WIRE, f"row {row} has seed {seed!r}")
    penalised = (
        (np.asarray(params.presence_penalty) != 0)
        | (np.asarray(params.frequency_penalty) != 0)
        | (np.asarray(params.repetition_penalty) != 1)
    )
    if penalised.any():
        row = int(np.argmax(penalised))
        raise RuleBroken(Rule.SAMPLING_WIRE, f"row {row} has a penalty and the model declares no device penalties")
    too_many = (temperature >= GREEDY_BELOW) & (top_k > max_top_k)
    if too_many.any():
        row = int(np.argmax(too_many))
        raise RuleBroken(Rule.DEVICE_TOP_K, f"row {row} has top_k {int(top_k[row])}, the device keeps {max_top_k}")
    return RowSampling(temperature=temperature, top_k=top_k, top_p=top_p, seeds=tuple(params.seed))


def require_neutral(sampling: RowSampling, inactive: npt.NDArray[np.bool_]) -> None:
    """Rows of ``inactive`` (bool [B]) carry the defaults: temperature 0, top_k 1, top_p 1, no seed."""
    odd = inactive & ((sampling.temperature != 0) | (sampling.top_k != 1) | (sampling.top_p != 1))
    seeded = np.fromiter((seed is not None for seed in sampling.seeds), bool, len(sampling.seeds))
    odd |= inactive & seeded
    if odd.any():
        raise RuleBroken(Rule.NOT_NEUTRAL, f"row {int(np.argmax(odd))} is inactive and has sampling parameters")


def _require(field: str, good: npt.NDArray[np.bool_], values: Sequence[object]) -> None:
    if not good.all():
        row = int(np.argmin(good))
        raise RuleBroken(Rule.SAMPLING_WIRE, f"row {row} has {field} {values[row]!r}")
