"""What a request may ask for. A refusal reaches the client as HTTP 400 (tenstorrent contract 1.6; field case 46).

Checked at admission, because the same things found later would end the engine or be dropped in silence.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import attrs


@attrs.frozen
class RequestRefusal:
    """``parameter`` is the API's name of what is at fault, ``value`` what was sent."""

    message: str
    parameter: str
    value: Any


@attrs.frozen(kw_only=True)
class RequestLimits:
    vocab_size: int
    max_model_len: int


@attrs.frozen(kw_only=True)
class RequestFacts:
    """A request as plain values; empty or None: not asked for."""

    pooling: bool = False
    prompt_embeds: bool = False
    prompt_tokens: int | None = None
    """length of the prompt; None where it has no tokens"""
    prompt_logprobs: int | None = None
    logit_bias_ids: Collection[int] = ()
    stop_token_ids: Collection[int] = ()
    allowed_token_ids: Collection[int] | None = None
    banned_token_ids: Collection[int] = ()
    """tokens that a ``bad_words`` entry of one token bans for the whole request"""
    held_back_token_ids: Collection[int] = ()
    """tokens that ``min_tokens`` keeps back at first: the end and stop tokens"""


def refuse_request(request: RequestFacts, limits: RequestLimits) -> RequestRefusal | None:
    """The first thing a mesh cannot serve in ``request``, or None."""
    if request.pooling:
        return RequestRefusal(
            "pooling is not supported on a Tenstorrent mesh; ask for generated text", "task", "pooling"
        )
    if request.prompt_embeds:
        return RequestRefusal(
            "prompt embeddings are not supported on a Tenstorrent mesh; send text or token ids", "prompt_embeds", None
        )
    if request.prompt_logprobs is not None:
        return RequestRefusal(
            "prompt_logprobs is not supported on a Tenstorrent mesh, which computes logits for the last position only; "
            "leave it out",
            "prompt_logprobs",
            request.prompt_logprobs,
        )
    if request.prompt_tokens is not None and request.prompt_tokens >= limits.max_model_len:
        return RequestRefusal(
            f"the prompt has {request.prompt_tokens} tokens and max_model_len={limits.max_model_len} leaves no room "
            "for an "
            f"answer; send at most {limits.max_model_len - 1}",
            "input_tokens",
            request.prompt_tokens,
        )
    for parameter, ids in (
        ("logit_bias", request.logit_bias_ids),
        ("stop_token_ids", request.stop_token_ids),
        ("allowed_token_ids", request.allowed_token_ids or ()),
    ):
        outside = sorted(token for token in ids if not 0 <= token < limits.vocab_size)
        if outside:
            return RequestRefusal(
                f"{parameter} names token {outside[0]}, outside the vocabulary of {limits.vocab_size}; use ids from "
                "0 to "
                f"{limits.vocab_size - 1}",
                parameter,
                outside,
            )
    return _nothing_allowed(request)


def _nothing_allowed(request: RequestFacts) -> RequestRefusal | None:
    if request.allowed_token_ids is None:
        return None
    allowed = set(request.allowed_token_ids)
    value = sorted(allowed)
    if not allowed:
        return RequestRefusal(
            "allowed_token_ids is empty, so no token could follow; name a token or leave it out",
            "allowed_token_ids",
            value,
        )
    left = allowed.difference(request.banned_token_ids)
    if not left:
        return RequestRefusal(
            "every token of allowed_token_ids is banned by bad_words, so no token could follow; allow another token",
            "allowed_token_ids",
            value,
        )
    if not left.difference(request.held_back_token_ids):
        return RequestRefusal(
            "every token of allowed_token_ids ends the text and min_tokens holds those back, so no token could follow; "
            "allow another token or leave min_tokens out",
            "allowed_token_ids",
            value,
        )
    return None
