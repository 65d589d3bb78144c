"""vLLM's sampling parameters as the core sees them."""
from __future__ import annotations

from vllm import SamplingParams

from ...ports.sampling import SamplingTraits


def sampling_traits(params: SamplingParams, *, custom_processors: bool) -> SamplingTraits:
    """``custom_processors``: the operator configured logits processors of their own; any of them may act on any
    request, so their mere presence keeps every row on the host."""
    logprobs = params.logprobs
    if logprobs is None and params.logprob_token_ids:
        logprobs = len(params.logprob_token_ids)
    return SamplingTraits(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        seed=params.seed,
        logprobs=logprobs,
        min_p=params.min_p > 0.0,
        logit_bias=bool(params.logit_bias),
        min_tokens=params.min_tokens > 0,
        bad_words=bool(params.bad_words),
        allowed_token_ids=params.allowed_token_ids is not None,
        grammar=params.structured_outputs is not None,
        penalties=params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or params.repetition_penalty != 1.0,
        custom_processors=custom_processors,
    )
