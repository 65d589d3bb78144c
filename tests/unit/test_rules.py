from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepshape.domain.rules import Adjustment, ConfigFacts, Field, environment_refusals, launch_refusals, settle
from stepshape.domain.tt_options import TraceMode, TTOptions
from stepshape.ports.capabilities import ModelCapabilities
from stepshape.ports.sampling import SampleOnDevice

ABLE = ModelCapabilities(
    supports_sample_on_device=True,
    supports_async_decode=True,
    supports_prefix_caching=True,
    supports_chunked_prefill=True,
)
PLAIN = ModelCapabilities()


def facts(**values: Any) -> ConfigFacts:
    return ConfigFacts(**{"max_model_len": 1024, "max_num_batched_tokens": 2048, **values})


def changes(facts: ConfigFacts, capabilities: ModelCapabilities, options: TTOptions | None = None) -> dict[Field, Any]:
    verdict = settle(facts, capabilities, options or TTOptions(), "M")
    assert verdict.refusals == ()
    return {change.field: change.value for change in verdict.adjustments}


@pytest.mark.parametrize(
    ("asked", "start", "mend"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size=2 is not supported on a Tenstorrent mesh", "MESH_DEVICE"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2 is not supported", "use 1"),
        ({"decode_context_parallel_size": 2}, "decode_context_parallel_size=2 is not supported", "use 1"),
        ({"prefill_context_parallel_size": 2}, "prefill_context_parallel_size=2 is not supported", "use 1"),
        ({"nnodes": 2}, "multi-host launch is not supported yet", "serve from one host"),
        ({"node_rank": 1}, "multi-host launch is not supported yet", "serve from one host"),
        ({"speculative": True}, "speculative decoding is not supported", "leave --speculative-config out"),
        ({"lora": True}, "LoRA is not supported", "leave --enable-lora out"),
        ({"kv_transfer": True}, "KV transfer is not supported", "leave --kv-transfer-config out"),
        ({"executor": "ray"}, "distributed_executor_backend=ray is not supported", "use uni"),
        ({"quantization": "fp8"}, "quantization=fp8 is not applied", "leave --quantization out"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype=fp8 is not applied", "leave --kv-cache-dtype out"),
        ({"runner_type": "pooling"}, "runner 'pooling' is not supported", "generates text"),
        ({"encoder_decoder": True}, "encoder-decoder models are not supported", "decoder-only"),
        ({"rust_frontend": True}, "VLLM_USE_RUST_FRONTEND=1 would skip the request checks", "unset it"),
        ({"v2_model_runner": "1"}, "VLLM_USE_V2_MODEL_RUNNER=1 changes how resumed requests", "unset it or use 0"),
    ],
)
def test_each_refusal_names_its_cause_and_its_mend(asked: dict[str, Any], start: str, mend: str) -> None:
    (sentence,) = launch_refusals(facts(**asked))
    assert sentence.startswith(start)
    assert mend in sentence.split("; ", 1)[1]


def test_an_ordinary_launch_is_not_refused_and_all_problems_are_named_at_once() -> None:
    assert launch_refusals(facts()) == ()
    assert launch_refusals(facts(executor="mp", v2_model_runner="0")) == ()
    assert len(launch_refusals(facts(tensor_parallel_size=2, lora=True, speculative=True))) == 3
    assert environment_refusals(rust_frontend=False, v2_model_runner=None) == ()


def test_a_model_that_declares_everything_keeps_everything() -> None:
    everything = facts(async_scheduling=True, chunked_prefill=True, prefix_caching=True, max_num_batched_tokens=96)
    assert changes(everything, ABLE, TTOptions(sample_on_device_mode=SampleOnDevice.ALL)) == {}


def test_what_a_model_does_not_declare_is_turned_off() -> None:
    asked = facts(
        async_scheduling=True,
        chunked_prefill=True,
        prefix_caching=True,
        max_num_batched_tokens=96,
        long_prefill_token_threshold=64,
    )
    assert changes(asked, PLAIN) == {
        Field.ASYNC_SCHEDULING: False,
        Field.CHUNKED_PREFILL: False,
        Field.MAX_NUM_BATCHED_TOKENS: 1024,
        Field.LONG_PREFILL_TOKEN_THRESHOLD: 0,
        Field.PREFIX_CACHING: False,
    }


