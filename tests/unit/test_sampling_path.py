"""Host or device, per row where the model can, with the reasons."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepshape.domain.seeds import token_seed
from stepshape.ports.capabilities import CapabilityError, ModelCapabilities, read_capabilities
from stepshape.ports.sampling import DeviceSampling, HostReason, SampleOnDevice, SamplingTraits
from stepshape.ports.step import Phase

from ..builders import ABLE, GREEDY, sampling_rules

BATCHED = attrs.evolve(ABLE, supports_tokens_and_logits=False)


@pytest.mark.parametrize(
    ("traits", "reason"),
    [
        ({}, HostReason.TOP_K),  # temperature 1 over the whole vocabulary: more than 32 candidates
        ({"top_k": 20}, None),
        ({"top_k": 32, "top_p": 0.9}, None),
        ({"top_k": 33}, HostReason.TOP_K),
        ({"top_p": 0.9, "top_k": 128256}, HostReason.TOP_K),  # field case 13
        ({"temperature": 0.0}, None),
        ({"temperature": 0.0, "top_k": 500}, None),
        ({"temperature": 0.0, "min_p": True}, None),  # min_p never removes the best token
        ({"top_k": 5, "min_p": True}, HostReason.MIN_P),
        ({"top_k": 5, "seed": 7}, None),
        ({"temperature": 0.0, "logprobs": 0}, HostReason.LOGPROBS),  # 0 is a request, None is none
        ({"temperature": 0.0, "grammar": True}, HostReason.GRAMMAR),
        ({"temperature": 0.0, "penalties": True}, HostReason.PENALTIES),
        ({"temperature": 0.0, "bad_words": True}, HostReason.BAD_WORDS),
        ({"temperature": 0.0, "logit_bias": True}, HostReason.LOGIT_BIAS),
        ({"temperature": 0.0, "min_tokens": True}, HostReason.MIN_TOKENS),
        ({"temperature": 0.0, "allowed_token_ids": True}, HostReason.ALLOWED_TOKEN_IDS),
        ({"temperature": 0.0, "custom_processors": True}, HostReason.CUSTOM_PROCESSORS),
    ],
)
def test_why_a_request_needs_the_host(traits: dict[str, Any], reason: HostReason | None) -> None:
    assert sampling_rules().own_reason(SamplingTraits(**traits)) is reason


def test_a_greedy_only_device_sends_every_random_row_to_the_host() -> None:
    rules = sampling_rules(attrs.evolve(ABLE, max_device_top_k=1))
    assert rules.own_reason(SamplingTraits(top_k=5)) is HostReason.TOP_K
    assert rules.own_reason(SamplingTraits(top_k=1)) is None
    assert rules.own_reason(GREEDY) is None


def test_a_seeded_request_keeps_one_path_for_life() -> None:
    """On the device only where no neighbour and no phase can change its path."""
    seeded = SamplingTraits(top_k=5, seed=1)
    assert sampling_rules().own_reason(seeded) is None
    assert sampling_rules(BATCHED).own_reason(seeded) is HostReason.SEED
    assert sampling_rules(mode=SampleOnDevice.DECODE_ONLY).own_reason(seeded) is HostReason.SEED
    assert sampling_rules(attrs.evolve(ABLE, supports_device_seeds=False)).own_reason(seeded) is HostReason.SEED


def test_one_host_row_does_not_move_its_neighbours() -> None:
    own = [None] * 31 + [HostReason.MIN_P]
    path = sampling_rules().path(Phase.DECODE, own)
    assert (path.host, path.num_device) == ((31,), 31)
    assert not path.all_device and not path.all_host


def test_where_a_step_returns_one_kind_the_batch_goes_together() -> None:
    path = sampling_rules(BATCHED).path(Phase.DECODE, [None, HostReason.MIN_P, None])
    assert path.all_host
    assert dict(path.reasons) == {HostReason.MIN_P: 1, HostReason.NEIGHBOUR: 2}


def test_modes() -> None:
    off = sampling_rules(mode=SampleOnDevice.OFF).path(Phase.DECODE, [None, HostReason.GRAMMAR])
    assert off.all_host and dict(off.reasons) == {HostReason.NO_DEVICE_SAMPLER: 2}
    decode_only = sampling_rules(mode=SampleOnDevice.DECODE_ONLY)
    assert decode_only.path(Phase.PREFILL, [None]).all_host
    assert decode_only.path(Phase.DECODE, [None]).all_device


def test_on_the_wire() -> None:
    rules = sampling_rules(vocab_size=1000)
    assert rules.wire(GREEDY) == DeviceSampling(temperature=0.0, top_k=1, top_p=1.0, seed=None)
    # top_k=1 is exact greedy whatever its top_p, temperature and seed (contract 8.31).
    assert rules.wire(SamplingTraits(top_k=1, top_p=0.5, seed=3)) == rules.wire(GREEDY)
    assert rules.wire(SamplingTraits(top_k=0)).top_k == 1000
    assert rules.wire(SamplingTraits(top_k=5000)).top_k == 1000
    assert rules.wire(SamplingTraits(temperature=0.5, top_k=7, top_p=0.9, seed=3)) == DeviceSampling(
        temperature=0.5, top_k=7, top_p=0.9, seed=3
    )


reasons = st.one_of(st.none(), st.sampled_from(list(HostReason)))


@given(own=st.lists(reasons, max_size=12), phase=st.sampled_from([Phase.PREFILL, Phase.DECODE]))
def test_every_row_has_one_path_and_host_rows_are_counted(own: list[HostReason | None], phase: Phase) -> None:
    for capabilities in (ABLE, BATCHED):
        for mode in SampleOnDevice:
            path = sampling_rules(capabilities, mode).path(phase, own)
            assert path.num_device + len(path.host) == len(own)
            assert sum(path.reasons.values()) == len(path.host)
            assert list(path.host) == sorted(set(path.host))
            for i, reason in enumerate(own):
                if reason is not None:  # what needs the host never lands on the device
                    assert i in path.host


@given(seed=st.integers(-(2**63), 2**64), n=st.integers(0, 10_000))
def test_token_seeds_are_valid_and_differ(seed: int, n: int) -> None:
    value = token_seed(seed, n)
    assert 0 <= value < 2**63
    assert value != token_seed(seed, n + 1)
    assert value != token_seed(seed + 1, n)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"supports_async_decode": "yes"}, "is 'yes', not a bool"),
        ({"supports_async_decode": 1}, "is 1, not a bool"),
        ({"max_device_top_k": 0}, "declare None or an int >= 1"),
        ({"lane_counts": (1, "2")}, "declare a tuple of ints"),
        ([], "declare a dict"),
    ],
)
def test_a_declaration_that_cannot_be_read_is_named(declared: Any, message: str) -> None:
    """Field case 13: a capability that is not a bool fails at start."""
    with pytest.raises(CapabilityError, match=message):
        read_capabilities(declared, "Model")


def test_capabilities_default_to_nothing_and_keep_unknown_names() -> None:
    assert read_capabilities(None, "Model") == ModelCapabilities()
    read = read_capabilities({"supports_async_decode": True, "lane_counts": [4, 1, 2], "novel": 1}, "Model")
    assert read == ModelCapabilities(supports_async_decode=True, lane_counts=(1, 2, 4), unknown=("novel",))
