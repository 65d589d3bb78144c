"""From a ``VllmConfig`` to what a Spyre engine runs with, and back: facts read, rules asked, changes written.

vLLM calls two hooks on a config, in the front end and again in the engine process on the changed values. What was
decided the first time is kept as plain JSON in ``additional_config``, which is pickled along, and stands.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import attrs
import torch
from vllm.config import CompilationMode, CUDAGraphMode, VllmConfig
from vllm.config.model import _FLOAT16_NOT_SUPPORTED_MODELS
from vllm.logger import init_logger

from ....domain.attention_plan import DecodeForm
from ....domain.buckets import body_sizes
from ....domain.head_padding import Widening, head_refusal, head_widening, mlp_widening
from ....domain.rules import ConfigurationError
from ....domain.selection import Device
from ....domain.spyre_options import Granularity, Guard, SpyreOptions, SpyreOptionsError, read_spyre_options
from ....domain.spyre_rules import RECURRENT, SpyreFacts, spyre_adjustments, spyre_refusals
from ..adjustments import apply_adjustment, scheduler_refusal

SECTION = "_stepshape_spyre"
"""Our key of ``additional_config``."""
SCHEDULERS = {
    False: "stepshape.adapters.vllm.spyre.scheduler.SpyreScheduler",
    True: "stepshape.adapters.vllm.spyre.scheduler.SpyreAsyncScheduler",
}
"""By whether scheduling is asynchronous."""

# vLLM's own logger: its lines reach the user of `vllm serve`, under its format and level.
log = init_logger(f"vllm.{__name__}")


@attrs.frozen(kw_only=True)
class Host:
    """What the composition root read of this process's host."""

    device: Device
    problems: tuple[str, ...]
    """why the selection of the device, or what the environment says of it, cannot stand"""
    environment: Mapping[str, str]
    dtypes: tuple[str, ...]
    """what the device computes in, by torch's names; the first is the default"""
    worker: str
    """class path of the worker that knows which device to load"""

    def refusals(self) -> tuple[str, ...]:
        """The refusals that need no model: asked before the command line is parsed."""
        own = self.problems
        try:
            read_spyre_options(self.environment)
        except SpyreOptionsError as error:
            own += error.problems
        return own


@attrs.frozen(kw_only=True)
class SpyreConfig:
    """What a launch comes down to. The same in the front end and in the engine process."""

    device: Device
    options: SpyreOptions
    body: tuple[int, ...]
    """rows of the packed body, ascending; empty: bodies run at their own length"""
    heads: Widening
    mlp: Widening
    compiled: bool

    def describe(self) -> str:
        """The start-up line."""
        parts = [f"body shapes {', '.join(map(str, self.body)) or 'none'}"]
        if self.compiled:
            parts.append(f"compiled by {self.options.granularity.value}")
        else:
            parts.append("eager")
        if self.heads.needed:
            parts.append(f"heads of {self.heads.orig} lanes stored in {self.heads.padded}")
        if self.mlp.needed:
            parts.append(f"MLPs of {self.mlp.orig} columns stored in {self.mlp.padded}")
        parts.append(f"decode {self.options.decode.value}")
        return f"Spyre ({self.device.value}): {'; '.join(parts)}"


def resolved(vllm_config: VllmConfig) -> SpyreConfig:
    """What the hooks stored. Raises :class:`ConfigurationError` if they have not run on this config."""
    result = _stored(vllm_config)
    if result is None:
        raise ConfigurationError(
            ("the configuration was not checked by the Spyre platform; build it with EngineArgs.create_engine_config",)
        )
    return result


def torch_dtype(model_config: Any) -> torch.dtype:
    """The model's type; vLLM also allows names there, which it has replaced by the time a worker asks."""
    dtype = model_config.dtype
    assert isinstance(dtype, torch.dtype), "ModelConfig replaces names by types"
    return dtype


