"""What the mesh cannot serve is refused: a request with a 400 that names its parameter, a launch with a sentence.

After each refused request the server answers the next good one. Field cases 21, 24, 34 and 46.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stepshape.plugins.command_line.vllm_server import command_line, free_port

from ..checkpoints import TINY_VOCAB
from ..server import MODEL, ServerUnderTest

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
TEXT = {"prompt": "hi"}
OUTSIDE = TINY_VOCAB


@pytest.mark.parametrize(
    ("path", "body", "parameter", "message"),
    [
        (
            "completions",
            {**TEXT, "prompt_logprobs": 1},
            "prompt_logprobs",
            "prompt_logprobs is not supported on a Tenstorrent mesh, which computes logits for the last position only; "
            "leave it out",
        ),
        ("completions", {**TEXT, "prompt_logprobs": 0}, "prompt_logprobs", "prompt_logprobs is not supported on a"),
        ("chat/completions", {**CHAT, "prompt_logprobs": 2}, "prompt_logprobs", "prompt_logprobs is not supported on"),
        # vLLM's own front end is first here; ours says the same on releases whose front end does not look.
        (
            "completions",
            {**TEXT, "logit_bias": {str(OUTSIDE): 1}},
            "logit_bias",
            f"token_id(s) [{OUTSIDE}] in logit_bias",
        ),
        ("chat/completions", {**CHAT, "logit_bias": {"99999": 1}}, "logit_bias", "token_id(s) [99999] in logit_bias"),
        (
            "completions",
            {**TEXT, "stop_token_ids": [OUTSIDE]},
            "stop_token_ids",
            f"token_id(s) [{OUTSIDE}] in stop_token",
        ),
        ("chat/completions", {**CHAT, "stop_token_ids": [-1]}, "stop_token_ids", "token_id(s) [-1] in stop_token_ids"),
        (
            "completions",
            {**TEXT, "allowed_token_ids": [OUTSIDE]},
            "allowed_token_ids",
            "allowed_token_ids contains out-of",
        ),
        (
            "completions",
            {**TEXT, "allowed_token_ids": []},
            "allowed_token_ids",
            "allowed_token_ids is not None and empty!",
        ),
        (
            "completions",
            {**TEXT, "allowed_token_ids": [35], "bad_words": ["A"]},
            "allowed_token_ids",
            "every token of allowed_token_ids is banned by bad_words, so no token could follow; allow another token",
        ),
        (
            "completions",
            {**TEXT, "allowed_token_ids": [2], "min_tokens": 2},
            "allowed_token_ids",
            "every token of allowed_token_ids ends the text and min_tokens holds those back, so no token could follow; "
            "allow another token or leave min_tokens out",
        ),
        (
            "completions",
            {"prompt": None, "prompt_embeds": "AAAA"},
            "prompt_embeds",
            "You must set `--enable-prompt-emb",
        ),
        ("completions", {"prompt": [5] * 5000}, "input_tokens", "This model's maximum context length is"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "far " * 1500}]},
            "input_tokens",
            "This model's max",
        ),
        (
            "completions",
            {**TEXT, "logprobs": 21},
            "logprobs",
            "Requested sample logprobs of 21, which is greater than max",
        ),
    ],
)
def test_a_request_is_refused_and_the_next_one_answered(
    served: ServerUnderTest, path: str, body: dict[str, Any], parameter: str, message: str
) -> None:
    status, answer = served.status(f"/v1/{path}", max_tokens=3, **body)
    error = answer["error"]
    assert (status, error["code"], error["type"], error["param"]) == (400, 400, "BadRequestError", parameter)
    assert error["message"].startswith(message)
    assert len(served.completion(max_tokens=3, ignore_eos=True)["token_ids"]) == 3


@pytest.mark.parametrize("parameters", [{"stream": False}, {"stream": True}])
def test_a_request_that_leaves_itself_nothing_to_choose_is_told_so(
    served: ServerUnderTest, parameters: dict[str, bool]
) -> None:
    """21: known only when the token is to be chosen; HTTP 400, or an error in the stream that has begun."""
    body = {"prompt": "x", "structured_outputs": {"choice": ["left"]}, "allowed_token_ids": [5], **parameters}
    answer = served.http.post("/v1/completions", json={"model": MODEL, **body})
    said = answer.text.removeprefix("data: ").split("\n\n")[0] if parameters["stream"] else answer.text
    error = json.loads(said)["error"]
    assert (error["code"], error["type"]) == (400, "BadRequestError")
    assert error["message"].startswith("every token is masked out")
    assert answer.status_code == (200 if parameters["stream"] else 400)
    assert len(served.completion(max_tokens=3, ignore_eos=True)["token_ids"]) == 3


def launch(checkpoint: Path, *flags: str, environment: dict[str, str]) -> tuple[int, str]:
    """``vllm serve`` that is to end by itself: its exit code and what it said."""
    done = subprocess.run(
        command_line(checkpoint, port=free_port(), name=MODEL, flags=["--max-model-len", "256", *flags]),
        env={**os.environ, "STEPSHAPE_TT_DEVICE": "emulated", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_launch_ends_with_its_sentence_as_the_last_line(checkpoint: Path) -> None:
    code, said = launch(
        checkpoint,
        "--data_parallel_size",
        "3",
        "--max_num_seqs",
        "4",
        environment={"MESH_DEVICE": "TG", "TT_LLAMA_TEXT_VER": "llama3_70b_galaxy"},
    )
    assert code != 0
    assert said.rstrip().endswith(
        "data_parallel_size=3 is not a lane count of LlamaForCausalLM on an 8x4 mesh (1, 2, 4); use one of those"
    )


def test_an_environment_is_refused_before_anything_is_loaded(checkpoint: Path) -> None:
    code, said = launch(checkpoint, environment={"VLLM_USE_RUST_FRONTEND": "1"})
    assert code != 0
    assert said.rstrip().endswith(
        "error: VLLM_USE_RUST_FRONTEND=1 would skip the request checks of the Tenstorrent platform; unset it and use "
        "the Python front end"
    )
