"""What the demo asks for, how it judges the answers, and the command line it prints."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

import attrs
from rich.console import Console

from stepshape.domain.step_counts import StepCounts
from stepshape.plugins.command_line.chats import CHATS, LOGPROBS, SCHEMA, SEEDED, Answer, complaints
from stepshape.plugins.command_line.step_table import step_table
from stepshape.plugins.command_line.vllm_server import GALAXY_ENVIRONMENT, as_typed, command_line, noise


def answers() -> dict[int, Answer]:
    good = {index: Answer(text="Yes.", finish="stop", tokens=2) for index in range(len(CHATS))}
    good[CHATS.index(SCHEMA)] = Answer(text='{"city": "Paris", "country": "France"}', finish="stop", tokens=9)
    good[CHATS.index(LOGPROBS)] = Answer(text="Red.", finish="stop", tokens=2, logprobs=(5, 6))
    return good


def test_the_twelve_chats_are_those_of_the_issue() -> None:
    assert len(CHATS) == 12
    assert [chat.stream for chat in CHATS].count(True) == 1
    assert CHATS.count(SCHEMA) == CHATS.count(LOGPROBS) == 1
    assert CHATS.count(SEEDED) == 2
    assert [chat.asked for chat in CHATS if "min_p" in chat.extra] == ["min_p 0.1"]


def test_good_answers_are_not_complained_about() -> None:
    assert complaints(answers()) == []


def test_each_wrong_answer_is_named() -> None:
    given = answers()
    given[0] = attrs.evolve(given[0], text=" ")
    given[CHATS.index(SCHEMA)] = attrs.evolve(given[CHATS.index(SCHEMA)], text='{"city": "Par')
    given[CHATS.index(LOGPROBS)] = attrs.evolve(given[CHATS.index(LOGPROBS)], logprobs=(5, 4))
    given[CHATS.index(SEEDED)] = attrs.evolve(given[CHATS.index(SEEDED)], text="No.")
    del given[11]
    said = complaints(given)
    assert [sentence[:30] for sentence in said] == [
        "chat 1 (streaming) has no answ",
        "the answer to the JSON schema ",
        "chat 4 asked for 5 log-probabi",
        "chat 12 (top_k 32, top_p 0.9) ",
        "two chats with the same seed w",
    ]


def test_the_printed_command_is_the_one_that_runs() -> None:
    command = command_line(Path("models/a b"), port=81, name="m")
    typed = shlex.split(as_typed(command, GALAXY_ENVIRONMENT).replace("\\\n", " "))
    assert typed[: len(GALAXY_ENVIRONMENT)] == [f"{k}={v}" for k, v in GALAXY_ENVIRONMENT.items()]
    assert typed[len(GALAXY_ENVIRONMENT) :] == ["vllm", *command[1:]]


def test_noise_is_found() -> None:
    assert noise("INFO a\nINFO b") is None
    assert noise("INFO a\n(x) Traceback (most recent call last):\n") == "(x) Traceback (most recent call last):"
    assert noise("nanobind: leaked 4 instances!") is not None


def test_the_table_holds_every_count() -> None:
    counts = StepCounts(2)
    counts.steps["decode"] = 1234
    counts.tokens_by_lane = [7, 8]
    counts.rows["host"] = 3
    counts.host_reasons["min_p"] = 3
    counts.overlap["drained: the set of decoding rows changed"] = 11
    out = io.StringIO()
    Console(file=out, width=200).print(step_table(counts.summary()))
    words = [line.replace("│", " ").split() for line in out.getvalue().splitlines()]
    for row in ("decode 1,234", "lane 0 7", "lane 1 8", "host for: min_p 3", "decoding rows changed 11"):
        assert any(line[-len(row.split()) :] == row.split() for line in words), row
