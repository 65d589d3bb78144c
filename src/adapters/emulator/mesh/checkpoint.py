"""Load a real checkpoint into transformers' own modelling code, or say why the emulator cannot run it.

Nothing here knows an architecture by name. What a model is turns on what it is seen to do in a probe: which
layers call the attention interface, with how many heads, and whether a paged run of a few tokens gives the
logits that the model's own eager attention gives.
"""
from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import numpy as np
import structlog
import torch
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging as transformers_logging

from .attention_math import one_sequence
from .kv_cache import LayerHeads, PagedKVCache
from .paged_attention import (
    AttentionCall,
    AttentionStep,
    DecodeStep,
    PageTables,
    PrefillStep,
    Span,
    UnsupportedAttentionError,
    register_paged_attention,
)

_PROBE_TOKENS = 6
_PROBE_PREFILL = 4
_BLOCK = 2
# Share of the logits' range by which the paged run may differ from the model's own (rounding of the dtype).
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}


log = structlog.get_logger(__name__)


class CheckpointError(ValueError):
    """There is no checkpoint to load, or it cannot be read."""


class UnsupportedArchitectureError(ValueError):
    """The architecture keeps state, or attends, in a way that the emulator cannot page."""


@attrs.frozen(kw_only=True)
class LayerTraits:
    heads: LayerHeads
    window: int | None
    """sliding window, tokens; None: the whole context"""


@attrs.frozen(kw_only=True, eq=False)
class LoadedModel:
    """A causal language model whose attention goes through ``paged_attention``."""

    name: str
    module: Any
    layers: tuple[LayerTraits, ...]
    vocab_size: int
    dtype: torch.dtype

    def logits(
        self, tokens: torch.Tensor, positions: torch.Tensor, step: AttentionStep, keep: torch.Tensor
    ) -> torch.Tensor:
        """Run packed int64 [T] tokens at int64 [T] positions; float32 [K, V] for the tokens int64 [K] ``keep``."""
        out = self.module(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=keep,
            paged_step=step,
        )
        logits: torch.Tensor = out.logits[0].float()
        return logits


def load_model(hf_config: Any, *, dtype: torch.dtype | None = None) -> LoadedModel:
    """Load the checkpoint at ``hf_config._name_or_path``.

    ``dtype``: what to compute in; None: ``hf_config.dtype``, else float32. Raises :class:`CheckpointError` and
    :class:`UnsupportedArchitectureError`.
    """
    path = str(hf_config._name_or_path or "")
    if not path:
        raise CheckpointError("the model's config names no checkpoint; give the model as a path or a hub name")
    # A copy: loading writes the attention implementation into the config, and vLLM's registry has put
    # a "TT" before the architecture names of its own.
    config = copy.deepcopy(hf_config)
    config.architectures = [name.removeprefix("TT") for name in config.architectures or ()]
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    name = config.architectures[0] if config.architectures else type(config).__name__
    if model_class is None:
        raise UnsupportedArchitectureError(
            f"{name} has no causal language model in transformers ({type(config).__name__}); serve a text model"
        )
    name = model_class.__name__
    _refuse_by_class(model_class)
    chosen = dtype or _dtype_of(hf_config)
    began = time.monotonic()
    try:
        with _no_progress_bars():
            module = model_class.from_pretrained(
                path, config=config, dtype=chosen, attn_implementation=register_paged_attention()
            )
    except OSError as error:
        first = str(error).splitlines()[0]
        raise CheckpointError(
            f"no checkpoint could be read at {path!r} ({first}); give a folder with config.json and weights"
        ) from error
    module.eval()
    text = config.get_text_config()
    layers = _probe(name, module, int(text.num_hidden_layers), int(text.vocab_size), chosen)
    log.info(
        "model_loaded",
        model=name,
        layers=len(layers),
        dtype=str(chosen).removeprefix("torch."),
        seconds=round(time.monotonic() - began, 1),
    )
    return LoadedModel(name=name, module=module, layers=layers, vocab_size=int(text.vocab_size), dtype=chosen)


def load_config(path: str) -> Any:
    """The HF config of a checkpoint folder, for callers that have no vLLM config."""
    return AutoConfig.from_pretrained(path)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Server logs are no terminal. Puts the setting back as it was."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _dtype_of(hf_config: Any) -> torch.dtype:
    dtype = hf_config.dtype
    if isinstance(dtype, str):
        dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}.get(dtype)
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def _refuse(name: str, reason: str) -> UnsupportedArchitectureError:
    return UnsupportedArchitectureError(
        f"{name} cannot run on the emulated mesh: {reason}; serve a model whose layers call transformers' "
        "attention interface with their own keys and values"
    )


