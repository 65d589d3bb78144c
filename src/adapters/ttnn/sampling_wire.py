"""Sampling parameters as a tt-metal model reads them (contract 3.8)."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...ports.sampling import DeviceSampling

NO_LOGPROBS = -2


@dataclass(frozen=True)
class TTSamplingParams:
    """Lists of one value a row. A plain dataclass: tt-metal copies it with ``dataclasses.replace``."""

    temperature: list[float]
    top_k: list[int]
    top_p: list[float]
    presence_penalty: list[float] = field(default_factory=list)
    frequency_penalty: list[float] = field(default_factory=list)
    repetition_penalty: list[float] = field(default_factory=list)
    seed: list[int | None] = field(default_factory=list)
    num_logprobs: list[int] = field(default_factory=list)
    enable_log_probs: list[bool] = field(default_factory=list)


def to_wire(rows: Sequence[DeviceSampling]) -> TTSamplingParams:
    """The wire form of ``rows``, penalties neutral and no log probabilities."""
    count = len(rows)
    return TTSamplingParams(
        temperature=[row.temperature for row in rows],
        top_k=[row.top_k for row in rows],
        # The device keeps 32 candidates whatever top_k says; only top_p 0 leaves a single one (contract 3.8).
        top_p=[0.0 if row.top_k == 1 and row.temperature > 0 else row.top_p for row in rows],
        presence_penalty=[0.0] * count,
        frequency_penalty=[0.0] * count,
        repetition_penalty=[1.0] * count,
        seed=[row.seed for row in rows],
        num_logprobs=[NO_LOGPROBS] * count,
        enable_log_probs=[False] * count,
    )
