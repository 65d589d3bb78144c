"""From vLLM's request to plain facts, and from a refusal to the error that becomes an HTTP 400."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from vllm.config import ModelConfig, VllmConfig
from vllm.exceptions import VLLMValidationError
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams
from vllm.tokenizers import cached_tokenizer_from_config

from ....domain.request_rules import RequestFacts, RequestLimits, refuse_request


def check_request(inputs: Any, params: SamplingParams | PoolingParams, vllm_config: VllmConfig) -> None:
    """Raise :class:`VLLMValidationError` if a mesh cannot serve the request.

    A plain ValueError would reach the client as a 500 with an empty message. ``inputs`` is vLLM's processed input: a
    mapping with ``type`` and, for tokens, ``prompt_token_ids``.
    """
    model = vllm_config.model_config
    limits = RequestLimits(vocab_size=model.get_vocab_size(), max_model_len=model.max_model_len)
    refusal = refuse_request(_facts(inputs, params, model), limits)
    if refusal is not None:
        raise VLLMValidationError(refusal.message, parameter=refusal.parameter, value=refusal.value)


def _facts(inputs: Any, params: SamplingParams | PoolingParams, model: ModelConfig) -> RequestFacts:
    if isinstance(params, PoolingParams):
        return RequestFacts(pooling=True)
    prompt = inputs.get("prompt_token_ids")
    return RequestFacts(
        prompt_embeds=inputs.get("type") == "embeds",
        prompt_tokens=None if prompt is None else len(prompt),
        prompt_logprobs=params.prompt_logprobs,
        logit_bias_ids=tuple(params.logit_bias or ()),
        stop_token_ids=tuple(params.stop_token_ids or ()),
        allowed_token_ids=params.allowed_token_ids,
        banned_token_ids=_banned(params, model),
        held_back_token_ids=_held_back(params, model),
    )


def _banned(params: SamplingParams, model: ModelConfig) -> Collection[int]:
    """Single-token ``bad_words``. vLLM tokenizes them after the check, so it is done here on a copy, where it
    matters."""
    if not params.bad_words or params.allowed_token_ids is None or model.skip_tokenizer_init:
        return ()
    copy = params.clone()
    copy.update_from_tokenizer(cached_tokenizer_from_config(model))
    return {ids[0] for ids in copy.bad_words_token_ids or () if len(ids) == 1}


def _held_back(params: SamplingParams, model: ModelConfig) -> Collection[int]:
    """End and stop tokens, where ``min_tokens`` masks them. vLLM adds the end tokens to the request after the check."""
    if params.min_tokens < 1:
        return ()
    stops = set(params.stop_token_ids or ())
    if not params.ignore_eos:
        ends = model.try_get_generation_config().get("eos_token_id", model.hf_config.eos_token_id)
        stops.update([ends] if isinstance(ends, int) else ends or ())
    return stops