def _refuse_by_class(model_class: Any) -> None:
    # Both are class attributes of PreTrainedModel. Asked before the weights are read.
    if model_class._is_stateful:
        raise _refuse(model_class.__name__, "it keeps recurrent state besides the KV cache")
    if not model_class._supports_attention_backend:
        raise _refuse(model_class.__name__, "its layers do not go through transformers' attention interface")


@attrs.define(eq=False)
class _Recorder:
    """Runs plain causal attention and notes who called."""

    calls: list[AttentionCall] = attrs.field(factory=list)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        self.calls.append(call)
        return one_sequence(
            call.query.transpose(0, 1), call.key.transpose(0, 1), call.value.transpose(0, 1), 0, call.scoring
        )


@torch.no_grad()
def _probe(name: str, module: Any, num_layers: int, vocab_size: int, dtype: torch.dtype) -> tuple[LayerTraits, ...]:
    tokens = (torch.arange(_PROBE_TOKENS) * 7 + 3) % vocab_size
    positions = torch.arange(_PROBE_TOKENS)
    last = torch.tensor([_PROBE_TOKENS - 1])
    recorder = _Recorder()
    model = LoadedModel(name=name, module=module, layers=(), vocab_size=vocab_size, dtype=dtype)
    try:
        model.logits(tokens, positions, recorder, last)
    except UnsupportedAttentionError as error:
        raise _refuse(name, str(error)) from None
    layers = _layers(name, recorder.calls, num_layers)
    paged = _paged_logits(model, layers, tokens, positions)
    if paged.shape != (1, vocab_size):
        raise _refuse(name, f"it returns logits of shape {tuple(paged.shape)} for one position")
    module.set_attn_implementation("eager")
    own = module(input_ids=tokens[None], use_cache=False).logits[0, -1:].float()
    module.set_attn_implementation(register_paged_attention())
    spread = float(own.max() - own.min())
    if float((paged - own).abs().max()) > _TOLERANCE[dtype] * max(spread, 1e-6):
        raise _refuse(name, "its logits change when its attention is paged, so it keeps or mixes state elsewhere")
    return layers


def _layers(name: str, calls: Sequence[AttentionCall], num_layers: int) -> tuple[LayerTraits, ...]:
    seen = {call.layer for call in calls}
    missing = [layer for layer in range(num_layers) if layer not in seen]
    if missing:
        raise _refuse(name, f"layers {missing[:4]} do not attend, so they keep recurrent state of their own")
    if len(calls) != num_layers:
        raise _refuse(name, f"{num_layers} layers call attention {len(calls)} times")
    if len({call.key.data_ptr() for call in calls}) != len(calls):
        raise _refuse(name, "some layers share the keys and values of others")
    ordered = sorted(calls, key=lambda call: call.layer)
    return tuple(
        LayerTraits(
            heads=LayerHeads(
                kv_heads=call.key.shape[1], key_size=call.key.shape[2], value_size=call.value.shape[2]
            ),
            window=call.scoring.window,
        )
        for call in ordered
    )


def _paged_logits(
    model: LoadedModel, layers: Sequence[LayerTraits], tokens: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Logits of the last probe token: some tokens prefilled, the rest decoded one by one."""
    blocks = -(-_PROBE_TOKENS // _BLOCK)
    cache = PagedKVCache(
        lanes=1,
        num_blocks=blocks + 1,
        block_size=_BLOCK,
        layers=[layer.heads for layer in layers],
        dtype=model.dtype,
    )
    tables = PageTables((np.arange(1, blocks + 1, dtype=np.int64)[None],), [0] * len(layers))
    row, where = np.zeros(_PROBE_PREFILL, np.int64), np.arange(_PROBE_PREFILL)
    span = Span(0, 0, _PROBE_PREFILL, 0)
    step: AttentionStep = PrefillStep(cache, tables, [span], row, where)
    keep = torch.tensor([_PROBE_PREFILL - 1])
    logits = model.logits(tokens[:_PROBE_PREFILL], positions[:_PROBE_PREFILL], step, keep)
    for position in range(_PROBE_PREFILL, _PROBE_TOKENS):
        step = DecodeStep(cache, tables, row[:1], np.array([position]))
        logits = model.logits(
            tokens[position : position + 1], positions[position : position + 1], step, torch.tensor([0])
        )
    return logits