def test_device_sampling_needs_a_device_sampler() -> None:
    options = TTOptions(sample_on_device_mode=SampleOnDevice.DECODE_ONLY)
    assert settle(facts(), PLAIN, options, "LlamaForCausalLM").refusals == (
        "additional_config.tt.sample_on_device_mode=decode_only needs a device sampler and LlamaForCausalLM declares "
        "none; leave the option out to sample on the host",
    )
    assert settle(facts(), PLAIN, attrs.evolve(options, always_compat_sampling=True), "M").refusals == ()


def test_trace_mode_none_runs_without_overlap() -> None:
    assert changes(facts(async_scheduling=True), ABLE, TTOptions(trace_mode=TraceMode.NONE)) == {
        Field.ASYNC_SCHEDULING: False
    }


def test_prefix_caching_is_off_with_a_sliding_window() -> None:
    assert changes(facts(prefix_caching=True, sliding_window=512), ABLE) == {Field.PREFIX_CACHING: False}


def test_without_chunks_a_step_holds_a_whole_prompt_also_where_the_model_could_chunk() -> None:
    assert changes(facts(max_num_batched_tokens=96), ABLE) == {Field.MAX_NUM_BATCHED_TOKENS: 1024}


def test_what_was_left_out_gets_the_meshs_defaults() -> None:
    left_out = facts(user_block_size=False, disable_any_whitespace=False, shutdown_timeout=0)
    assert changes(left_out, ABLE) == {
        Field.BLOCK_SIZE: 64,
        Field.DISABLE_ANY_WHITESPACE: True,
        Field.SHUTDOWN_TIMEOUT: 10,
    }


@pytest.mark.parametrize("asked", [21, 100, -1])
def test_logprobs_are_held_to_the_apis_limit(asked: int) -> None:
    (change,) = settle(facts(max_logprobs=asked), ABLE, TTOptions(), "M").adjustments
    assert change == Adjustment(
        Field.MAX_LOGPROBS, 20, "a device yields 32 candidates, the API allows 20", asked_for=True
    )
    assert changes(facts(max_logprobs=5), ABLE) == {}


_AS_FACT = {
    Field.ASYNC_SCHEDULING: "async_scheduling",
    Field.CHUNKED_PREFILL: "chunked_prefill",
    Field.MAX_NUM_BATCHED_TOKENS: "max_num_batched_tokens",
    Field.LONG_PREFILL_TOKEN_THRESHOLD: "long_prefill_token_threshold",
    Field.PREFIX_CACHING: "prefix_caching",
    Field.BLOCK_SIZE: "user_block_size",
    Field.MAX_LOGPROBS: "max_logprobs",
    Field.DISABLE_ANY_WHITESPACE: "disable_any_whitespace",
    Field.SHUTDOWN_TIMEOUT: "shutdown_timeout",
}


@given(
    asked=st.builds(
        ConfigFacts,
        max_model_len=st.integers(1, 4096),
        max_num_batched_tokens=st.integers(1, 4096),
        async_scheduling=st.booleans(),
        chunked_prefill=st.booleans(),
        long_prefill_token_threshold=st.integers(0, 64),
        prefix_caching=st.booleans(),
        sliding_window=st.none() | st.integers(1, 64),
        user_block_size=st.booleans(),
        max_logprobs=st.integers(-1, 40),
        disable_any_whitespace=st.booleans(),
        shutdown_timeout=st.integers(0, 9),
    ),
    capabilities=st.builds(
        ModelCapabilities,
        supports_async_decode=st.booleans(),
        supports_prefix_caching=st.booleans(),
        supports_chunked_prefill=st.booleans(),
    ),
)
def test_settling_the_settled_changes_nothing(asked: ConfigFacts, capabilities: ModelCapabilities) -> None:
    first = settle(asked, capabilities, TTOptions(), "M")
    assert len({change.field for change in first.adjustments}) == len(first.adjustments)
    after = attrs.evolve(asked, **{_AS_FACT[change.field]: change.value for change in first.adjustments})
    assert settle(after, capabilities, TTOptions(), "M").adjustments == ()
    # A prompt can always be placed: in chunks, or whole.
    assert after.chunked_prefill or after.max_num_batched_tokens >= after.max_model_len
