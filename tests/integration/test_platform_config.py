"""Real engine arguments to a resolved configuration, and every refusal at start by its sentence."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepshape.adapters.vllm.tenstorrent.config import SECTION, ResolvedConfig, resolved
from stepshape.domain.rules import ConfigurationError
from stepshape.domain.selection import Device
from stepshape.ports.sampling import SampleOnDevice

from ..checkpoints import tiny_llama

GALAXY = {"MESH_DEVICE": "TG", "TT_LLAMA_TEXT_VER": "llama3_70b_galaxy"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("checkpoints") / "llama")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "MESH_DEVICE",
        "TT_VISIBLE_DEVICES",
        "TT_LLAMA_TEXT_VER",
        "EXTRA_MODELS_DIR",
        "STEPSHAPE_SPYRE_DEVICE",
        "VLLM_USE_RUST_FRONTEND",
        "VLLM_USE_V2_MODEL_RUNNER",
    ):
        # Set first, so that what the platform writes is undone as well.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("STEPSHAPE_TT_DEVICE", "emulated")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def put(values: dict[str, str]) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return put  # type: ignore[return-value]  # a function, handed out by the fixture


def configure(checkpoint: Path, **arguments: Any) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    settings = {"model": str(checkpoint), "dtype": "float32", "max_model_len": 1024, "max_num_seqs": 8, **arguments}
    return EngineArgs(**settings).create_engine_config()


def refusal(checkpoint: Path, **arguments: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        configure(checkpoint, **arguments)
    return caught.value.problems


def test_a_galaxy_launch_is_folded_and_written_into_vllms_config(checkpoint: Path, environment: Any) -> None:
    environment(GALAXY)
    options = {"tt": {"sample_on_device_mode": "all"}}
    config = configure(checkpoint, data_parallel_size=4, async_scheduling=True, additional_config=options)
    result = resolved(config)
    assert result.device is Device.EMULATED
    assert (result.topology.mesh, result.topology.lanes, result.topology.rows_per_lane) == ((8, 4), 4, 8)
    assert result.model_class == "stepshape.adapters.emulator.mesh.model:EmulatedForCausalLM"
    assert result.sample_on_device is SampleOnDevice.ALL
    assert (result.async_on, result.chunked_prefill, result.prefix_caching) == (True, True, True)
    assert result.block_size == config.cache_config.block_size == 64
    parallel = config.parallel_config
    assert (parallel.data_parallel_size, parallel.distributed_executor_backend) == (1, "uni")
    assert config.scheduler_config.max_num_seqs == 32
    assert config.scheduler_config.scheduler_cls.startswith("stepshape.")
    assert parallel.worker_cls.startswith("stepshape.")
    assert config.structured_outputs_config.disable_any_whitespace
    assert config.shutdown_timeout > 0
    assert config.model_config.hf_config.architectures == ["TTLlamaForCausalLM"]
    assert result.describe().startswith(
        "Tenstorrent (emulated) LlamaForCausalLM: 8x4 mesh, 4 lanes of 8 rows "
        "(data_parallel_size=4 folded: LlamaForCausalLM runs its lanes in one engine); KV "
    )
    # What is kept is JSON, and the operator's own dict is left alone.
    assert json.loads(json.dumps(config.additional_config))[SECTION]["topology"]["lanes"] == 4
    assert options == {"tt": {"sample_on_device_mode": "all"}}


def test_the_hook_may_run_again_in_another_process(checkpoint: Path, environment: Any) -> None:
    from vllm.platforms import current_platform

    environment(GALAXY)
    config = configure(checkpoint, data_parallel_size=2)
    copy = pickle.loads(pickle.dumps(config))
    for _ in range(2):
        current_platform.check_and_update_config(copy)
        assert resolved(copy) == resolved(config)
        assert copy.scheduler_config.max_num_seqs == 16
        assert copy.model_config.hf_config.architectures == ["TTLlamaForCausalLM"]


def test_one_dict_of_options_serves_two_engines(checkpoint: Path, environment: Any) -> None:
    environment(GALAXY)
    options: dict[str, Any] = {"tt": {}}
    folded = configure(checkpoint, data_parallel_size=4, max_num_seqs=2, additional_config=options)
    single = configure(checkpoint, max_num_seqs=8, additional_config=options)
    assert (resolved(folded).topology.lanes, resolved(single).topology.lanes) == (4, 1)


def test_a_config_that_was_not_checked_says_so() -> None:
    from vllm.config import VllmConfig

    with pytest.raises(ConfigurationError, match="was not checked by the Tenstorrent platform; build it with"):
        resolved(VllmConfig())


@pytest.mark.parametrize(("mesh", "shape"), [("T3K", (1, 8)), ("(2,4)", (2, 4)), ("N150", (1, 1)), (None, (1, 32))])
def test_the_mesh_is_the_environments(
    checkpoint: Path, environment: Any, mesh: str | None, shape: tuple[int, int]
) -> None:
    environment({} if mesh is None else {"MESH_DEVICE": mesh})
    result: ResolvedConfig = resolved(configure(checkpoint))
    assert result.topology.mesh == shape
    assert result.model_class.endswith(":EmulatedPlainForCausalLM")


def test_the_pools_size_is_the_operators_or_the_models(checkpoint: Path) -> None:
    assert resolved(configure(checkpoint, num_gpu_blocks_override=40, block_size=32)).num_blocks == 40
    result = resolved(configure(checkpoint, block_size=32))
    assert result.num_blocks * 32 >= 131_072 + 8 * 32


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"tensor_parallel_size": 2},
            "tensor_parallel_size=2 is not supported on a Tenstorrent mesh, a model spans the chips of its mesh by "
            "itself; use 1 and choose the mesh with MESH_DEVICE",
        ),
        (
            {"pipeline_parallel_size": 2},
            "pipeline_parallel_size=2 is not supported on a Tenstorrent mesh, a model spans the chips of its mesh by "
            "itself; use 1 and choose the mesh with MESH_DEVICE",
        ),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}},
            "speculative decoding is not supported on a Tenstorrent mesh; leave --speculative-config out",
        ),
        (
            {"enable_lora": True},
            "LoRA is not supported on a Tenstorrent mesh; leave --enable-lora out and serve merged weights",
        ),
        (
            {"scheduler_cls": "my.Scheduler"},
            "scheduler_cls=my.Scheduler does not plan steps of one shape, as this device wants them; leave "
            "--scheduler-cls out",
        ),
        (
            {"data_parallel_size": 3},
            "data_parallel_size=3 is not a lane count of LlamaForCausalLM on an 8x4 mesh (1, 2, 4); use one of those",
        ),
        (
            {"additional_config": {"tt": {"trace_mod": "all"}}},
            "additional_config.tt has no option 'trace_mod'; did you mean trace_mode?",
        ),
        (
            {"additional_config": {"tt": {"trace_region_size": "50MB"}}},
            "additional_config.tt.trace_region_size is '50MB' (str), not an int; use a whole number >= 0",
        ),
        (
            {"additional_config": {"tt": {"rank_binding": "x.yaml"}}},
            "additional_config.tt.rank_binding: multi-host launch is not supported yet; leave the option out and serve "
            "from one host",
        ),
        (
            {"num_gpu_blocks_override": 9, "block_size": 64},
            "max_model_len=1024 does not fit the KV pool of a lane (9 blocks of 64 tokens, one of them the null "
            "block); the largest that fits is 512, use --max-model-len 512",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_launch_is_refused_with_one_sentence(
    checkpoint: Path, environment: Any, arguments: dict[str, Any], sentence: str
) -> None:
    environment(GALAXY)
    assert refusal(checkpoint, **arguments) == (sentence,)


@pytest.mark.parametrize(
    ("values", "start"),
    [
        ({"MESH_DEVICE": "TGG"}, "MESH_DEVICE='TGG' is no mesh; use one of N150, "),
        (
            {"MESH_DEVICE": "(8,8)"},
            "MESH_DEVICE=(8,8) wants an 8x8 mesh of 64 chips and 32 are there; name a mesh of at most 32 chips",
        ),
        (
            {"MESH_DEVICE": "T3K", "TT_VISIBLE_DEVICES": "0,1"},
            "MESH_DEVICE=T3K wants a 1x8 mesh of 8 chips and 2 are there; name a mesh of at most 2 chips",
        ),
        (
            {"TT_LLAMA_TEXT_VER": "llama4"},
            "TT_LLAMA_TEXT_VER='llama4' is no model version; use one of tt_",
        ),
        ({"VLLM_USE_RUST_FRONTEND": "1"}, "VLLM_USE_RUST_FRONTEND=1 would skip the request checks"),
        ({"VLLM_USE_V2_MODEL_RUNNER": "1"}, "VLLM_USE_V2_MODEL_RUNNER=1 changes how resumed requests are scheduled"),
        ({"STEPSHAPE_TT_DEVICE": "real"}, "STEPSHAPE_TT_DEVICE='real' is no device; use emulated, or"),
        (
            {"STEPSHAPE_SPYRE_DEVICE": "emulated"},
            "STEPSHAPE_TT_DEVICE=emulated and STEPSHAPE_SPYRE_DEVICE=emulated select two devices for one process; "
            "leave one of them unset",
        ),
    ],
    ids=lambda value: " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_an_environment_is_refused_with_one_sentence(
    checkpoint: Path, environment: Any, values: dict[str, str], start: str
) -> None:
    environment(values)
    (sentence,) = refusal(checkpoint)
    assert sentence.startswith(start)
    assert "; " in sentence


def test_lanes_are_the_models_to_declare(checkpoint: Path, environment: Any) -> None:
    environment({"MESH_DEVICE": "TG"})
    (sentence,) = refusal(checkpoint, data_parallel_size=4)
    assert sentence == (
        "data_parallel_size=4 needs one engine a rank, and LlamaForCausalLM declares no lanes that would replace them; "
        "ranks are not supported yet, use --data-parallel-size 1"
    )


def test_all_problems_of_a_launch_are_named_at_once(checkpoint: Path, environment: Any) -> None:
    environment({"MESH_DEVICE": "nowhere"})
    problems = refusal(checkpoint, tensor_parallel_size=2, additional_config={"tt": {"trace_mode": "x"}})
    assert [problem.split("=")[0].split(" ")[0] for problem in problems] == [
        "tensor_parallel_size",
        "additional_config.tt.trace_mode",
        "MESH_DEVICE",
    ]


@pytest.mark.parametrize("name", ["block_size", "max_num_seqs"])
def test_vllms_own_refusal_of_a_zero_stands(checkpoint: Path, name: str) -> None:
    """Field case 35."""
    with pytest.raises(ValueError, match=rf"{name}\n.*greater than"):
        configure(checkpoint, **{name: 0})


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    """The message is the one of ``transformers``: vLLM asks it before any hook of a platform."""
    with pytest.raises((OSError, ValueError), match=re.escape(str(tmp_path / "gone"))):
        configure(tmp_path / "gone")


def test_minus_one_lets_vllm_fit_the_length(checkpoint: Path) -> None:
    config = configure(checkpoint, max_model_len=-1, num_gpu_blocks_override=9, block_size=64)
    assert config.model_config.original_max_model_len == -1
    assert resolved(config).num_blocks == 9


def test_a_bundle_serves_its_architecture_and_broken_ones_are_named(
    checkpoint: Path, environment: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, broken, plain = tmp_path / "good", tmp_path / "broken", tmp_path / "not-a-bundle"
    for folder in (good, broken, plain):
        folder.mkdir()
    (good / "vllm_metadata.json").write_text('{"arch": "LlamaForCausalLM", "main_class": "bundled_llama:Bundled"}')
    (good / "bundled_llama.py").write_text(
        "class Bundled:\n    model_capabilities = {'supports_async_decode': True, 'new_thing': 1}\n\n"
        "    @classmethod\n    def initialize_vllm_model(cls, *args, **kwargs): ...\n"
    )
    (broken / "vllm_metadata.json").write_text("[]")
    environment({"EXTRA_MODELS_DIR": str(tmp_path)})
    said: list[str] = []
    with _recording(said):
        result = resolved(configure(checkpoint, async_scheduling=True))
    assert result.model_class == "bundled_llama:Bundled"
    assert (result.async_on, result.chunked_prefill, result.prefix_caching) == (True, False, False)
    assert "capabilities not known here: new_thing" in result.describe()
    assert "model bundle 'broken' skipped: vllm_metadata.json holds a list, not an object" in said
    assert not any("not-a-bundle" in line for line in said)


def _recording(into: list[str]) -> Any:
    """Collect what our loggers say below vLLM's, which do not propagate to the root."""
    import logging
    from contextlib import contextmanager

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            into.append(record.getMessage())

    @contextmanager
    def attached() -> Iterator[None]:
        logger, handler = logging.getLogger("vllm"), Collect()
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)

    return attached()


