"""What a launch on Spyre may ask for, and what is changed for it, each with the reason (spyre contract 1.3 to 1.5).

Where the public plugin's architecture page and its newer code differ, the safer is taken: it is named at the rule.
Settling twice changes nothing more: the hook runs in the front end and again in the engine process.
"""

from __future__ import annotations

import attrs

from .capacity import cdiv
from .head_padding import STICK, round_up
from .rules import SHUTDOWN_SECONDS, Adjustment, Field

MAX_MODEL_LEN = 2048
"""Tokens, where the user names no ``--max-model-len``: warm-up grows with it."""
MAX_NUM_SEQS = 4
"""Sequences, where the user names no ``--max-num-seqs``."""
BLOCK_SIZE = 128
"""Tokens a KV page where the user names none."""
KV_BYTES = 4 << 30
"""Bytes for the KV cache where the user names none."""
GATHER_SPAN = 1 << 30
"""Bytes: a layer's K (or V) pages must stay below, or the device cannot gather from them (contract 4.7)."""


@attrs.frozen(kw_only=True)
class SpyreFacts:
    """A launch as plain values, before anything of ours has changed it."""

    dtype: str = "float16"
    """the name torch gives it"""
    allowed_dtypes: tuple[str, ...] = ("float16",)
    """what this device computes in"""
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    prefill_context_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    nnodes: int = 1
    speculative: bool = False
    lora: bool = False
    kv_transfer: bool = False
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    runner_type: str = "generate"
    encoder_decoder: bool = False
    multimodal: bool = False
    experts: int = 0
    """experts a layer; 0: the model is dense"""
    v2_model_runner: str | None = None
    """``VLLM_USE_V2_MODEL_RUNNER`` as set; None: unset"""
    hidden_size: int = 0
    max_model_len: int = 0
    max_num_seqs: int = 1
    block_size: int | None = None
    """tokens; None: the user named none"""
    kv_memory_bytes: int | None = None
    num_blocks_override: int | None = None
    hybrid_off: bool = False
    own_layers: bool = True
    """False: the user asked for ``custom_ops`` 'none', which puts vLLM's layers in place of the device's"""
    shutdown_timeout: int = SHUTDOWN_SECONDS
    chunked_prefill: bool = True
    body_top: int | None = None
    """tokens of the widest body shape; None: bodies run at their own length"""


RECURRENT = "models with recurrent state are not supported on Spyre; serve one whose layers all attend"
"""Said before there are facts: such a model may have no heads to read."""


