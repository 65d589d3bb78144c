"""What a launch may ask for, and what is changed for it, each with the reason (tenstorrent contract 1.3 and 1.4).

Two functions over one plain value. :func:`launch_refusals` needs no model; :func:`settle` follows what the model
declares.
"""

from __future__ import annotations

import enum
from typing import Any

import attrs

from ..ports.capabilities import ModelCapabilities
from ..ports.sampling import SampleOnDevice
from .tt_options import TraceMode, TTOptions

MAX_LOGPROBS = 20
"""Log-probabilities a request may ask for: the OpenAI limit, below the 32 candidates a device yields (contract 1.4)."""
SHUTDOWN_SECONDS = 10
"""Grace for the engine to close its device where the user names none; at 0 vLLM kills it at once."""
BLOCK_SIZE = 64
"""Tokens a KV block where the user names none (contract 1.9)."""


class ConfigurationError(Exception):
    """The launch is refused; the message holds one sentence a problem.

    Not a ValueError: pydantic wraps those of vLLM's config hook into a page that hides the sentence.
    """

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Field(enum.Enum):
    """What an adjustment changes, by vLLM's name for it."""

    ASYNC_SCHEDULING = "scheduler_config.async_scheduling"
    CHUNKED_PREFILL = "scheduler_config.enable_chunked_prefill"
    MAX_NUM_BATCHED_TOKENS = "scheduler_config.max_num_batched_tokens"
    LONG_PREFILL_TOKEN_THRESHOLD = "scheduler_config.long_prefill_token_threshold"
    PREFIX_CACHING = "cache_config.enable_prefix_caching"
    BLOCK_SIZE = "cache_config.block_size"
    MAX_LOGPROBS = "model_config.max_logprobs"
    DISABLE_ANY_WHITESPACE = "structured_outputs_config.disable_any_whitespace"
    SHUTDOWN_TIMEOUT = "shutdown_timeout"
    HYBRID_OFF = "scheduler_config.disable_hybrid_kv_cache_manager"
    KV_MEMORY = "cache_config.kv_cache_memory_bytes"
    NUM_BLOCKS = "cache_config.num_gpu_blocks_override"


@attrs.frozen
class Adjustment:
    """One change. ``asked_for`` is True if it takes away what was (or may have been) asked for: a warning, not a
    note."""

    field: Field
    value: Any
    why: str
    asked_for: bool = False