def apply_defaults(vllm_config: Any, host: Host) -> None:
    """The first hook: compile mode and body shapes, before vLLM derives anything from them.

    Raises :class:`ConfigurationError` for a wrong environment.
    """
    if vllm_config.model_config is None:
        return
    problems = host.refusals()
    if problems:
        raise ConfigurationError(problems)
    if vllm_config.model_config.is_attention_free or vllm_config.model_config.has_inner_state:
        raise ConfigurationError((RECURRENT,))
    compilation, scheduler = vllm_config.compilation_config, vllm_config.scheduler_config
    before = _stored(vllm_config)
    _half_precision(vllm_config.model_config)
    # Only enforce_eager says eager: vLLM rewrites the mode between one call of this hook and the next.
    eager = vllm_config.model_config.enforce_eager
    wanted = CompilationMode.NONE if eager else CompilationMode.STOCK_TORCH_COMPILE
    if compilation.mode not in (None, wanted) and before is None and not eager:
        log.warning("Spyre: compilation mode %s gives way to stock torch.compile, block by block", compilation.mode)
    compilation.mode = wanted
    compilation.cudagraph_mode = CUDAGraphMode.NONE
    if not {"all", "none"} & set(compilation.custom_ops):
        # vLLM would add "none" next, under a compiler, and its own layers would run in place of ours (contract 8.18).
        compilation.custom_ops.append("all")
    if before is None:
        if compilation.compile_sizes is None:
            body = body_sizes(scheduler.max_num_batched_tokens, scheduler.max_num_seqs).sizes
        else:
            body = tuple(sorted({int(size) for size in compilation.compile_sizes}))
        config = SpyreConfig(
            device=host.device,
            options=read_spyre_options(host.environment),
            body=body,
            heads=_heads(vllm_config),
            mlp=_mlp(vllm_config),
            compiled=not eager,
        )
        vllm_config.additional_config = {**_additional(vllm_config), SECTION: _to_json(config)}
    else:
        body = before.body
    compilation.compile_sizes = list(body)
    if body and scheduler.max_num_batched_tokens != body[-1]:
        if before is None:
            say = log.warning if scheduler.max_num_batched_tokens > body[-1] else log.info
            say(
                "Spyre: max_num_batched_tokens set from %d to %d: no step may exceed the widest body shape",
                scheduler.max_num_batched_tokens,
                body[-1],
            )
        scheduler.max_num_batched_tokens = body[-1]


def check_and_update(vllm_config: Any, host: Host) -> SpyreConfig | None:
    """The second hook: refuse, then change; None for a config without a model.

    Raises :class:`ConfigurationError` with every problem found.
    """
    if vllm_config.model_config is None:
        return None
    config = resolved(vllm_config)
    facts = _read_facts(vllm_config, host, config)
    problems = host.refusals() + spyre_refusals(facts)
    ropes = _ropes(vllm_config)
    head_problem = head_refusal(
        rotary_dim=ropes[0].get("rope_dim"),
        partial_rotary_factor=ropes[0].get("partial_rotary_factor"),
        widening=config.heads,
        kinds={str(rope.get("rope_type") or "default") for rope in ropes},
    )
    replaced = scheduler_refusal(vllm_config, SCHEDULERS.values())
    problems += tuple(problem for problem in (head_problem, replaced) if problem is not None)
    if problems:
        raise ConfigurationError(problems)
    quiet = _section(vllm_config).get("announced", False)
    for adjustment in spyre_adjustments(facts):
        apply_adjustment(vllm_config, adjustment, device="Spyre", quiet=quiet)
    _widen(vllm_config, config)
    parallel, scheduler = vllm_config.parallel_config, vllm_config.scheduler_config
    if parallel.worker_cls == "auto":
        parallel.worker_cls = host.worker
    scheduler.scheduler_cls = SCHEDULERS[bool(scheduler.async_scheduling)]
    if not quiet:
        log.info("%s", config.describe())
        section = {**_section(vllm_config), "announced": True, "block_size": vllm_config.cache_config.block_size}
        vllm_config.additional_config = {**_additional(vllm_config), SECTION: section}
    return config


def _half_precision(model: Any) -> None:
    """vLLM turns fp16 away for a few architectures (Gemma among them) and resolves ``auto`` to fp32 there. The card has
    nothing but fp16, and our norms do not overflow where theirs would: it is set here, after vLLM has looked."""
    if model.dtype is torch.float32 and model.hf_config.model_type in _FLOAT16_NOT_SUPPORTED_MODELS:
        log.warning("Spyre: %s is served in float16, the only type of the card", model.hf_config.model_type)
        model.dtype = torch.float16


def _widen(vllm_config: Any, config: SpyreConfig) -> None:
    """Tell the model, and vLLM's page accounting, the sizes that are stored."""
    model = vllm_config.model_config
    for hf_config in (model.hf_config, model.hf_text_config):
        if config.heads.needed:
            hf_config.head_dim = config.heads.padded
        if config.mlp.needed:
            hf_config.intermediate_size = config.mlp.padded
    if config.heads.needed:
        model.model_arch_config.head_size = config.heads.padded


