from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepshape.domain.bundles import Bundle, SkippedBundle, choose_registrations, parse_bundle
from stepshape.domain.model_table import (
    EmulatedClasses,
    ModelChoices,
    ModelTableError,
    builtin_table,
    emulated_target,
    prefixed,
    read_choices,
)

CLASSES = EmulatedClasses(lanes="m:Lanes", plain="m:Plain")


def test_the_environment_picks_the_model_version() -> None:
    assert read_choices({}) == ModelChoices()
    galaxy = read_choices({"TT_LLAMA_TEXT_VER": "llama3_70b_galaxy", "TT_VLLM_BUILTIN_MODELS": " Off "})
    assert (galaxy.llama, galaxy.builtin) == ("llama3_70b_galaxy", False)
    table = builtin_table(ModelChoices(qwen3="qwen3_32b_galaxy"), test_models=False)
    assert table["TTQwen3ForCausalLM"] == "models.demos.llama3_70b_galaxy.tt.generator_vllm:QwenForCausalLM"
    assert table["TTLlamaForCausalLM"] == "models.tt_transformers.tt.generator_vllm:LlamaForCausalLM"
    assert "TTDummyNoOpModel" not in table
    assert list(builtin_table(ModelChoices(builtin=False), test_models=True)) == [
        "TTDummyT3000MultiProcessModel",
        "TTDummyNoOpModel",
        "TTDummyDualGlxModel",
        "TTStepshapeReferenceForCausalLM",
    ]


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("TT_LLAMA_TEXT_VER", "tt_transformers, llama3_70b_galaxy, llama2_70b"),
        ("TT_QWEN3_TEXT_VER", "tt_transformers, qwen3_32b_galaxy"),
        ("TT_QWEN35_TEXT_VER", "qwen36_blackhole"),
    ],
)
def test_an_unknown_version_is_refused_with_those_there_are(name: str, choices: str) -> None:
    with pytest.raises(ModelTableError) as caught:
        read_choices({name: "llama4"})
    assert str(caught.value) == f"{name}='llama4' is no model version; use one of {choices}"


def test_every_target_of_the_table_is_a_module_and_a_class() -> None:
    for architecture, target in builtin_table(ModelChoices(), test_models=True).items():
        assert isinstance(parse_bundle("x", json.dumps({"arch": architecture, "main_class": target})), Bundle)


@pytest.mark.parametrize(
    ("architecture", "choices", "target"),
    [
        ("LlamaForCausalLM", ModelChoices(), "m:Plain"),
        ("LlamaForCausalLM", ModelChoices(llama="llama3_70b_galaxy"), "m:Lanes"),
        ("TTLlamaForCausalLM", ModelChoices(llama="llama3_70b_galaxy"), "m:Lanes"),
        ("Qwen3ForCausalLM", ModelChoices(llama="llama3_70b_galaxy"), "m:Plain"),
        ("Qwen3ForCausalLM", ModelChoices(qwen3="qwen3_32b_galaxy"), "m:Lanes"),
        ("GptOssForCausalLM", ModelChoices(), "m:Lanes"),
        ("MistralForCausalLM", ModelChoices(llama="llama3_70b_galaxy"), "m:Plain"),
    ],
)
def test_the_versions_with_lanes_have_them_on_the_emulator_too(
    architecture: str, choices: ModelChoices, target: str
) -> None:
    assert emulated_target(architecture, choices, CLASSES) == target


def test_the_prefix_is_put_once() -> None:
    assert prefixed("LlamaForCausalLM") == prefixed(prefixed("LlamaForCausalLM")) == "TTLlamaForCausalLM"


def test_a_bundle_is_an_architecture_and_a_class() -> None:
    text = json.dumps({"arch": "LlamaForCausalLM", "main_class": "my.model:Llama", "author": "me"})
    assert parse_bundle("mine", text) == Bundle("mine", "TTLlamaForCausalLM", "my.model:Llama")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "vllm_metadata.json is not JSON (Expecting"),
        ("[1]", "vllm_metadata.json holds a list, not an object"),
        ("null", "vllm_metadata.json holds a NoneType, not an object"),
        ('{"main_class": "m:C"}', "vllm_metadata.json has no 'arch'"),
        ('{"arch": "A"}', "vllm_metadata.json has no 'main_class'"),
        ('{"arch": 3, "main_class": "m:C"}', "'arch' of vllm_metadata.json is 3, not a name"),
        ('{"arch": "A", "main_class": "m.C"}', "'main_class' of vllm_metadata.json is 'm.C', not of the form module:"),
    ],
)
def test_a_broken_bundle_is_skipped_with_its_cause(text: str, reason: str) -> None:
    skipped = parse_bundle("broken", text)
    assert isinstance(skipped, SkippedBundle)
    assert skipped.folder == "broken"
    assert skipped.reason.startswith(reason)


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_reading_a_bundle_never_raises(text: str) -> None:
    assert parse_bundle("any", text).folder == "any"


def test_a_duplicate_does_not_hide_the_special_build() -> None:
    """Field case 36: the bundle goes before the built-in model, and the first bundle before an alias of it."""
    special = Bundle("a-special", "TTLlamaForCausalLM", "special:Llama")
    alias = Bundle("b-alias", "TTLlamaForCausalLM", "models.tt_transformers.tt.generator_vllm:LlamaForCausalLM")
    broken = SkippedBundle("c-broken", "no")
    builtin = {"TTLlamaForCausalLM": "plain:Llama", "TTQwen2ForCausalLM": "plain:Qwen"}
    orders: tuple[list[Bundle | SkippedBundle], ...] = ([special, alias, broken], [broken, alias, special])
    for order in orders:
        chosen = choose_registrations(order, builtin)
        assert chosen.targets == {"TTLlamaForCausalLM": "special:Llama", "TTQwen2ForCausalLM": "plain:Qwen"}
        assert chosen.skipped == (
            SkippedBundle("b-alias", "TTLlamaForCausalLM is already served by bundle 'a-special'"),
            broken,
        )


@given(
    st.lists(st.sampled_from("abcdef"), unique=True), st.dictionaries(st.sampled_from(["TTA", "TTB"]), st.just("m:C"))
)
def test_every_bundle_is_served_or_skipped(folders: list[str], builtin: dict[str, Any]) -> None:
    bundles = [Bundle(folder, "TTA", f"m:{folder}") for folder in folders]
    chosen = choose_registrations(bundles, builtin)
    assert len(chosen.skipped) == max(0, len(folders) - 1)
    assert chosen.targets.get("TTA") == (f"m:{min(folders)}" if folders else builtin.get("TTA"))
    assert chosen.targets.get("TTB") == builtin.get("TTB")
