"""Loads a checkpoint on the host into padded heads and MLPs, and checks that it went where it should (spyre contract
2.10, 2.11 and 4.4).
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import ModelConfig, VllmConfig
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.utils import get_model_architecture

from ....domain.head_padding import Widening
from .config import SpyreConfig
from .layers.vocabulary import prepare_tied_head

Widen = Callable[[str, Tensor], Tensor]
"""A checkpoint name and its whole weight, to the weight as it is stored."""


class WideningLoader(DefaultModelLoader):
    """vLLM's loader of checkpoint folders; each weight is widened as it is read, before it is sharded."""

    def __init__(self, load_config: Any, widen: Widen) -> None:
        super().__init__(load_config)
        self._widen = widen

    def get_all_weights(self, model_config: ModelConfig, model: nn.Module) -> Generator[tuple[str, Tensor], None, None]:
        for name, weight in super().get_all_weights(model_config, model):
            yield name, self._widen(name, weight)


_FORMATS = ("auto", "hf", "safetensors", "pt")


def load_on_host(vllm_config: VllmConfig, config: SpyreConfig, widen: Widen, dtype: torch.dtype) -> nn.Module:
    """The model on the host, its weights ``dtype`` and in the form that the device stores.

    Raises NotImplementedError for a load format that does not read whole checkpoint tensors, RuntimeError if a layer
    is not as wide as planned.
    """
    load_config = vllm_config.load_config
    if str(load_config.load_format) not in _FORMATS:
        raise NotImplementedError(
            f"load format {load_config.load_format!r} does not hand over whole weights to pad; leave --load-format out"
        )
    model_config = copy.copy(vllm_config.model_config)
    model_config.dtype = dtype
    with _recomputed_head_size(vllm_config, config.heads), _rotary_layers_of_its_own(config.heads):
        model: nn.Module = WideningLoader(load_config, widen).load_model(vllm_config, model_config)
    prepare_tied_head(model)
    _settle_heads(model, config.heads, vllm_config)
    _check_mlps(model, config.mlp, vllm_config.parallel_config.tensor_parallel_size)
    return model


@contextmanager
def naming_the_model(model_config: ModelConfig, what: str) -> Iterator[None]:
    """An architecture that was never tried may fail anywhere, with an error that only the author of its code can read:
    say which model, and what to do, besides. Raises RuntimeError from it."""
    try:
        yield
    except Exception as error:
        raise RuntimeError(
            f"{' or '.join(model_config.architectures)} cannot {what} ({type(error).__name__}: {error}); serve an "
            "architecture that docs/spyre.md lists, or read the cause above to bring this one up"
        ) from error


@contextmanager
def _rotary_layers_of_its_own(heads: Widening) -> Iterator[None]:
    """vLLM hands a rotary layer of the same sizes to the next model of a process. One of a padded head counts its
    frequencies over the real width, so it may neither come from a model whose heads are really so wide, nor be left to
    one, however the loading ends."""
    cache = rotary_embedding._ROPE_DICT
    kept = dict(cache)
    if heads.needed:
        cache.clear()
    try:
        yield
    finally:
        if heads.needed:
            cache.clear()
            cache.update(kept)


@contextmanager
def _recomputed_head_size(vllm_config: VllmConfig, heads: Widening) -> Iterator[None]:
    """While a model is built, an attention layer that derives its head size from the hidden size gets the padded one.

    Qwen 2 does (vLLM 0.26 to 0.33, ``models/qwen2.py``) and would load the first lanes of each head without a word.
    There is no hook; the classes are as they were once the model stands.
    """
    if not heads.needed:
        yield
        return
    architecture, _ = get_model_architecture(vllm_config.model_config)
    module = importlib.import_module(architecture.__module__)
    classes = [
        value
        for name, value in vars(module).items()
        if isinstance(value, type) and name.endswith("Attention") and value is not Attention
    ]
    own = [cls for cls in classes if issubclass(cls, nn.Module) and "head_dim" not in vars(cls)]
    for cls in own:
        cls.head_dim = _PaddedHeadSize(heads)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for cls in own:
            del cls.head_dim  # type: ignore[attr-defined]


class _PaddedHeadSize:
    """A data descriptor that stores the padded size where the checkpoint's own is assigned."""

    def __init__(self, heads: Widening) -> None:
        self._heads = heads

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        try:
            return instance.__dict__["head_dim"]
        except KeyError:
            raise AttributeError("head_dim") from None

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__["head_dim"] = self._heads.padded if value == self._heads.orig else value


_EXPLICIT_SCALES = ("query_pre_attn_scalar", "attention_multiplier", "attention_scale")
"""Config fields that set the attention's scale whatever the head size is."""


def _settle_heads(model: nn.Module, heads: Widening, vllm_config: VllmConfig) -> None:
    """Give padded heads the scale and the norm of their real width."""
    if not heads.needed:
        return
    text_config = vllm_config.model_config.hf_text_config
    explicit = any(getattr(text_config, name, None) is not None for name in _EXPLICIT_SCALES)
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            if module.head_size != heads.padded:
                raise RuntimeError(
                    f"{name} was built with heads of {module.head_size} lanes where {heads.padded} are stored; this "
                    "architecture cannot be padded, serve one with a head size that is a multiple of 128"
                )
            impl: Any = module.impl
            if not explicit and abs(impl.scale / heads.padded**-0.5 - 1) < 1e-3:
                impl.scale = heads.orig**-0.5
        elif isinstance(module, (RMSNorm, GemmaRMSNorm)) and name.rpartition(".")[2] in ("q_norm", "k_norm"):
            module.real_width = heads.orig


def _check_mlps(model: nn.Module, mlp: Widening, ranks: int) -> None:
    if not mlp.needed:
        return
    for name, module in model.named_modules():
        width = getattr(module, "input_size", None)
        if name.endswith("down_proj") and width is not None and width not in (mlp.padded, 2 * mlp.padded):
            raise RuntimeError(
                f"{name} reads {width} columns where {mlp.padded} are stored over {ranks} ranks; this architecture "
                f"cannot be padded, serve one with an intermediate size that is a multiple of {64 * ranks}"
            )
