"""``vllm serve`` on the emulated Spyre card, with both plugins installed, as a user starts it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ..checkpoints import tiny_llama
from ..integration.test_spyre_engines import spyre_environment

VLLM = Path(sys.executable).with_name("vllm")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def opened(port: int, path: str, body: dict[str, Any] | None = None) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    return urllib.request.urlopen(request, timeout=120)


def asked(port: int, path: str, body: dict[str, Any] | None = None) -> Any:
    with opened(port, path, body) as response:
        text = response.read()
    return json.loads(text) if text else None


def wait_until_healthy(server: subprocess.Popen[str], port: int) -> None:
    while server.poll() is None:
        try:
            asked(port, "/health")
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
        else:
            return
    raise AssertionError(f"the server ended with {server.returncode}")


@pytest.mark.timeout(600)
def test_a_server_answers_and_tells_what_it_ran(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "llama")
    report, log = tmp_path / "report.json", tmp_path / "serve.log"
    port = free_port()
    environment = spyre_environment(tmp_path / "metadata")
    environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING")
    environment["STEPSHAPE_STEP_REPORT"] = str(report)
    options = ["--max-model-len", "256", "--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--block-size", "64"]
    options += ["--shutdown-timeout", "4"]  # half of it for requests that run
    with log.open("w") as out:
        server = subprocess.Popen(
            [str(VLLM), "serve", str(folder), "--port", str(port), *options],
            env=environment,
            stdout=out,
            stderr=out,
            text=True,
        )
    try:
        wait_until_healthy(server, port)
        asks = {"model": str(folder), "max_tokens": 8, "temperature": 0, "logprobs": 2, "ignore_eos": True}
        bodies = [{**asks, "prompt": prompt} for prompt in ("the cat", "a long story about " * 6, "one two three")]
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda body: asked(port, "/v1/completions", body), bodies))
        again = asked(port, "/v1/completions", bodies[0])
        impossible = {"model": str(folder), "prompt": "x", "structured_outputs": {"choice": ["left"]}}
        with pytest.raises(urllib.error.HTTPError) as refused:
            asked(port, "/v1/completions", {**impossible, "allowed_token_ids": [5]})
        told = json.loads(refused.value.read())["error"]
        # A request that outlasts the patience of vLLM's front end: its client is told that it ended.
        endless = {"model": str(folder), "prompt": "x", "max_tokens": 240, "ignore_eos": True, "stream": True}
        streams = [opened(port, "/v1/completions", endless) for _ in range(2)]
        for stream in streams:
            stream.readline()
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
    ends = [stream.read().decode() for stream in streams]
    said = log.read_text()
    assert code == 0, said[-3000:]
    assert all(len(answer["choices"][0]["logprobs"]["tokens"]) == 8 for answer in answers)
    assert again["choices"][0]["text"] == answers[0]["choices"][0]["text"]
    assert (told["code"], told["type"]) == (400, "BadRequestError")
    assert told["message"].startswith("every token is masked out")
    assert all(end.rstrip().endswith("data: [DONE]") for end in ends)
    assert all('"finish_reason":"abort"' in end for end in ends)
    assert "Traceback" not in said
    assert "Spyre (emulated): body shapes 1, 2, 4, 64; compiled by block; heads of 16 lanes stored in 128" in said
    assert "Spyre: warming up" in said
    summary = json.loads(report.read_text())
    assert summary["device"]["artifacts"] == summary["device"]["eager_kernels"] == 0
    assert summary["most_copies_in_a_step"] == 3
    assert summary["warm_up"]["variants"] > 10


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("device", ["STEPSHAPE_SPYRE_DEVICE", "STEPSHAPE_TT_DEVICE"])
def test_a_server_that_still_starts_ends_when_told(tmp_path: Path, device: str, number: signal.Signals) -> None:
    """vLLM's front end swallows the signal while it waits for its engine, and waits on for ten minutes."""
    folder, log = tiny_llama(tmp_path / "llama"), tmp_path / "serve.log"
    environment = {**spyre_environment(tmp_path / "metadata"), "STEPSHAPE_SPYRE_DEVICE": "", device: "emulated"}
    environment |= {"MESH_DEVICE": "N150", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    words = [str(VLLM), "serve", str(folder), "--port", str(free_port()), "--max-model-len", "256"]
    with log.open("w") as out:
        server = subprocess.Popen(words, env=environment, stdout=out, stderr=out, text=True)
    try:
        while "(emulated)" not in log.read_text():
            assert server.poll() is None, log.read_text()[-2000:]
            time.sleep(0.1)
        time.sleep(2.0)  # into the wait for the engine
        server.send_signal(number)
        code = server.wait(60)
    finally:
        server.kill()
    assert code == 128 + number
    assert f"told to stop ({number.name}) while starting" in log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize(
    ("spyre", "mesh", "platform"),
    [("emulated", "", "SpyrePlatform"), ("", "emulated", "TTPlatform"), ("", "", "UnspecifiedPlatform")],
)
def test_side_by_side_the_one_that_is_named_applies(tmp_path: Path, spyre: str, mesh: str, platform: str) -> None:
    environment = {
        **spyre_environment(tmp_path),
        "STEPSHAPE_SPYRE_DEVICE": spyre,
        "STEPSHAPE_TT_DEVICE": mesh,
    }
    code = "from vllm.platforms import current_platform; print(type(current_platform).__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split()[-1:] == [platform], done.stderr[-2000:]


def test_a_typing_error_is_a_sentence_not_a_page(tmp_path: Path) -> None:
    environment = {**spyre_environment(tmp_path), "SPYRE_COMPILE_GRANULARITY": "blok", "SPYRE_ATTN_RECORD": "x"}
    done = subprocess.run(
        [str(VLLM), "serve", "nowhere"], env=environment, capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2
    assert "SPYRE_ATTN_RECORD='x'" in last and "SPYRE_COMPILE_GRANULARITY='blok'" in last
    assert os.linesep + "Traceback" not in done.stderr
