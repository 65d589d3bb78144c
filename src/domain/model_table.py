"""The models tt-metal brings, and which class serves an architecture (tenstorrent contract 2.1)."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

PREFIX = "TT"
"""Architectures are registered under this prefix, so that vLLM's own class of the same name stays reachable."""

LLAMA_CHOICE = "TT_LLAMA_TEXT_VER"
QWEN3_CHOICE = "TT_QWEN3_TEXT_VER"
QWEN35_CHOICE = "TT_QWEN35_TEXT_VER"

LLAMA_GALAXY = "llama3_70b_galaxy"
QWEN3_GALAXY = "qwen3_32b_galaxy"

_TRANSFORMERS = "models.tt_transformers.tt.generator_vllm"
_GALAXY = "models.demos.llama3_70b_galaxy.tt.generator_vllm"
_GEMMA4 = "models.demos.gemma4.tt.generator_vllm:Gemma4ForCausalLM"

_LLAMA = {
    "tt_transformers": f"{_TRANSFORMERS}:LlamaForCausalLM",
    LLAMA_GALAXY: f"{_GALAXY}:LlamaForCausalLM",
    "llama2_70b": "models.demos.t3000.llama2_70b.tt.generator_vllm:TtLlamaForCausalLM",
}
_QWEN3 = {
    "tt_transformers": f"{_TRANSFORMERS}:QwenForCausalLM",
    QWEN3_GALAXY: f"{_GALAXY}:QwenForCausalLM",
}
_QWEN35 = {"qwen36_blackhole": "models.demos.blackhole.qwen36.tt.qwen36_vllm:Qwen36ForCausalLM"}

_FIXED = {
    "TTMllamaForConditionalGeneration": f"{_TRANSFORMERS}:MllamaForConditionalGeneration",
    "TTQwen2ForCausalLM": f"{_TRANSFORMERS}:QwenForCausalLM",
    "TTQwen2_5_VLForConditionalGeneration": (
        "models.demos.qwen25_vl.tt.generator_vllm:Qwen2_5_VLForConditionalGeneration"
    ),
    "TTQwen3VLForConditionalGeneration": "models.demos.qwen3_vl.tt.generator_vllm:Qwen3VLForConditionalGeneration",
    "TTMistralForCausalLM": f"{_TRANSFORMERS}:MistralForCausalLM",
    "TTMistral3ForConditionalGeneration": f"{_TRANSFORMERS}:Mistral3ForConditionalGeneration",
    "TTGemma3ForConditionalGeneration": f"{_TRANSFORMERS}:Gemma3ForConditionalGeneration",
    # Gemma 4 also without the prefix: vLLM's resolver otherwise takes its multimodal wrapper before the prefix is set.
    "Gemma4ForCausalLM": _GEMMA4,
    "Gemma4ForConditionalGeneration": _GEMMA4,
    "Gemma4UnifiedForConditionalGeneration": _GEMMA4,
    "TTGemma4ForCausalLM": _GEMMA4,
    "TTGemma4ForConditionalGeneration": _GEMMA4,
    "TTGemma4UnifiedForConditionalGeneration": _GEMMA4,
    "TTDeepseekV3ForCausalLM": "models.demos.deepseek_v3.tt.generator_vllm:DeepseekV3ForCausalLM",
    "TTGptOssForCausalLM": f"{_TRANSFORMERS}:GptOssForCausalLM",
}
_TEST_MODELS = {
    "TTDummyT3000MultiProcessModel": (
        "models.vllm_test_utils.t3000_multiproc_test.test_model:DummyT3000MultiProcessModel"
    ),
    "TTDummyNoOpModel": "models.vllm_test_utils.no_op_test.test_model:DummyNoOpModel",
    "TTDummyDualGlxModel": "models.vllm_test_utils.dual_glx_ccl_test.test_model:DummyDualGlxModel",
    # Ours, for bring-up; it needs nothing of tt-metal's models.
    "TTStepshapeReferenceForCausalLM": "stepshape.adapters.ttnn.reference_model:ReferenceForCausalLM",
}

SINGLE_EXECUTE: dict[str, tuple[int, ...]] = {
    f"{_GALAXY}:LlamaForCausalLM": (1, 4),
    f"{_GALAXY}:QwenForCausalLM": (1, 4),
    f"{_TRANSFORMERS}:GptOssForCausalLM": (1, 2, 4, 8),
}
"""Lane counts of tt-metal's classes that run lanes in one step and do not yet declare them (contract 1.5 and 3.9).
What a class declares itself goes before this."""

_OFF = frozenset({"0", "false", "no", "off"})


class ModelTableError(ValueError):
    """An environment variable names no model version."""


@attrs.frozen(kw_only=True)
class ModelChoices:
    """The environment's choices among model classes (contract 1.7). Unset: the default version."""

    llama: str = "tt_transformers"
    qwen3: str = "tt_transformers"
    qwen35: str = "qwen36_blackhole"
    builtin: bool = True
    """``TT_VLLM_BUILTIN_MODELS``"""


def read_choices(environment: Mapping[str, str]) -> ModelChoices:
    """Read and check the choices. Raises :class:`ModelTableError` naming the versions there are."""

    def choose(name: str, versions: Mapping[str, str]) -> str:
        value = environment.get(name) or next(iter(versions))
        if value not in versions:
            raise ModelTableError(f"{name}={value!r} is no model version; use one of {', '.join(versions)}")
        return value

    return ModelChoices(
        llama=choose(LLAMA_CHOICE, _LLAMA),
        qwen3=choose(QWEN3_CHOICE, _QWEN3),
        qwen35=choose(QWEN35_CHOICE, _QWEN35),
        builtin=environment.get("TT_VLLM_BUILTIN_MODELS", "1").strip().lower() not in _OFF,
    )


def prefixed(architecture: str) -> str:
    """The registered name of ``architecture``; an already prefixed one is left alone."""
    return architecture if architecture.startswith(PREFIX) else PREFIX + architecture


def builtin_table(choices: ModelChoices, test_models: bool) -> dict[str, str]:
    """Registered architecture to ``module:Class`` of tt-metal, for a real mesh. ``test_models`` adds the dummies."""
    table = dict(_TEST_MODELS) if test_models else {}
    if choices.builtin:
        table.update(_FIXED)
        table["TTLlamaForCausalLM"] = _LLAMA[choices.llama]
        table["TTQwen3ForCausalLM"] = _QWEN3[choices.qwen3]
        table["TTQwen3_5ForConditionalGeneration"] = _QWEN35[choices.qwen35]
    return table


@attrs.frozen
class EmulatedClasses:
    """``module:Class`` of the emulator's two models."""

    lanes: str
    """runs all its lanes in one step, and declares them"""
    plain: str


def emulated_target(architecture: str, choices: ModelChoices, classes: EmulatedClasses) -> str:
    """The emulated class for ``architecture`` (prefixed or not): the same versions have lanes as on a real mesh.

    Those are the Galaxy builds of Llama and Qwen 3, and GPT-OSS (contract 1.5). The version picks the class; the class
    declares the lanes.
    """
    bare = architecture.removeprefix(PREFIX)
    has_lanes = (
        (bare == "LlamaForCausalLM" and choices.llama == LLAMA_GALAXY)
        or (bare == "Qwen3ForCausalLM" and choices.qwen3 == QWEN3_GALAXY)
        or bare == "GptOssForCausalLM"
    )
    return classes.lanes if has_lanes else classes.plain
