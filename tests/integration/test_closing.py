"""Around vLLM's own shutdown: what its log keeps to itself, and what our scheduler does when the time is up."""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path
from types import FrameType

import pytest
import structlog
from vllm.v1.engine.exceptions import EngineDeadError

from stepshape.adapters.telemetry.logs import join_vllm_logs
from stepshape.adapters.vllm.releases.closing_log import ASKED_FOR, HANDLER, LAUNCHER, ClosingFilter
from stepshape.adapters.vllm.releases.termination import when_engine_is_told_to_end

from ..checkpoints import TINY_VOCAB, tiny_llama
from ..engines import engine, random_prompts


def record(name: str, message: str, error: Exception | None = None) -> logging.LogRecord:
    failure = None if error is None else (type(error), error, None)
    return logging.LogRecord(name, logging.ERROR, __file__, 1, message, (), failure)


def test_only_a_dead_engine_after_a_shutdown_that_was_asked_for_is_not_news() -> None:
    closing = ClosingFilter()
    dead = record(HANDLER, "AsyncLLM output_handler failed.", EngineDeadError())
    assert closing.filter(dead)
    assert closing.filter(record(LAUNCHER, ASKED_FOR))
    assert not closing.filter(dead)
    assert closing.filter(record(HANDLER, "AsyncLLM output_handler failed.", ValueError("news")))
    assert closing.filter(record("vllm.v1.engine.core", "EngineCore encountered a fatal error.", EngineDeadError()))


def test_the_filtered_lines_are_those_of_this_vllm() -> None:
    import vllm.entrypoints.launchers.launcher as launcher
    import vllm.v1.engine.async_llm as async_llm

    assert launcher.logger.name == LAUNCHER
    assert async_llm.logger.name == HANDLER
    assert f'"{ASKED_FOR}"' in Path(launcher.__file__).read_text(encoding="utf-8")


def test_handlers_that_are_not_vllms_engine_stay() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert when_engine_is_told_to_end(lambda: None) is False
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_the_engines_own_handler_still_runs() -> None:
    said: list[str] = []

    def handler(number: int, frame: FrameType | None) -> None:
        said.append(f"engine {number}")

    handler.__module__ = "vllm.v1.engine.core"
    before = [(number, signal.signal(number, handler)) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        assert when_engine_is_told_to_end(lambda: said.append("ours")) is True
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    finally:
        for number, own in before:
            signal.signal(number, own)
    assert said == ["ours", "engine 15", "ours", "engine 2"]


def test_what_still_runs_when_the_time_is_up_is_ended_and_its_client_told(tmp_path: Path) -> None:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    prompts = random_prompts([5, 40, 9], vocab=TINY_VOCAB)
    with engine(tiny_llama(tmp_path), lanes=4, rows=2, shutdown_timeout=0) as under_test:
        for prompt in prompts:
            under_test.add(prompt, params)
        for _ in range(5):
            under_test.step()
        assert under_test.scheduler.get_request_counts() == (3, 0)
        under_test.scheduler._closing._patience = 0.0
        under_test.scheduler._closing.told()
        outputs = []
        while under_test.engine.has_unfinished_requests():
            outputs += under_test.step()
        ended = [o for o in outputs if o.finished]
        assert sorted(o.request_id for o in ended) == ["r1", "r2", "r3"]
        assert {o.outputs[0].finish_reason for o in ended} == {"abort"}
        assert all(len(o.outputs[0].token_ids) < 200 for o in ended)
        assert under_test.scheduler.get_kv_cache_usage() == 0.0


@pytest.fixture
def structlog_as_new() -> object:
    config = structlog.get_config()
    was = structlog.is_configured()
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if was:
        structlog.configure(**config)


def test_our_lines_look_like_vllms_and_name_their_caller(
    structlog_as_new: object, caplog: pytest.LogCaptureFixture
) -> None:
    join_vllm_logs()
    vllm = logging.getLogger("vllm")
    vllm.addHandler(caplog.handler)
    try:
        log = structlog.get_logger("stepshape.x")
        log.info("opened", mesh="8x4", chips=32)
        line = sys._getframe().f_lineno - 1
        try:
            raise ValueError("no")
        except ValueError:
            log.exception("failed", row=3)
    finally:
        vllm.removeHandler(caplog.handler)
    first, second = caplog.records[-2:]
    assert (first.name, first.levelname, first.getMessage()) == ("vllm.stepshape.x", "INFO", "opened mesh=8x4 chips=32")
    assert (Path(first.pathname).name, first.lineno) == ("test_closing.py", line)
    assert (second.levelname, second.getMessage(), Path(second.pathname).name) == (
        "ERROR",
        "failed row=3",
        "test_closing.py",
    )
    assert second.exc_info is not None and isinstance(second.exc_info[1], ValueError)
