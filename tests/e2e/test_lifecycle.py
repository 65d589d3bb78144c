"""Rows and blocks come back, ``/metrics`` tells of all lanes, and a server ends well (field cases 23 and 32)."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepshape.plugins.command_line.vllm_server import noise

from ..checkpoints import TINY_VOCAB
from ..engines import greedy_reference, random_prompts
from ..server import MODEL, ServerUnderTest, serving

ROOT = Path(__file__).resolve().parents[2]


def stream(server: ServerUnderTest, **parameters: Any) -> Any:
    """A streamed completion that would go on for long. ``parameters`` go into the body."""
    body = {"max_tokens": 900, "ignore_eos": True, **parameters}
    return server.client.completions.create(model=MODEL, prompt="long", temperature=0.0, stream=True, extra_body=body)


@pytest.mark.parametrize(
    "parameters", [{}, {"min_tokens": 500}, {"min_p": 0.1}, {"structured_outputs": {"regex": "[a-z]{900}"}}], ids=str
)
def test_a_client_that_leaves_frees_its_row_and_blocks(served: ServerUnderTest, parameters: dict[str, Any]) -> None:
    served.quiet()
    answer = stream(served, **parameters)
    pieces = iter(answer)
    for _ in range(3):
        next(pieces)
    assert served.metric("num_requests_running") == 1
    assert served.metric("kv_cache_usage_perc") > 0
    answer.close()
    served.quiet()
    assert len(served.completion(ignore_eos=True)["token_ids"]) == 16


def test_metrics_tell_of_all_lanes(served: ServerUnderTest) -> None:
    served.quiet()
    prompt = random_prompts([300], vocab=TINY_VOCAB, seed=5)[0]
    hits, computed = served.metric("prefix_cache_hits_total"), served.metric("prompt_tokens_total")
    answers: list[dict[str, Any]] = []
    requests = [{"prompt": prompt, "max_tokens": 300, "ignore_eos": True}] * 40
    sender = threading.Thread(target=lambda: answers.extend(served.completions(requests)))
    sender.start()
    # Four lanes of eight rows are full and eight requests wait.
    served.soon(
        lambda: served.metric("num_requests_running") == 32 and served.metric("num_requests_waiting") == 8,
        "32 requests run and 8 wait",
    )
    # Of 2055 blocks a lane its eight rows hold five to ten each, those of the prompt shared.
    assert 8 / 2055 <= served.metric("kv_cache_usage_perc") <= 80 / 2055
    sender.join()
    served.quiet()
    assert len({tuple(answer["token_ids"]) for answer in answers}) == 1
    assert served.metric("num_requests_waiting") == 0
    assert served.metric("prompt_tokens_total") - computed == 40 * 300
    # Each lane computes the prompt for its first batch and finds four full blocks of it for what comes later.
    assert served.metric("prefix_cache_hits_total") - hits >= 8 * 256


@pytest.fixture(scope="module")
def tight(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerUnderTest]:
    """A KV pool that holds one full request a lane, and little more. The last test stops it."""
    folder = tmp_path_factory.mktemp("tight")
    flags = ("--max-model-len", "256", "--block-size", "32", "--num-gpu-blocks-override", "9")
    report = {"STEPSHAPE_STEP_REPORT": str(folder / "report.json")}
    with serving(checkpoint, folder / "server.log", *flags, environment=report) as server:
        yield server


def test_preempted_requests_are_counted_and_come_out_right(tight: ServerUnderTest, checkpoint: Path) -> None:
    prompts = random_prompts([20 + 3 * i for i in range(12)], vocab=TINY_VOCAB, seed=3)
    answers = tight.completions([{"prompt": p, "max_tokens": 80, "ignore_eos": True} for p in prompts])
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer["token_ids"] == greedy_reference(checkpoint, prompt, 80)
    assert tight.metric("num_preemptions_total") > 0
    tight.quiet()


def test_sigterm_while_requests_run(tight: ServerUnderTest) -> None:
    """Comes last: it stops the server."""
    streams = [iter(stream(tight, max_tokens=200)) for _ in range(6)]
    for pieces in streams:
        next(pieces)
    assert tight.server.stop(signal.SIGTERM) == 0
    ended_well(tight)
    # They were let run on, or ended by the engine: none was cut off.
    for pieces in streams:
        assert [piece.choices[0].finish_reason for piece in pieces][-1] in ("length", "abort")
    report = json.loads((tight.server.log.parent / "report.json").read_text(encoding="utf-8"))
    assert report["resumed"] > 0
    assert all(tokens > 0 for tokens in report["tokens_by_lane"])


def test_a_processor_that_raises_is_told_of_and_then_ctrl_c_while_an_answer_would_take_too_long(
    checkpoint: Path, tmp_path: Path
) -> None:
    """Too long for the time that an engine is given to end."""
    slow = {
        "STEPSHAPE_TT_LATENCY": json.dumps({"decode_ms": 50}),
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "typings"))),
    }
    broken = ("--logits-processors", "tests.broken_processor:RaisesOnThirdToken")
    with serving(checkpoint, tmp_path / "server.log", *broken, environment=slow) as server:
        status, answer = server.status("/v1/completions", prompt="x", ignore_eos=True, vllm_xargs={"break": 1})
        assert (status, answer["error"]["type"]) == (500, "InternalServerError")
        assert answer["error"]["message"] == "sampling raised RuntimeError: the third token is one too many"
        assert len(server.completion(max_tokens=3, ignore_eos=True)["token_ids"]) == 3
        # The log has the traceback, for whoever wrote the processor.
        told = len(server.server.text())
        pieces = iter(stream(server))
        next(pieces)
        assert server.server.stop(signal.SIGINT) == 0
        ended_well(server, told)
        assert [piece.choices[0].finish_reason for piece in pieces][-1] == "abort"


def ended_well(server: ServerUnderTest, since: int = 0) -> None:
    """``since``: from which character of the log on."""
    log = server.server.text()[since:]
    assert noise(log) is None
    assert "mesh_closed" in log
