"""Launches that are refused, and what they say; the platform as vLLM asks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepshape.domain.rules import ConfigurationError

from ..spyre_engines import spyre_config
from ..tiny_checkpoints import save

SPECULATIVE = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(spyre_config("llama"), tmp_path_factory.mktemp("llama"))


def launched(folder: Path, **arguments: Any) -> Any:
    from vllm import EngineArgs

    settings: dict[str, Any] = {"model": str(folder), "skip_tokenizer_init": True, "max_model_len": 256, **arguments}
    return EngineArgs(**settings).create_engine_config()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"dtype": "bfloat16"}, "dtype bfloat16"),
        ({"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"}, "pipeline_parallel_size=2"),
        ({"enable_lora": True}, "LoRA"),
        ({"scheduler_cls": "my.Scheduler"}, "scheduler_cls=my.Scheduler"),
        ({"block_size": 192}, "no power of two"),
        ({"speculative_config": SPECULATIVE}, "speculative"),
    ],
)
def test_a_launch_is_refused_in_a_sentence(llama: Path, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        launched(llama, **arguments)


@pytest.mark.parametrize("eager", [False, True])
def test_a_misspelt_granularity_is_refused_even_in_eager_mode(
    llama: Path, eager: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPYRE_COMPILE_GRANULARITY", "blok")
    with pytest.raises(ConfigurationError, match="SPYRE_COMPILE_GRANULARITY='blok'"):
        launched(llama, enforce_eager=eager)


def test_the_config_is_settled_once(llama: Path) -> None:
    from vllm.config import CompilationMode
    from vllm.platforms import current_platform

    config = launched(llama, max_num_seqs=4, block_size=100)
    seen = []
    for _ in range(2):
        seen.append(
            (
                config.cache_config.block_size,
                config.cache_config.num_gpu_blocks_override,
                config.scheduler_config.max_num_batched_tokens,
                config.compilation_config.mode,
                tuple(config.compilation_config.compile_sizes),
                config.model_config.get_head_size(),
                config.model_config.hf_text_config.intermediate_size,
                config.parallel_config.worker_cls,
                config.scheduler_config.scheduler_cls,
            )
        )
        current_platform.apply_config_platform_defaults(config)
        current_platform.check_and_update_config(config)
    assert seen[0] == seen[1]
    assert seen[0][:7] == (128, 9, 512, CompilationMode.STOCK_TORCH_COMPILE, (1, 2, 4, 512), 128, 128)
    assert seen[0][8].endswith("SpyreAsyncScheduler")


def test_a_number_of_sequences_that_nobody_named_is_kept_small(llama: Path) -> None:
    assert launched(llama).scheduler_config.max_num_seqs == 4
    assert launched(llama, max_num_seqs=12).scheduler_config.max_num_seqs == 12


def test_the_users_own_body_shapes_stand(llama: Path) -> None:
    config = launched(llama, compilation_config={"compile_sizes": [96, 8, 1]})
    assert config.compilation_config.compile_sizes == [1, 8, 96]
    assert config.scheduler_config.max_num_batched_tokens == 96


def test_a_model_length_that_nobody_named_is_kept_small(llama: Path) -> None:
    from vllm.platforms import current_platform

    assert current_platform.check_max_model_len(131072) == 2048
    assert current_platform.get_device_name() == "torch-spyre"
    assert current_platform.opaque_attention_op() and not current_platform.use_custom_op_collectives()


def test_heads_that_cannot_be_padded_are_refused(tmp_path: Path) -> None:
    import json

    folder = save(spyre_config("llama"), tmp_path)
    read = json.loads((folder / "config.json").read_text())
    read["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    (folder / "config.json").write_text(json.dumps(read))
    with pytest.raises(ConfigurationError, match=r"partial_rotary_factor of 0\.5"):
        launched(folder)


def test_experts_and_dynamic_frequencies_in_padded_heads_are_refused(tmp_path: Path) -> None:
    import json

    from transformers import MixtralConfig

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    mixtral = MixtralConfig(**sizes, num_key_value_heads=1, vocab_size=256, architectures=["MixtralForCausalLM"])
    mixtral.save_pretrained(tmp_path / "mixtral")
    with pytest.raises(ConfigurationError, match="mixture-of-experts models are not supported on Spyre"):
        launched(tmp_path / "mixtral")
    folder = save(spyre_config("llama"), tmp_path / "llama")
    read = json.loads((folder / "config.json").read_text())
    read["rope_parameters"] = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    (folder / "config.json").write_text(json.dumps(read))
    with pytest.raises(ConfigurationError, match="frequencies of a rope_type of dynamic"):
        launched(folder)


def test_the_emulators_variables_are_refused_with_the_others(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPYRE_COMPILE_GRANULARITY", "blok")
    monkeypatch.setenv("STEPSHAPE_SPYRE_ROUNDING", "OFFF")
    with pytest.raises(ConfigurationError) as caught:
        launched(llama)
    assert len(caught.value.problems) == 2


def test_a_load_that_fails_names_the_model_and_leaves_no_rotary_layer(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file
    from vllm.model_executor.layers import rotary_embedding

    from ..spyre_engines import spyre_engine

    folder = save(spyre_config("llama"), tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.mlp.down_proj.weight"] = weights["model.layers.0.mlp.down_proj.weight"][:-1].clone()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(RuntimeError, match="LlamaForCausalLM cannot be loaded for the card"), spyre_engine(folder):
        pass
    assert not rotary_embedding._ROPE_DICT


def test_a_model_loaded_after_a_padded_one_gets_its_own_frequencies(llama: Path) -> None:
    """Contract 8.12: vLLM keeps rotary layers by size, and a padded head has the size of a real one."""
    from vllm.model_executor.layers import rotary_embedding

    from ..spyre_engines import spyre_engine

    with spyre_engine(llama):
        assert not rotary_embedding._ROPE_DICT
