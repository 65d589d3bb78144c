"""What a command line says, read early and only where it is certain."""

from __future__ import annotations

import pytest

from stepshape.domain.launch_words import LaunchWords, launch_words, missing_checkpoint


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("serve models/x --port 1", LaunchWords(model="models/x")),
        ("serve --model models/x", LaunchWords(model="models/x")),
        ("serve --model=models/x -tp 2", LaunchWords(model="models/x", tensor_parallel_size=2)),
        ("serve m --tensor_parallel_size=4", LaunchWords(model="m", tensor_parallel_size=4)),
        ("serve m --pipeline-parallel-size 2", LaunchWords(model="m", pipeline_parallel_size=2)),
        ("serve --port 8000 m", LaunchWords()),  # a word after an option may be its value
        ("serve m -tp two", LaunchWords(model="m")),  # vLLM's own message stands
        ("bench serve m", LaunchWords()),
        ("", LaunchWords()),
    ],
)
def test_words(arguments: str, words: LaunchWords) -> None:
    assert launch_words(arguments.split()) == words


@pytest.mark.parametrize(
    ("model", "offline", "says"),
    [
        ("/no/such", False, "there is no checkpoint folder '/no/such'"),
        ("./gone", True, "there is no checkpoint folder './gone'"),
        ("a/b/c", False, "there is no checkpoint folder 'a/b/c'"),
        ("org/name", True, "neither a folder here nor in the local Hugging Face cache"),
        ("org/name", False, None),  # the hub will be asked
    ],
)
def test_a_checkpoint_that_cannot_be_had_is_named(model: str, offline: bool, says: str | None) -> None:
    problem = missing_checkpoint(model, is_folder=False, in_cache=False, offline=offline)
    assert (problem is None) if says is None else (problem is not None and says in problem)


def test_what_is_there_is_no_problem() -> None:
    assert missing_checkpoint("/there", is_folder=True, in_cache=False, offline=True) is None
    assert missing_checkpoint("org/name", is_folder=False, in_cache=True, offline=True) is None
