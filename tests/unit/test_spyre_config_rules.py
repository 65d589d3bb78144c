"""What Spyre refuses, changes and reads from the environment: every rule by itself."""

from __future__ import annotations

from typing import Any

import pytest

from stepshape.domain.attention_plan import DecodeForm, FlatDecode, OneSequence
from stepshape.domain.bucket_counts import BucketCounts
from stepshape.domain.head_padding import Widening, head_refusal, head_widening, mlp_widening
from stepshape.domain.prefill_cap import admission_cap
from stepshape.domain.rules import Field
from stepshape.domain.selection import Device, Selection, select_mesh, select_spyre
from stepshape.domain.spyre_options import Granularity, Guard, SpyreOptions, SpyreOptionsError, read_spyre_options
from stepshape.domain.spyre_rules import (
    GATHER_SPAN,
    SpyreFacts,
    gather_refusal,
    spyre_adjustments,
    spyre_refusals,
)

FACTS: dict[str, Any] = {"max_model_len": 2048, "max_num_seqs": 4, "hidden_size": 576, "body_top": 512}


def test_a_plain_launch_is_not_refused() -> None:
    assert spyre_refusals(SpyreFacts(**FACTS)) == ()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"dtype": "bfloat16"}, "dtype bfloat16 is not supported on this Spyre device; use --dtype float16"),
        ({"dtype": "float32"}, "dtype float32 is not supported"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2 is not supported on Spyre"),
        ({"data_parallel_size": 2}, "data_parallel_size=2 is not supported on Spyre"),
        ({"prefill_context_parallel_size": 2}, "prefill_context_parallel_size=2"),
        ({"decode_context_parallel_size": 2}, "decode_context_parallel_size=2"),
        ({"nnodes": 2}, "several hosts"),
        ({"speculative": True}, "speculative decoding is not supported on Spyre; leave --speculative-config out"),
        ({"lora": True}, "LoRA is not supported on Spyre; leave --enable-lora out"),
        ({"kv_transfer": True}, "KV transfer"),
        ({"encoder_decoder": True}, "encoder-decoder"),
        ({"multimodal": True}, "image, audio and video"),
        ({"quantization": "fp8"}, "quantization fp8"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype=fp8"),
        ({"runner_type": "pooling"}, "runner 'pooling'"),
        ({"v2_model_runner": "1"}, "VLLM_USE_V2_MODEL_RUNNER=1"),
        ({"own_layers": False}, "custom_ops 'none'"),
        ({"hidden_size": 48}, "a hidden size of 48"),
        ({"block_size": 192}, "block_size=192 is 192 in whole sticks of 64 tokens, which is no power of two"),
        ({"block_size": 150}, "block_size=150 is 192 in whole sticks"),
        ({"chunked_prefill": False}, "with chunked prefill off a step must hold a prompt of 2048 tokens"),
    ],
)
def test_what_cannot_be_had_is_refused_with_a_mend(change: dict[str, Any], sentence: str) -> None:
    problems = spyre_refusals(SpyreFacts(**{**FACTS, **change}))
    assert len(problems) == 1 and sentence in problems[0] and "; " in problems[0]


def test_every_problem_is_named_at_once() -> None:
    facts = SpyreFacts(**{**FACTS, "lora": True, "data_parallel_size": 3, "dtype": "bfloat16"})
    assert len(spyre_refusals(facts)) == 3


def changes(**facts: Any) -> dict[Field, Any]:
    return {change.field: change.value for change in spyre_adjustments(SpyreFacts(**{**FACTS, **facts}))}


def test_the_defaults_are_those_of_the_device() -> None:
    assert changes() == {
        Field.BLOCK_SIZE: 128,
        Field.HYBRID_OFF: True,
        Field.KV_MEMORY: 4 << 30,
        Field.NUM_BLOCKS: 4 * 16 + 1,
    }


@pytest.mark.parametrize(("asked", "set_to"), [(16, 64), (64, None), (100, 128), (256, None)])
def test_a_block_size_is_rounded_up_to_sticks(asked: int, set_to: int | None) -> None:
    assert changes(block_size=asked).get(Field.BLOCK_SIZE) == set_to


def test_the_pool_follows_the_block_size_and_leaves_room_for_the_null_page() -> None:
    assert changes(block_size=64)[Field.NUM_BLOCKS] == 4 * 32 + 1
    assert changes(max_model_len=100, max_num_seqs=3)[Field.NUM_BLOCKS] == 3 + 1