def argument_parser() -> Any:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    make: Any = FlexibleArgumentParser
    return make()


def test_the_command_lines_defaults_are_one_api_server_and_a_device_batch() -> None:
    from vllm.platforms import current_platform

    parser = argument_parser()
    parser.add_argument("--api-server-count", type=int, default=None)
    parser.add_argument("--max-num-seqs", type=int, default=None)
    current_platform.pre_register_and_update(parser)
    assert parser.parse_args([]).api_server_count == 1
    assert parser.parse_args([]).max_num_seqs == 32
    assert parser.parse_args(["--api-server-count", "2"]).api_server_count == 2


def test_a_command_line_in_a_wrong_environment_ends_with_the_sentence(
    environment: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from vllm.platforms import current_platform

    environment({"VLLM_USE_RUST_FRONTEND": "1"})
    with pytest.raises(SystemExit):
        current_platform.pre_register_and_update(argument_parser())
    assert "VLLM_USE_RUST_FRONTEND=1 would skip the request checks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "parameter", "value"),
    [
        ({"prompt_logprobs": 0}, "prompt_logprobs", 0),
        ({"logit_bias": {300: 1.0}}, "logit_bias", [300]),
        ({"stop_token_ids": [300]}, "stop_token_ids", [300]),
        ({"allowed_token_ids": [35], "bad_words": ["A"]}, "allowed_token_ids", [35]),
        ({"allowed_token_ids": [2], "min_tokens": 1}, "allowed_token_ids", [2]),
    ],
)
def test_a_request_is_refused_with_its_parameter(
    checkpoint: Path, asked: dict[str, Any], parameter: str, value: Any
) -> None:
    """Also where the release's own front end would let it through."""
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError
    from vllm.platforms import current_platform

    configure(checkpoint)
    tokens: Any = {"type": "token", "prompt_token_ids": [5, 6, 7]}
    current_platform.validate_request(tokens, SamplingParams())
    with pytest.raises(VLLMValidationError) as caught:
        current_platform.validate_request(tokens, SamplingParams(**asked))
    assert (caught.value.parameter, caught.value.value) == (parameter, value)


def test_prompt_embeddings_and_long_prompts_are_refused(checkpoint: Path) -> None:
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError
    from vllm.platforms import current_platform

    configure(checkpoint, max_model_len=64)
    inputs: Any
    for inputs, parameter in (
        ({"type": "embeds", "prompt_embeds": None}, "prompt_embeds"),
        ({"type": "token", "prompt_token_ids": [5] * 64}, "input_tokens"),
    ):
        with pytest.raises(VLLMValidationError) as caught:
            current_platform.validate_request(inputs, SamplingParams())
        assert caught.value.parameter == parameter


def test_what_is_called_on_a_model_class_is_checked_before_a_mesh_is_opened() -> None:
    from stepshape.adapters.vllm.tenstorrent.config import class_problems

    class Unfit:
        def get_max_tokens_all_users(self) -> int:
            return 1

    assert class_problems(Unfit) == (
        "Unfit has no initialize_vllm_model, which every model needs; add the classmethod",
        "Unfit.get_max_tokens_all_users is a function and is called on the class; make it a classmethod",
    )
