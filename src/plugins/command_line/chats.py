"""The twelve chats of the demo: what each asks for, and what its answer must hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

TOKENS = 40
"""Tokens of an answer, at most, where a chat says nothing else."""
FEW = 12
"""Where the host chooses the tokens: while it does, no step overlaps the one before."""

_CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"type": "string", "maxLength": 20}},
    "required": ["city", "country"],
    "additionalProperties": False,
}


@attrs.frozen(kw_only=True)
class Chat:
    """One request. ``asked`` names it to people, ``options`` go to the API beside the message, ``extra`` into the
    body as vLLM's own parameters."""

    asked: str
    text: str
    options: Mapping[str, Any] = attrs.field(factory=lambda: {"temperature": 0.0})
    extra: Mapping[str, Any] = attrs.field(factory=dict)
    stream: bool = False


@attrs.frozen(kw_only=True)
class Answer:
    text: str
    finish: str | None
    """the finish reason"""
    tokens: int
    logprobs: tuple[int, ...] = ()
    """for each token, how many alternatives came with it"""


SCHEMA = Chat(
    asked="JSON schema",
    text="Which city is the Eiffel Tower in? Answer in JSON.",
    options={
        "temperature": 0.0,
        "max_tokens": 64,
        "response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": _CITY, "strict": True}},
    },
)
LOGPROBS = Chat(
    asked="logprobs=5",
    text="Name a colour of the rainbow.",
    options={"temperature": 0.0, "logprobs": True, "top_logprobs": 5, "max_tokens": FEW},
)
SEEDED = Chat(
    asked="seed 7, top_k 20",
    text="Write one line about the sea.",
    options={"temperature": 1.0, "seed": 7},
    extra={"top_k": 20},
)

CHATS: tuple[Chat, ...] = (
    Chat(asked="streaming", text="Why is the sky blue? Answer in one sentence.", stream=True),
    SCHEMA,
    Chat(
        asked="min_p 0.1",
        text="Invent a name for a small boat.",
        options={"temperature": 0.8, "max_tokens": FEW},
        extra={"min_p": 0.1},
    ),
    LOGPROBS,
    SEEDED,
    SEEDED,
    Chat(asked="greedy", text="What is the capital of France?"),
    Chat(asked="greedy", text="How many legs does a spider have?"),
    Chat(asked="greedy", text="Translate to Spanish: good morning."),
    Chat(asked="greedy", text="Give me three words that rhyme with light."),
    Chat(
        asked="top_k 10",
        text="Tell me something about the Moon.",
        options={"temperature": 0.7},
        extra={"top_k": 10},
    ),
    Chat(
        asked="top_k 32, top_p 0.9",
        text="What should I cook tonight?",
        options={"temperature": 0.9, "top_p": 0.9},
        extra={"top_k": 32},
    ),
)


def complaints(answers: Mapping[int, Answer]) -> list[str]:
    """What is wrong with the answers, by index into :data:`CHATS`: a sentence each."""
    found = []
    for index, chat in enumerate(CHATS):
        answer = answers.get(index)
        if answer is None or not answer.text.strip():
            found.append(f"chat {index + 1} ({chat.asked}) has no answer")
        elif chat is SCHEMA:
            found += _not_a_place(answer.text)
        elif chat is LOGPROBS and (not answer.logprobs or min(answer.logprobs) < 5):
            found.append(f"chat {index + 1} asked for 5 log-probabilities a token and got {answer.logprobs}")
    seeded = {answers[i].text for i, chat in enumerate(CHATS) if chat is SEEDED and i in answers}
    if len(seeded) > 1:
        found.append(f"two chats with the same seed were answered differently: {sorted(seeded)}")
    return found


def _not_a_place(text: str) -> list[str]:
    try:
        value = json.loads(text)
    except ValueError:
        return [f"the answer to the JSON schema is not JSON: {text!r}"]
    if not isinstance(value, dict) or set(value) != {"city", "country"}:
        return [f"the answer to the JSON schema does not follow it: {text!r}"]
    return []