@attrs.frozen(kw_only=True)
class ConfigFacts:
    """A launch as plain values, before anything of ours has changed it."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    prefill_context_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    nnodes: int = 1
    node_rank: int = 0
    speculative: bool = False
    lora: bool = False
    kv_transfer: bool = False
    quantization: str | None = None
    """``--quantization`` or what the checkpoint says; None: none"""
    kv_cache_dtype: str = "auto"
    executor: str | None = None
    """``distributed_executor_backend`` as far as it is known"""
    runner_type: str = "generate"
    encoder_decoder: bool = False
    max_model_len: int = 0
    max_num_batched_tokens: int = 0
    async_scheduling: bool = False
    chunked_prefill: bool = False
    long_prefill_token_threshold: int = 0
    prefix_caching: bool = False
    sliding_window: int | None = None
    """set where every layer has it or the pool is shaped by it"""
    user_block_size: bool = True
    max_logprobs: int = MAX_LOGPROBS
    """-1: the vocabulary"""
    disable_any_whitespace: bool = True
    shutdown_timeout: int = SHUTDOWN_SECONDS
    rust_frontend: bool = False
    v2_model_runner: str | None = None
    """``VLLM_USE_V2_MODEL_RUNNER`` as set; None: unset"""


def launch_refusals(facts: ConfigFacts) -> tuple[str, ...]:
    """A sentence for each thing that is asked for and cannot be had, whatever the model. Empty: none."""
    problems = list(parallel_refusals(facts))
    if facts.nnodes > 1 or facts.node_rank > 0:
        problems.append(
            "multi-host launch is not supported yet; leave --nnodes and --node-rank out and serve from one host"
        )
    if facts.speculative:
        problems.append("speculative decoding is not supported on a Tenstorrent mesh; leave --speculative-config out")
    if facts.lora:
        problems.append("LoRA is not supported on a Tenstorrent mesh; leave --enable-lora out and serve merged weights")
    if facts.kv_transfer:
        problems.append("KV transfer is not supported on a Tenstorrent mesh; leave --kv-transfer-config out")
    if facts.quantization is not None:
        problems.append(
            f"quantization={facts.quantization} is not applied on a Tenstorrent mesh, a model there chooses its own "
            "formats; leave --quantization out and serve an unquantized checkpoint"
        )
    if facts.kv_cache_dtype != "auto":
        problems.append(
            f"kv_cache_dtype={facts.kv_cache_dtype} is not applied on a Tenstorrent mesh, the KV cache has the model's "
            "dtype; leave --kv-cache-dtype out"
        )
    if facts.executor not in (None, "uni", "mp"):
        problems.append(
            f"distributed_executor_backend={facts.executor} is not supported, one process drives the mesh; use uni "
            "or leave it out"
        )
    if facts.runner_type != "generate":
        problems.append(
            f"runner {facts.runner_type!r} is not supported on a Tenstorrent mesh; serve a model that generates text"
        )
    if facts.encoder_decoder:
        problems.append("encoder-decoder models are not supported on a Tenstorrent mesh; serve a decoder-only model")
    problems.extend(environment_refusals(rust_frontend=facts.rust_frontend, v2_model_runner=facts.v2_model_runner))
    return tuple(problems)


def parallel_refusals(facts: ConfigFacts) -> tuple[str, ...]:
    """The sizes of parallelism that a mesh does not take from vLLM."""
    problems: list[str] = []
    sizes = (
        ("tensor_parallel_size", facts.tensor_parallel_size, "a model spans the chips of its mesh by itself"),
        ("pipeline_parallel_size", facts.pipeline_parallel_size, "a model spans the chips of its mesh by itself"),
        ("prefill_context_parallel_size", facts.prefill_context_parallel_size, "a prefill runs on one lane"),
        ("decode_context_parallel_size", facts.decode_context_parallel_size, "a lane holds its whole KV cache"),
    )
    for name, size, why in sizes:
        if size != 1:
            problems.append(
                f"{name}={size} is not supported on a Tenstorrent mesh, {why}; use 1 and choose the mesh with "
                "MESH_DEVICE"
            )
    return tuple(problems)


def environment_refusals(*, rust_frontend: bool, v2_model_runner: str | None) -> tuple[str, ...]:
    """The refusals that the environment alone decides, so that they can be said before a model is looked at."""
    problems: list[str] = []
    if rust_frontend:
        problems.append(
            "VLLM_USE_RUST_FRONTEND=1 would skip the request checks of the Tenstorrent platform; unset it and use "
            "the Python front end"
        )
    if v2_model_runner is not None and v2_model_runner != "0":
        problems.append(
            f"VLLM_USE_V2_MODEL_RUNNER={v2_model_runner} changes how resumed requests are scheduled, and the mesh "
            "runs the V1 "
            "contract; unset it or use 0"
        )
    return tuple(problems)


@attrs.frozen
class Verdict:
    """``refusals`` empty: the launch goes on with ``adjustments``, in order."""

    refusals: tuple[str, ...]
    adjustments: tuple[Adjustment, ...]


def settle(facts: ConfigFacts, capabilities: ModelCapabilities, options: TTOptions, model: str) -> Verdict:
    """What the model's declaration refuses or changes. ``model`` names the class in sentences. Settling twice changes
    nothing more: an adjustment is made only where the value differs."""
    refusals: list[str] = []
    if options.sampler is not SampleOnDevice.OFF and not capabilities.supports_sample_on_device:
        refusals.append(
            f"additional_config.tt.sample_on_device_mode={options.sample_on_device_mode.value} needs a device "
            f"sampler and {model} "
            "declares none; leave the option out to sample on the host"
        )
    changes: list[Adjustment] = []
    changes.extend(_async(facts, capabilities, options, model))
    changes.extend(_prefill(facts, capabilities, model))
    if facts.prefix_caching:
        if not capabilities.supports_prefix_caching:
            changes.append(
                Adjustment(Field.PREFIX_CACHING, False, f"{model} does not declare supports_prefix_caching", True)
            )
        elif facts.sliding_window is not None:
            changes.append(
                Adjustment(
                    Field.PREFIX_CACHING, False, "prefix caching is off where layers have a sliding window", True
                )
            )
    if not facts.user_block_size:
        changes.append(Adjustment(Field.BLOCK_SIZE, BLOCK_SIZE, "the mesh's block size where --block-size is left out"))
    if facts.max_logprobs > MAX_LOGPROBS or facts.max_logprobs < 0:
        changes.append(
            Adjustment(Field.MAX_LOGPROBS, MAX_LOGPROBS, "a device yields 32 candidates, the API allows 20", True)
        )
    if not facts.disable_any_whitespace:
        changes.append(
            Adjustment(Field.DISABLE_ANY_WHITESPACE, True, "greedy JSON can loop on whitespace up to the token limit")
        )
    if facts.shutdown_timeout == 0:
        changes.append(
            Adjustment(Field.SHUTDOWN_TIMEOUT, SHUTDOWN_SECONDS, "the worker needs time to close the mesh on shutdown")
        )
    return Verdict(tuple(refusals), tuple(changes))


def _async(facts: ConfigFacts, capabilities: ModelCapabilities, options: TTOptions, model: str) -> list[Adjustment]:
    if not facts.async_scheduling:
        return []
    if not capabilities.supports_async_decode:
        return [Adjustment(Field.ASYNC_SCHEDULING, False, f"{model} does not declare supports_async_decode", True)]
    if options.trace_mode is TraceMode.NONE:
        return [Adjustment(Field.ASYNC_SCHEDULING, False, "trace_mode=none runs every step to its end", True)]
    return []


def _prefill(facts: ConfigFacts, capabilities: ModelCapabilities, model: str) -> list[Adjustment]:
    if capabilities.supports_chunked_prefill:
        if facts.chunked_prefill or facts.max_num_batched_tokens >= facts.max_model_len:
            return []
        why = "with chunked prefill off a step must hold a whole prompt"
        return [Adjustment(Field.MAX_NUM_BATCHED_TOKENS, facts.max_model_len, why, True)]
    changes: list[Adjustment] = []
    reason = f"{model} does not declare supports_chunked_prefill"
    if facts.chunked_prefill:
        changes.append(Adjustment(Field.CHUNKED_PREFILL, False, reason))
    if facts.max_num_batched_tokens < facts.max_model_len:
        changes.append(
            Adjustment(
                Field.MAX_NUM_BATCHED_TOKENS, facts.max_model_len, f"{reason}: a step must hold a whole prompt", True
            )
        )
    if facts.long_prefill_token_threshold != 0:
        # vLLM's scheduler applies this cap before it looks at enable_chunked_prefill (contract 1.4).
        changes.append(Adjustment(Field.LONG_PREFILL_TOKEN_THRESHOLD, 0, f"{reason}: it would cut prompts", True))
    return changes
