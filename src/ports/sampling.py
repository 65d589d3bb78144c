"""How a request wants its tokens chosen, and where that can be done."""
from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs


class HostReason(enum.Enum):
    """Why a row's token is chosen on the host. The value is the phrase shown to people."""

    NO_DEVICE_SAMPLER = "sample_on_device_mode is not set"
    PREFILL_ON_HOST = "sample_on_device_mode is decode_only and this is a prefill"
    LOGPROBS = "logprobs"
    MIN_P = "min_p"
    LOGIT_BIAS = "logit_bias"
    MIN_TOKENS = "min_tokens"
    BAD_WORDS = "bad_words"
    ALLOWED_TOKEN_IDS = "allowed_token_ids"
    GRAMMAR = "structured output"
    CUSTOM_PROCESSORS = "custom logits processors"
    PENALTIES = "penalties"
    SEED = "seed"
    TOP_K = "top_k outside the device sampler's range"
    NEIGHBOUR = "another row of the batch needs the host"


@attrs.frozen(kw_only=True)
class SamplingTraits:
    """What of a request's sampling parameters decides where it can be sampled. Neutral by default."""

    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 or less: off."""
    top_p: float = 1.0
    seed: int | None = None
    logprobs: int | None = None
    """None: not asked for. 0 is a real request (the sampled token's own)."""
    min_p: bool = False
    logit_bias: bool = False
    min_tokens: bool = False
    bad_words: bool = False
    allowed_token_ids: bool = False
    grammar: bool = False
    penalties: bool = False
    custom_processors: bool = False

    @property
    def greedy(self) -> bool:
        # vLLM treats a temperature below 1e-5 as greedy (v1/sample/sampler.py).
        return self.temperature < 1e-5


@attrs.frozen(kw_only=True)
class DeviceSampling:
    """One row's parameters as they go over the wire (contract 3.8). ``top_k`` is within the vocabulary."""

    temperature: float = 0.0
    top_k: int = 1
    top_p: float = 1.0
    seed: int | None = None


class SampleOnDevice(enum.Enum):
    """The operator's ``sample_on_device_mode``."""

    OFF = "off"
    ALL = "all"
    DECODE_ONLY = "decode_only"


@attrs.frozen(kw_only=True)
class SamplingPath:
    """Where each token-emitting row of one step is sampled. Decided once, carried in the plan.

    ``host`` holds indices into those rows, ascending; every other one is sampled on the device.
    ``reasons`` counts the host rows by reason (a row counts once, under its first reason).
    """

    num_rows: int
    host: tuple[int, ...] = ()
    reasons: Mapping[HostReason, int] = attrs.field(factory=dict)

    @property
    def all_device(self) -> bool:
        return not self.host

    @property
    def all_host(self) -> bool:
        return len(self.host) == self.num_rows

    @property
    def num_device(self) -> int:
        return self.num_rows - len(self.host)
