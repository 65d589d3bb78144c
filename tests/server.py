"""A real ``vllm serve`` on the emulated mesh, as a test sees it: over HTTP, by its log and by its end."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai

from stepshape.plugins.command_line.vllm_server import (
    GALAXY_ENVIRONMENT,
    GALAXY_FLAGS,
    VllmServer,
    command_line,
    free_port,
)

MODEL = "tiny"
HEALTHY_WITHIN_S = 180.0
SOON_S = 60.0
"""What :meth:`ServerUnderTest.soon` waits for at most: a loaded machine is no failure."""


class ServerUnderTest:
    def __init__(self, server: VllmServer) -> None:
        self.server = server
        self.http = httpx.Client(base_url=server.address, timeout=120.0)
        self.client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0, timeout=120.0)

    def completion(self, prompt: Any = "the tide", **parameters: Any) -> dict[str, Any]:
        """The choice of a completion, greedy unless asked otherwise, with ``token_ids``, and the ``usage`` in it."""
        body = {"model": MODEL, "prompt": prompt, "temperature": 0.0, "max_tokens": 16, "return_token_ids": True}
        answer = self.http.post("/v1/completions", json={**body, **parameters})
        assert answer.status_code == 200, answer.text
        choice: dict[str, Any] = answer.json()["choices"][0]
        return {**choice, "usage": answer.json()["usage"]}

    def completions(self, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Several at once, answers in order."""
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(lambda request: self.completion(**request), requests))

    def chat(self, text: str = "hello", **parameters: Any) -> Any:
        """The first choice of a chat through the ``openai`` client, greedy unless asked otherwise."""
        settings: dict[str, Any] = {"temperature": 0.0, "max_tokens": 16, **parameters}
        messages: Any = [{"role": "user", "content": text}]
        return self.client.chat.completions.create(model=MODEL, messages=messages, **settings).choices[0]

    def status(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        """Status and body of a POST that may be refused."""
        answer = self.http.post(path, json={"model": MODEL, **body})
        return answer.status_code, answer.json()

    def metric(self, name: str) -> float:
        """The sum over all labels of ``vllm:name`` on ``/metrics``."""
        found = re.findall(
            rf"^vllm:{re.escape(name)}(?:{{[^}}]*}})? ([0-9.e+-]+)$", self.http.get("/metrics").text, re.MULTILINE
        )
        assert found, f"vllm:{name} is not on /metrics"
        return sum(map(float, found))

    def soon(self, true: Callable[[], bool], what: str) -> None:
        """Wait until ``true()`` is; fails with ``what`` after :data:`SOON_S` seconds."""
        end = time.monotonic() + SOON_S
        while not true():
            assert time.monotonic() < end, f"not after {SOON_S:.0f} s: {what}"
            time.sleep(0.05)

    def quiet(self) -> None:
        """Wait until nothing runs and no block is held."""
        self.soon(
            lambda: self.metric("num_requests_running") == 0 and self.metric("kv_cache_usage_perc") == 0,
            "nothing runs and no KV block is held",
        )


@contextmanager
def serving(
    checkpoint: Path, log: Path, *flags: str, environment: dict[str, str] | None = None
) -> Iterator[ServerUnderTest]:
    """The Galaxy of the demo with ``checkpoint``; ``flags`` come after the demo's, so they win. Killed at the end if
    the test has not stopped it."""
    port = free_port()
    server = VllmServer(
        command_line(checkpoint, port=port, name=MODEL, flags=[*GALAXY_FLAGS, *flags]),
        port=port,
        log=log,
        environment={**GALAXY_ENVIRONMENT, "OMP_NUM_THREADS": "1", **(environment or {})},
    )
    try:
        server.wait_until_healthy(HEALTHY_WITHIN_S)
        under_test = ServerUnderTest(server)
        with under_test.http, under_test.client:
            yield under_test
    finally:
        server.kill()