def test_what_the_user_named_stands_and_a_second_pass_changes_nothing() -> None:
    named = {
        "block_size": 128,
        "hybrid_off": True,
        "kv_memory_bytes": 1 << 20,
        "num_blocks_override": 9,
        "shutdown_timeout": 7,
    }
    assert changes(**named) == {}
    assert changes(**{**named, "shutdown_timeout": 0}) == {Field.SHUTDOWN_TIMEOUT: 10}


def test_pages_beyond_the_gather_span_are_refused_with_the_most_that_fit() -> None:
    page: dict[str, int] = {"block_size": 128, "num_kv_heads": 8, "head_size": 128, "itemsize": 2}
    most = GATHER_SPAN // (128 * 8 * 128 * 2) - 1
    assert gather_refusal(num_blocks=most, **page) is None
    problem = gather_refusal(num_blocks=most + 1, **page)
    assert problem is not None and f"--num-gpu-blocks-override {most}" in problem


def test_an_empty_environment_gives_the_defaults() -> None:
    assert read_spyre_options({}) == SpyreOptions()
    assert read_spyre_options({"SPYRE_COMPILE_GRANULARITY": " ", "SPYRE_ATTN_KV_BUCKETS": ""}) == SpyreOptions()


def test_the_environment_is_read() -> None:
    options = read_spyre_options(
        {
            "SPYRE_COMPILE_GRANULARITY": "model",
            "SPYRE_ATTN_RECORD": "0",
            "SPYRE_ATTN_KV_BUCKETS": "128, 512",
            "SPYRE_MAX_NUM_PARTIAL_PREFILLS": "0",
            "SPYRE_COMPILE_GUARD": "error",
            "SPYRE_DEVICES": "3,1",
            "STEPSHAPE_SPYRE_DECODE_FORM": "rectangular",
        }
    )
    assert options == SpyreOptions(
        granularity=Granularity.MODEL,
        record_attention=False,
        kv_ladder="128, 512",
        max_partial_prefills=0,
        guard=Guard.ERROR,
        devices=(3, 1),
        decode=DecodeForm.RECTANGULAR,
    )
    assert read_spyre_options({"SPYRE_BATCHED_DECODE": "0"}).decode is DecodeForm.OFF


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPYRE_COMPILE_GRANULARITY", "blocks"),
        ("SPYRE_ATTN_RECORD", "yes"),
        ("SPYRE_ATTN_KV_BUCKETS", "128,-1"),
        ("SPYRE_ATTN_QUERY_BUCKETS", "0"),
        ("SPYRE_ATTN_NUM_SEQS_BUCKETS", "four"),
        ("STEPSHAPE_SPYRE_ENTRY_BUCKETS", "1;2"),
        ("SPYRE_ATTN_KV_LAYOUT", "row_major"),
        ("SPYRE_ATTN_KV_LAYOUT", "head_major"),
        ("SPYRE_BATCHED_DECODE", "2"),
        ("SPYRE_COMPILE_GUARD", "loud"),
        ("SPYRE_MAX_NUM_PARTIAL_PREFILLS", "-1"),
        ("SPYRE_DEVICES", "a"),
        ("STEPSHAPE_SPYRE_DECODE_FORM", "round"),
    ],
)
def test_a_value_that_is_not_understood_is_named(name: str, value: str) -> None:
    with pytest.raises(SpyreOptionsError) as raised:
        read_spyre_options({name: value})
    assert f"{name}={value}" in str(raised.value).replace("'", "") and ";" in str(raised.value)


def test_all_values_that_are_not_understood_are_named_together() -> None:
    with pytest.raises(SpyreOptionsError) as raised:
        read_spyre_options({"SPYRE_ATTN_RECORD": "x", "SPYRE_DEVICES": "y"})
    assert len(raised.value.problems) == 2


@pytest.mark.parametrize(
    ("running", "prefilling", "limit", "cap"),
    [
        (0, 0, 1, 1),  # nobody is in its prompt: one may come in
        (3, 0, 1, 4),
        (3, 1, 1, 3),  # one is: nobody else
        (3, 1, 2, 4),
        (3, 3, 2, 3),
        (8, 0, 1, 8),  # the scheduler's own limit stands
        (3, 1, 0, 8),  # no cap
    ],
)
def test_the_cap_admits_as_many_as_may_prefill(running: int, prefilling: int, limit: int, cap: int) -> None:
    got = admission_cap(cap=8, running=running, prefilling=prefilling, waiting_for_input=0, limit=limit)
    assert got == cap