def spyre_refusals(facts: SpyreFacts) -> tuple[str, ...]:
    """A sentence for each thing that is asked for and cannot be had. Empty: none."""
    problems: list[str] = []
    if facts.dtype not in facts.allowed_dtypes:
        problems.append(
            f"dtype {facts.dtype} is not supported on this Spyre device; use --dtype {facts.allowed_dtypes[0]}, or "
            "leave --dtype out"
        )
    sizes = (
        ("pipeline_parallel_size", facts.pipeline_parallel_size, "a collective on Spyre reduces over every card"),
        ("data_parallel_size", facts.data_parallel_size, "an engine has one scheduler and one group of cards"),
        ("prefill_context_parallel_size", facts.prefill_context_parallel_size, "a sequence's pages stay on one card"),
        ("decode_context_parallel_size", facts.decode_context_parallel_size, "a sequence's pages stay on one card"),
    )
    for name, size, why in sizes:
        if size != 1:
            problems.append(f"{name}={size} is not supported on Spyre, {why}; use 1")
    if facts.nnodes > 1:
        problems.append("launching over several hosts is not supported on Spyre; leave --nnodes out")
    refused = (
        (facts.speculative, "speculative decoding is not supported on Spyre; leave --speculative-config out"),
        (facts.lora, "LoRA is not supported on Spyre; leave --enable-lora out and serve merged weights"),
        (facts.kv_transfer, "KV transfer is not supported on Spyre; leave --kv-transfer-config out"),
        (facts.encoder_decoder, "encoder-decoder models are not supported on Spyre; serve a decoder-only model"),
        (facts.experts > 0, "mixture-of-experts models are not supported on Spyre; serve a dense model"),
        (facts.multimodal, "image, audio and video inputs are not supported on Spyre; serve a model of text alone"),
    )
    problems.extend(sentence for asked, sentence in refused if asked)
    if facts.quantization is not None:
        problems.append(
            f"quantization {facts.quantization} is not supported on Spyre; serve a checkpoint of plain weights"
        )
    if facts.kv_cache_dtype not in ("auto", *facts.allowed_dtypes):
        problems.append(
            f"kv_cache_dtype={facts.kv_cache_dtype} is not supported on Spyre, pages have the model's type; leave "
            "--kv-cache-dtype out"
        )
    if facts.runner_type != "generate":
        problems.append(f"runner {facts.runner_type!r} is not supported on Spyre; serve a model that generates text")
    if facts.v2_model_runner not in (None, "0"):
        problems.append(
            f"VLLM_USE_V2_MODEL_RUNNER={facts.v2_model_runner} selects a runner this plugin does not drive; unset it "
            "or use 0"
        )
    if not facts.own_layers:
        problems.append(
            "custom_ops 'none' would run vLLM's own layers, which the device cannot; leave it out of "
            "--compilation-config"
        )
    if facts.hidden_size % STICK:
        problems.append(
            f"a hidden size of {facts.hidden_size} is no whole number of sticks of {STICK}, which a matrix product on "
            "Spyre needs; serve a model with a multiple of it"
        )
    if facts.block_size is not None:
        rounded = round_up(facts.block_size, STICK)
        if rounded & (rounded - 1):
            # The newer public code refuses this; the architecture page only warns, and then warms up a ladder that
            # is not the one it serves.
            problems.append(
                f"block_size={facts.block_size} is {rounded} in whole sticks of {STICK} tokens, which is no power of "
                "two; use 64, 128, 256 or 512"
            )
    if not facts.chunked_prefill and facts.body_top is not None and facts.max_model_len > facts.body_top:
        problems.append(
            f"with chunked prefill off a step must hold a prompt of {facts.max_model_len} tokens and the widest body "
            f"has {facts.body_top}; leave --no-enable-chunked-prefill out, or use --max-model-len {facts.body_top}"
        )
    return tuple(problems)


def spyre_adjustments(facts: SpyreFacts) -> tuple[Adjustment, ...]:
    """What is changed for a launch that is not refused, in order."""
    changes: list[Adjustment] = []
    if facts.block_size is None:
        block_size = BLOCK_SIZE
        changes.append(Adjustment(Field.BLOCK_SIZE, BLOCK_SIZE, "the page size where --block-size is left out"))
    else:
        block_size = round_up(facts.block_size, STICK)
        if block_size != facts.block_size:
            changes.append(
                Adjustment(Field.BLOCK_SIZE, block_size, f"a page is a whole number of sticks of {STICK}", True)
            )
    if not facts.hybrid_off:
        # Newer than the architecture page, which instead left the pages of such models unplanned.
        why = "every layer owns its pages, the device cannot view one buffer at several offsets"
        changes.append(Adjustment(Field.HYBRID_OFF, True, why))
    if facts.kv_memory_bytes is None:
        changes.append(Adjustment(Field.KV_MEMORY, KV_BYTES, "the KV cache where --kv-cache-memory-bytes is left out"))
    if facts.num_blocks_override is None:
        blocks = facts.max_num_seqs * cdiv(facts.max_model_len, block_size) + 1
        why = "every sequence at full length, and the null page"  # the null page is newer than the architecture page
        changes.append(Adjustment(Field.NUM_BLOCKS, blocks, why))
    if facts.shutdown_timeout == 0:
        why = "the worker needs time to close the device on shutdown"
        changes.append(Adjustment(Field.SHUTDOWN_TIMEOUT, SHUTDOWN_SECONDS, why))
    return tuple(changes)


def gather_refusal(*, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, itemsize: int) -> str | None:
    """Why the device could not gather from a layer's pages; None if it can. Sizes as the device stores them."""
    span = num_blocks * block_size * num_kv_heads * head_size * itemsize
    if span < GATHER_SPAN:
        return None
    most = GATHER_SPAN // (block_size * num_kv_heads * head_size * itemsize) - 1
    return (
        f"{num_blocks} pages of a layer take {span} bytes and the device gathers from less than {GATHER_SPAN}; use "
        f"--num-gpu-blocks-override {most} or less, or a smaller --max-model-len"
    )
