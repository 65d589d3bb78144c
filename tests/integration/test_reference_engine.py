"""The reference model in vLLM's engine, from its bundle folder, on the double of ttnn: text equal to the twin's."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stepshape.adapters.ttnn.reference_weights import ReferenceWeights
from stepshape.domain.rules import ConfigurationError
from tests.double import FOLDER, plug_in
from tests.double_worker import DOUBLE_WORKER
from tests.engines import engine, random_prompts

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LENGTHS = (3, 31, 64, 90, 5, 33)
NEW = 12
WEIGHTS = ReferenceWeights(0)


@pytest.fixture
def galaxy(monkeypatch: pytest.MonkeyPatch) -> Any:
    # vLLM looks at a model class in a process of its own, which has to find the double too.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("EXTRA_MODELS_DIR", str(EXAMPLES))
    # vLLM calls this once a process, which may have been before the bundle was named.
    from stepshape.plugins.tenstorrent.entrypoints import register

    register()
    return plug_in(cluster="GALAXY", chips=32)


def expected(prompts: list[list[int]]) -> list[list[int]]:
    return [WEIGHTS.continuation(prompt, NEW) for prompt in prompts]


@pytest.mark.parametrize(
    ("lanes", "asynchronous", "on_device", "budget"),
    [(1, False, True, None), (1, True, True, 64), (4, True, True, None), (2, True, False, None)],
)
def test_the_engine_says_what_the_twin_says(
    galaxy: Any, lanes: int, asynchronous: bool, on_device: bool, budget: int | None
) -> None:
    from vllm import SamplingParams

    prompts = random_prompts(LENGTHS, vocab=64)
    params = SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True)
    with engine(
        EXAMPLES / "reference_model",
        lanes=lanes,
        rows=4,
        asynchronous=asynchronous,
        on_device=on_device,
        budget=budget,
        max_len=160,
        worker_cls=DOUBLE_WORKER,
    ) as under_test:
        assert under_test.tokens(prompts, params) == expected(prompts)
        counts = under_test.counts
    assert (counts.rows["host"] == 0) is on_device
    calls = Counter(line.split()[0] for line in galaxy.journal)
    assert calls["begin_trace_capture"] == 2 * lanes
    assert calls["execute_trace"] >= (NEW - 1) * lanes
    opening = [line for line in galaxy.journal if line.startswith(("set_fabric", "open_mesh"))]
    assert opening[:2] == [
        "set_fabric_config FABRIC_1D_RING STRICT_INIT planes=None DISABLED DISABLED DEFAULT",
        "open_mesh_device 8x4 queues=2 trace=50000000 l1=0 small=0 axis=None",
    ]
    assert galaxy.journal[-2:] == ["close_mesh_device 8x4", "set_fabric_config DISABLED"]


def test_one_request_on_the_host_leaves_the_others_on_the_device(galaxy: Any) -> None:
    from vllm import SamplingParams

    prompts = random_prompts(LENGTHS[:3], vocab=64)
    params = [SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True, logprobs=n) for n in (None, 2, None)]
    with engine(EXAMPLES / "reference_model", rows=4, max_len=160, worker_cls=DOUBLE_WORKER) as under_test:
        outputs = under_test.run(prompts, params)
        counts = under_test.counts
    assert [list(output.outputs[0].token_ids) for output in outputs] == expected(prompts)
    assert len(outputs[1].outputs[0].logprobs) == NEW
    assert counts.rows["host"] > 0
    assert counts.rows["device"] > 0


def test_a_start_that_fails_after_the_opening_closes_the_mesh(galaxy: Any) -> None:
    galaxy.fail["begin_trace_capture"] = "the trace region is gone"
    with (
        pytest.raises(RuntimeError, match="the trace region is gone"),
        engine(EXAMPLES / "reference_model", rows=4, max_len=160, worker_cls=DOUBLE_WORKER),
    ):
        pass
    assert galaxy.journal[-2:] == ["close_mesh_device 8x4", "set_fabric_config DISABLED"]


def test_the_chips_named_on_the_command_line_are_the_ones_ttnn_sees(
    galaxy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TT_VISIBLE_DEVICES", "")
    with (
        pytest.raises(ConfigurationError, match="MESH_DEVICE=TG wants an 8x4 mesh of 32 chips and 2 are there"),
        engine(EXAMPLES / "reference_model", max_len=160, worker_cls=DOUBLE_WORKER, device_ids=[0, 1]),
    ):
        pass
    ids = list(range(32))
    with engine(EXAMPLES / "reference_model", max_len=160, worker_cls=DOUBLE_WORKER, device_ids=ids):
        assert os.environ["TT_VISIBLE_DEVICES"] == ",".join(map(str, ids))
