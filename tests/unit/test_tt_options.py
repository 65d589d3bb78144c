from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepshape.domain.tt_options import (
    LAUNCHER_KEYS,
    DispatchCoreAxis,
    OptionsError,
    TraceMode,
    TTOptions,
    read_tt_options,
)
from stepshape.ports.sampling import SampleOnDevice


def read(**options: Any) -> TTOptions:
    return read_tt_options({"tt": options})


def problems(**options: Any) -> tuple[str, ...]:
    with pytest.raises(OptionsError) as caught:
        read(**options)
    return caught.value.problems


def test_nothing_given_is_the_contracts_defaults() -> None:
    options = read_tt_options({})
    assert options == TTOptions() == read_tt_options({"tt": {}, "other": 1})
    assert options.sampler is SampleOnDevice.OFF
    assert (options.trace_mode, options.trace_region_size, options.enable_model_warmup) == (
        TraceMode.ALL,
        50_000_000,
        True,
    )
    assert (options.decode_interleave_prefill_steps, options.decode_interleave_decode_steps) == (2, 1)


def test_every_kind_of_value_is_read() -> None:
    options = read(
        sample_on_device_mode="decode_only",
        trace_mode="none",
        trace_region_size=220_000_000,
        dispatch_core_axis="col",
        fabric_config="FABRIC_1D",
        enable_model_warmup=False,
        decode_interleave_decode_steps=2,
    )
    assert options.sample_on_device_mode is SampleOnDevice.DECODE_ONLY
    assert options.trace_mode is TraceMode.NONE
    assert options.trace_region_size == 220_000_000
    assert options.dispatch_core_axis is DispatchCoreAxis.COL
    assert options.fabric_config == "FABRIC_1D"
    assert not options.enable_model_warmup
    assert options.decode_interleave_decode_steps == 2


def test_always_compat_sampling_puts_every_row_on_the_host() -> None:
    options = read(sample_on_device_mode="all", always_compat_sampling=True)
    assert options.sample_on_device_mode is SampleOnDevice.ALL
    assert options.sampler is SampleOnDevice.OFF


def test_an_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    assert problems(sample_on_device="all") == (
        "additional_config.tt has no option 'sample_on_device'; did you mean sample_on_device_mode?",
    )
    (far,) = problems(zzzz=1)
    assert far.startswith("additional_config.tt has no option 'zzzz'; the options are always_compat_sampling, ")


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("trace_region_size", "5", "is '5' (str), not an int; use a whole number >= 0"),
        ("trace_region_size", True, "is True (bool), not an int; use a whole number >= 0"),
        ("decode_interleave_prefill_steps", 0, "is 0, below 1; use a whole number >= 1"),
        ("enable_model_warmup", 1, "is 1 (int), not a bool; use true or false"),
        ("always_compat_sampling", None, "is None (NoneType), not a bool; use true or false"),
        ("trace_mode", "some", "is 'some'; use one of all, decode_only, none"),
        ("trace_mode", 3, "is 3 (int), not a str; use one of all, decode_only, none"),
        ("sample_on_device_mode", "off", "is 'off'; use one of all, decode_only"),
        ("fabric_config", "", "is empty; use a name or leave the option out"),
        ("optimizations", "speed", "is 'speed'; use one of performance, accuracy"),
    ],
)
def test_a_wrong_value_is_refused_naming_its_type(key: str, value: Any, sentence: str) -> None:
    assert problems(**{key: value}) == (f"additional_config.tt.{key} {sentence}",)


def test_all_problems_are_named_at_once() -> None:
    assert len(problems(trace_mode="x", nonsense=1, worker_l1_size=-1)) == 3


@pytest.mark.parametrize("key", LAUNCHER_KEYS)
def test_launcher_options_say_that_multi_host_is_to_come(key: str) -> None:
    (sentence,) = problems(**{key: "x"})
    assert sentence.startswith(f"additional_config.tt.{key}: multi-host launch is not supported yet; ")


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (["tt"], "additional_config is a list, not a dict; pass a JSON object"),
        ({"tt": "all"}, "additional_config.tt is a str, not a dict; pass a JSON object"),
    ],
)
def test_a_section_of_the_wrong_shape_is_refused(config: Any, sentence: str) -> None:
    with pytest.raises(OptionsError) as caught:
        read_tt_options(config)
    assert caught.value.problems == (sentence,)


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.text() | st.sampled_from(["trace_mode", "worker_l1_size", "fabric_config", "decode_interleave_enabled"]),
        st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers()),
    )
)
def test_reading_either_gives_options_or_a_sentence_for_each_bad_key(section: dict[str, Any]) -> None:
    found: tuple[str, ...] = ()
    try:
        read_tt_options({"tt": section})
    except OptionsError as error:
        found = error.problems
    assert len(found) <= len(section)
    assert all(problem.startswith("additional_config.tt") for problem in found)
    assert bool(found) or set(section) <= {field.name for field in attrs.fields(TTOptions)}


@pytest.mark.parametrize("key", ["TT", "tt.sample_on_device_mode", "Tt"])
def test_options_beside_their_section_are_not_ignored(key: str) -> None:
    with pytest.raises(OptionsError, match='put the options in one object under "tt"'):
        read_tt_options({key: {"sample_on_device_mode": "all"}})