def test_a_paused_session_holds_a_row_of_its_own() -> None:
    assert admission_cap(cap=8, running=2, prefilling=1, waiting_for_input=3, limit=1) == 5


def test_heads_are_widened_to_two_sticks() -> None:
    assert head_widening(64) == Widening(64, 128)
    assert not head_widening(128).needed and head_widening(96).padded == 128 and head_widening(192).padded == 256
    assert head_widening(4).rotary_lanes() == (0, 1, 64, 65)
    assert head_widening(4).value_lanes() == (0, 1, 2, 3)
    with pytest.raises(ValueError, match="a head of 5 lanes cannot be cut in two halves"):
        head_widening(5)


def test_mlps_are_widened_to_sticks_on_every_rank() -> None:
    assert mlp_widening(100) == Widening(100, 128)
    assert mlp_widening(192, 2) == Widening(192, 256)
    assert not mlp_widening(1536).needed


def test_a_head_that_is_rotated_in_part_cannot_be_widened() -> None:
    need, fits = head_widening(64), head_widening(128)
    assert head_refusal(rotary_dim=None, partial_rotary_factor=1.0, widening=need) is None
    assert "rope_dim of 32" in (head_refusal(rotary_dim=32, partial_rotary_factor=None, widening=need) or "")
    dynamic = head_refusal(rotary_dim=None, partial_rotary_factor=None, widening=need, kinds={"default", "dynamic"})
    assert "a rope_type of dynamic" in (dynamic or "")
    assert head_refusal(rotary_dim=None, partial_rotary_factor=None, widening=need, kinds={"yarn", "llama3"}) is None
    partial = head_refusal(rotary_dim=None, partial_rotary_factor=0.5, widening=need)
    assert "partial_rotary_factor of 0.5" in (partial or "")
    assert head_refusal(rotary_dim=32, partial_rotary_factor=0.5, widening=fits) is None


@pytest.mark.parametrize(
    ("spyre", "mesh", "card", "want"),
    [
        ("", "", False, Selection(None)),
        ("", "", True, Selection(Device.REAL)),
        ("emulated", "", False, Selection(Device.EMULATED)),
        ("emulated", "", True, Selection(Device.EMULATED)),
        ("", "emulated", True, Selection(None)),  # the mesh was asked for
    ],
)
def test_a_card_is_selected_by_name_or_by_being_there(spyre: str, mesh: str, card: bool, want: Selection) -> None:
    assert select_spyre({"STEPSHAPE_SPYRE_DEVICE": spyre, "STEPSHAPE_TT_DEVICE": mesh}, card) == want


def test_a_wrong_wish_is_said() -> None:
    chosen = select_spyre({"STEPSHAPE_SPYRE_DEVICE": "emulate"}, False)
    assert chosen.device is not None and chosen.problem is not None and "is no device" in chosen.problem


def test_side_by_side_never_both_apply() -> None:
    """Two platforms that both apply are vLLM's error, not the user's sentence."""
    for spyre in ("", "emulated"):
        for mesh in ("", "emulated"):
            environment = {"STEPSHAPE_SPYRE_DEVICE": spyre, "STEPSHAPE_TT_DEVICE": mesh}
            for real_mesh, real_card in ((True, False), (False, True), (False, False)):
                chosen = (select_mesh(environment, real_mesh), select_spyre(environment, real_card))
                assert sum(one.device is not None for one in chosen) <= 1, (environment, real_mesh, real_card)


def test_counts_tell_padded_from_useful() -> None:
    counts = BucketCounts(block_size=64)
    counts.add([1, 1], [0, 130], 4, [FlatDecode(4, 6)], 3)
    counts.add([10], [0], 16, [OneSequence(16, 2)], 2)
    summary = counts.summary()
    expected = {
        "steps": 2,
        "body_rows": {"4": 1, "16": 1},
        "kernels": {
            "decode of up to 4 sequences, 6 blocks in all": 1,
            "one sequence, 16 rows x 2 blocks": 1,
        },
        "padded_over_useful": {"body_rows": round(20 / 12, 3), "decode_kv_blocks": 1.5, "prefill_cells": 3.2},
        "host_to_device_copies": 5,
        "most_copies_in_a_step": 3,
    }
    assert {name: summary[name] for name in expected} == expected
