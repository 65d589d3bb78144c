"""What a client asked for is what it gets: over HTTP, from four lanes, through the ``openai`` client where it can ask.

Field cases 6, 13, 14, 15, 23, 24, 26, 27 and 46.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from ..checkpoints import TINY_VOCAB
from ..engines import greedy_reference, random_prompts
from ..server import MODEL, ServerUnderTest

EOS = 2


def test_twelve_prompts_at_once_are_answered_as_transformers_would(served: ServerUnderTest, checkpoint: Path) -> None:
    prompts = random_prompts([1, 3, 17, 63, 64, 65, 100, 128, 200, 257, 400, 600], vocab=TINY_VOCAB)
    answers = served.completions([{"prompt": p, "max_tokens": 24, "ignore_eos": True} for p in prompts])
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer["token_ids"] == greedy_reference(checkpoint, prompt, 24), f"prompt of {len(prompt)} tokens"


@pytest.mark.parametrize("tokens", [1, 2, 33])
def test_no_token_beyond_max_tokens(served: ServerUnderTest, tokens: int) -> None:
    answer = served.completion(max_tokens=tokens, ignore_eos=True)
    assert (len(answer["token_ids"]), answer["finish_reason"]) == (tokens, "length")


def test_a_stream_holds_the_text_of_the_whole_answer(served: ServerUnderTest) -> None:
    whole = served.chat("stream", max_tokens=24, extra_body={"ignore_eos": True})
    chunks = list(
        served.client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "stream"}],
            temperature=0.0,
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
    )
    pieces = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(pieces) == whole.message.content
    assert sum(bool(piece) for piece in pieces) > 4
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 24


def test_two_answers_to_one_question(served: ServerUnderTest) -> None:
    def ask(**parameters: Any) -> list[str]:
        choices = served.client.completions.create(
            model=MODEL, prompt="two", n=2, max_tokens=24, extra_body={"top_k": 20, "ignore_eos": True}, **parameters
        ).choices
        assert [choice.index for choice in choices] == [0, 1]
        return [choice.text for choice in choices]

    assert len(set(ask(temperature=1.0))) == 2
    seeded = ask(temperature=1.0, seed=5)
    assert len(set(seeded)) == 2 and ask(temperature=1.0, seed=5) == seeded


def test_a_stop_string_ends_the_answer_before_itself(served: ServerUnderTest) -> None:
    text = served.completion(max_tokens=48, ignore_eos=True)["text"]
    stop = next(m.group() for m in re.finditer(r"[!-~]{2}", text) if text.index(m.group()) > 4)
    answer = served.completion(max_tokens=48, ignore_eos=True, stop=[stop])
    assert answer["text"] == text[: text.index(stop)]
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", stop)


SCHEMA = {
    "type": "object",
    "properties": {
        "open": {"type": "boolean"},
        "size": {"enum": ["s", "xl"]},
        "code": {"type": "string", "pattern": "^[a-z]{1,3}$"},
    },
    "required": ["open", "size", "code"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_grammar_holds_among_rows_that_the_device_samples(served: ServerUnderTest, temperature: float) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    device = {"prompt": "plain", "temperature": temperature, "top_k": 20, "max_tokens": 60, "ignore_eos": True}
    grammar = {"temperature": temperature, "max_tokens": 80}
    answers = served.completions(
        [
            *[device] * 6,
            {**grammar, "prompt": "json", "response_format": schema},
            {**grammar, "prompt": "choice", "structured_outputs": {"choice": ["left", "right"]}},
            {**grammar, "prompt": "regex", "structured_outputs": {"regex": "[a-c]{3}-[0-9]{2}"}},
            {**grammar, "prompt": "min_p too", "response_format": schema, "min_p": 0.2},
        ]
    )
    for answer in (answers[6], answers[9]):
        value = json.loads(answer["text"])
        assert sorted(value) == ["code", "open", "size"]
        assert isinstance(value["open"], bool) and value["size"] in ("s", "xl")
        assert re.fullmatch("[a-z]{1,3}", value["code"])
    assert answers[7]["text"] in ("left", "right")
    assert re.fullmatch("[a-c]{3}-[0-9]{2}", answers[8]["text"])
    assert {len(answer["token_ids"]) for answer in answers[:6]} == {60}


def test_every_row_may_have_a_grammar(served: ServerUnderTest) -> None:
    words = [chr(ord("a") + i % 26) * (2 + i // 26) for i in range(33)]
    answers = served.completions([{"prompt": w, "structured_outputs": {"choice": [w, w + "z"]}} for w in words])
    for word, answer in zip(words, answers, strict=True):
        assert answer["text"] in (word, word + "z")


def test_response_format_text_is_the_same_as_none(served: ServerUnderTest) -> None:
    absent = served.chat("format", max_tokens=24)
    assert served.chat("format", max_tokens=24, response_format={"type": "text"}) == absent


def test_min_p_takes_effect(served: ServerUnderTest) -> None:
    # At 1 only the likeliest token is left, whatever the temperature.
    greedy = served.completion(max_tokens=24, ignore_eos=True)["token_ids"]
    hot = {"temperature": 2.0, "max_tokens": 24, "ignore_eos": True}
    kept, free = served.completions([{**hot, "min_p": 1.0}, hot])
    assert kept["token_ids"] == greedy
    assert free["token_ids"] != greedy


def test_each_of_a_mixed_batch_gets_what_it_asked_for(served: ServerUnderTest) -> None:
    plain = served.completion(prompt="mixed", max_tokens=24, ignore_eos=True)["token_ids"]
    common = {"prompt": "mixed", "max_tokens": 24, "ignore_eos": True}
    answers = served.completions(
        [
            common,
            {**common, "temperature": 1.0, "top_k": 1, "top_p": 0.1},
            {**common, "temperature": 1.0, "top_p": 0.9, "top_k": 128256},
            {**common, "temperature": 1.5, "min_p": 1.0},
            {"prompt": "mixed", "structured_outputs": {"choice": ["left", "right"]}},
            {**common, "logprobs": 3},
            {**common, "frequency_penalty": 2.0},
        ]
    )
    for same in (0, 1, 3, 5):
        assert answers[same]["token_ids"] == plain
    assert len(answers[2]["token_ids"]) == 24
    assert answers[4]["text"] in ("left", "right")
    assert len(set(answers[6]["token_ids"])) >= len(set(plain))


@pytest.mark.parametrize("asked", [0, 1, 5])
def test_logprobs_of_a_completion_are_of_full_length(served: ServerUnderTest, asked: int) -> None:
    # By id: the texts of two tokens that are parts of a letter are equal.
    answer = served.completion(logprobs=asked, max_tokens=12, ignore_eos=True, return_tokens_as_token_ids=True)
    logprobs = answer["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == 12
    for chosen, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert len(top) >= asked
        assert math.isclose(chosen, max(top.values()), abs_tol=1e-4), "greedy: the chosen token is the likeliest"
        assert sum(math.exp(value) for value in top.values()) <= 1.0 + 1e-4


def test_logprobs_of_a_chat_are_of_full_length(served: ServerUnderTest) -> None:
    choice = served.chat(logprobs=True, top_logprobs=5, max_tokens=12, extra_body={"ignore_eos": True})
    content = choice.logprobs.content
    assert len(content) == 12
    for token in content:
        assert len(token.top_logprobs) == 5
        values = [other.logprob for other in token.top_logprobs]
        assert values == sorted(values, reverse=True) and values[0] == token.logprob


def test_logprobs_of_an_echoed_prompt_are_refused_or_whole(served: ServerUnderTest) -> None:
    status, body = served.status("/v1/completions", prompt="echo me", echo=True, logprobs=1, max_tokens=4)
    assert status == 400
    assert body["error"]["param"] == "prompt_logprobs"
    assert "prompt_logprobs" in body["error"]["message"]
    # Without log-probabilities an echo asks nothing of the device.
    status, body = served.status("/v1/completions", prompt="echo me", echo=True, max_tokens=4)
    assert (status, body["choices"][0]["text"][:7]) == (200, "echo me")


def test_min_tokens_holds_the_end_back_and_honours_it_after(served: ServerUnderTest) -> None:
    eager = {"logit_bias": {str(EOS): 100}, "max_tokens": 64}
    at_once, held = served.completions([eager, {**eager, "min_tokens": 32}])
    assert (at_once["token_ids"], at_once["finish_reason"]) == ([EOS], "stop")
    assert (len(held["token_ids"]), held["finish_reason"]) == (33, "stop")
    assert held["token_ids"].index(EOS) == 32


def test_bad_words_logit_bias_and_allowed_token_ids_take_effect(served: ServerUnderTest) -> None:
    prompt = {"prompt": "words", "max_tokens": 12, "ignore_eos": True}
    free = served.completion(**prompt)
    word = next(w for w in re.findall(r"[!-~]", free["text"]))
    banned, biased, allowed = served.completions(
        [
            {**prompt, "bad_words": [word]},
            {**prompt, "logit_bias": {"77": 100}},
            {**prompt, "allowed_token_ids": [50, 60, 70]},
        ]
    )
    assert word in free["text"] and word not in banned["text"]
    assert biased["token_ids"] == [77] * 12
    assert set(allowed["token_ids"]) <= {50, 60, 70}


def test_one_api_server_and_one_engine(served: ServerUnderTest) -> None:
    import psutil

    children = psutil.Process(served.server.process.pid).children(recursive=True)
    names = [" ".join(child.cmdline()) for child in children]
    assert sum("EngineCore" in name for name in names) == 1
    # The rest is Python's own resource tracker.
    assert [name for name in names if "EngineCore" not in name and "resource_tracker" not in name] == []