def _heads(vllm_config: Any) -> Widening:
    """Heads are widened where they are rotated; a model without rotary embedding is left alone (contract 2.10)."""
    head_size = vllm_config.model_config.get_head_size()
    return head_widening(head_size) if _ropes(vllm_config)[0] else Widening(head_size, head_size)


def _ropes(vllm_config: Any) -> list[dict[str, Any]]:
    """The rotary parameters of each kind of layer; at least one, which is empty for a model that rotates nothing."""
    parameters = getattr(vllm_config.model_config.hf_text_config, "rope_parameters", None) or {}
    return [value for value in parameters.values() if isinstance(value, dict)] or [parameters]


def _mlp(vllm_config: Any) -> Widening:
    size = getattr(vllm_config.model_config.hf_text_config, "intermediate_size", None)
    if isinstance(size, (list, tuple)):
        raise ConfigurationError(
            ("MLPs of a different width in each layer do not run on Spyre; serve a model with one width",)
        )
    if size is None:
        return Widening(0, 0)
    return mlp_widening(size, vllm_config.parallel_config.tensor_parallel_size)


def _read_facts(vllm_config: Any, host: Host, config: SpyreConfig) -> SpyreFacts:
    parallel, scheduler = vllm_config.parallel_config, vllm_config.scheduler_config
    model, cache = vllm_config.model_config, vllm_config.cache_config
    settled = _section(vllm_config).get("block_size")
    block_size = settled if settled is not None else cache.block_size if cache.user_specified_block_size else None
    return SpyreFacts(
        dtype=str(model.dtype).removeprefix("torch."),
        allowed_dtypes=host.dtypes,
        tensor_parallel_size=parallel.tensor_parallel_size,
        pipeline_parallel_size=parallel.pipeline_parallel_size,
        data_parallel_size=parallel.data_parallel_size,
        prefill_context_parallel_size=parallel.prefill_context_parallel_size,
        decode_context_parallel_size=parallel.decode_context_parallel_size,
        nnodes=parallel.nnodes,
        speculative=vllm_config.speculative_config is not None,
        lora=vllm_config.lora_config is not None,
        kv_transfer=vllm_config.kv_transfer_config is not None,
        quantization=model.quantization,
        kv_cache_dtype=cache.cache_dtype,
        runner_type=model.runner_type,
        encoder_decoder=model.is_encoder_decoder,
        multimodal=model.multimodal_config is not None and not model.multimodal_config.language_model_only,
        experts=model.get_num_experts(),
        v2_model_runner=host.environment.get("VLLM_USE_V2_MODEL_RUNNER"),
        hidden_size=model.get_hidden_size(),
        max_model_len=model.max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        block_size=block_size,
        kv_memory_bytes=cache.kv_cache_memory_bytes,
        num_blocks_override=cache.num_gpu_blocks_override,
        hybrid_off=bool(scheduler.disable_hybrid_kv_cache_manager),
        own_layers="none" not in vllm_config.compilation_config.custom_ops,
        shutdown_timeout=vllm_config.shutdown_timeout,
        chunked_prefill=bool(scheduler.enable_chunked_prefill),
        body_top=config.body[-1] if config.body else None,
    )


def _additional(vllm_config: Any) -> dict[str, Any]:
    extra = vllm_config.additional_config
    return extra if isinstance(extra, dict) else {}


def _section(vllm_config: Any) -> dict[str, Any]:
    section = _additional(vllm_config).get(SECTION)
    return section if isinstance(section, dict) else {}


def _stored(vllm_config: Any) -> SpyreConfig | None:
    section = _section(vllm_config)
    if not section:
        return None
    options = dict(section["options"])
    options["granularity"] = Granularity(options["granularity"])
    options["decode"] = DecodeForm(options["decode"])
    options["guard"] = Guard(options["guard"])
    options["devices"] = None if options["devices"] is None else tuple(options["devices"])
    return SpyreConfig(
        device=Device(section["device"]),
        options=SpyreOptions(**options),
        body=tuple(section["body"]),
        heads=Widening(**section["heads"]),
        mlp=Widening(**section["mlp"]),
        compiled=section["compiled"],
    )


def _to_json(config: SpyreConfig) -> dict[str, Any]:
    """Plain JSON values."""

    def plain(_owner: Any, _field: Any, value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return value.value
        return list(value) if isinstance(value, tuple) else value

    return attrs.asdict(config, value_serializer=plain)
