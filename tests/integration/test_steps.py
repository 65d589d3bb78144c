"""What the steps of a whole engine look like: phases, rows, overruns, aborts, faults. Field cases by number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stepshape.ports.step import Phase

from ..checkpoints import TINY_VOCAB, tiny_llama
from ..engines import EngineUnderTest, engine, greedy_reference, random_prompts
from ..recording import RECORDING_WORKER, PlanRecorder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"))


@contextmanager
def recorded(checkpoint: Path, **settings: Any) -> Iterator[tuple[EngineUnderTest, PlanRecorder]]:
    settings = {"max_len": 256, "block_size": 16, **settings}
    with engine(checkpoint, worker_cls=RECORDING_WORKER, **settings) as under_test:
        recorder = under_test.worker._telemetry
        assert isinstance(recorder, PlanRecorder)
        yield under_test, recorder


def greedy(max_tokens: int, **more: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(**{"temperature": 0.0, "ignore_eos": True, **more}, max_tokens=max_tokens)


def run_on(under_test: EngineUnderTest, final: dict[str, Any], steps: int = 10_000) -> None:
    """Step until done, or so many times, and keep what finished."""
    for _ in range(steps):
        if not under_test.engine.has_unfinished_requests():
            return
        for output in under_test.step():
            if output.finished:
                final[output.request_id] = output


def free_blocks(under_test: EngineUnderTest) -> list[int]:
    return [lane.kv_cache_manager.block_pool.get_num_free_blocks() for lane in under_test.scheduler.lanes]


@pytest.mark.parametrize("max_tokens", [1, 2, 7])
@pytest.mark.parametrize("lanes", [1, 4])
def test_no_step_is_scheduled_past_max_tokens(checkpoint: Path, lanes: int, max_tokens: int) -> None:
    """6: with async scheduling a step more would be computed and thrown away."""
    prompts = random_prompts([5, 16, 17, 40, 64], vocab=TINY_VOCAB)
    with recorded(checkpoint, lanes=lanes) as (under_test, recorder):
        texts = under_test.tokens(prompts, greedy(max_tokens))
        assert [len(text) for text in texts] == [max_tokens] * 5
        emitted = [recorder.emitted(request_id) for request_id in _internal_ids(recorder)]
    assert emitted == [max_tokens] * 5


def _internal_ids(recorder: PlanRecorder) -> list[str]:
    return [admission.request_id for plan in recorder.plans for admission in plan.admitted]


def test_phases_are_pure_when_a_client_arrives_mid_decode(checkpoint: Path) -> None:
    """4: decode pauses, a pure prefill runs, batched decode resumes with all of them."""
    prompts = random_prompts([9, 20, 33], vocab=TINY_VOCAB)
    final: dict[str, Any] = {}
    with recorded(checkpoint, asynchronous=False) as (under_test, recorder):
        ids = [under_test.add(prompts[0], greedy(30)), under_test.add(prompts[1], greedy(30))]
        run_on(under_test, final, steps=6)
        ids.append(under_test.add(prompts[2], greedy(20)))
        run_on(under_test, final)
        assert recorder.phases().startswith("PDDDDDPD")
        late = recorder.plans[6]
        assert [len(late.request_ids), len(recorder.plans[7].request_ids)] == [1, 3]
    for request_id, prompt, n in zip(ids, prompts, (30, 30, 20), strict=True):
        assert list(final[request_id].outputs[0].token_ids) == greedy_reference(checkpoint, prompt, n)


def test_a_decode_moves_while_a_long_prompt_is_chunked(checkpoint: Path) -> None:
    """1: in every P + D = 3 steps at least one decodes."""
    prompts = random_prompts([4, 220], vocab=TINY_VOCAB)
    final: dict[str, Any] = {}
    with recorded(checkpoint, asynchronous=False, budget=32) as (under_test, recorder):
        ids = [under_test.add(prompts[0], greedy(30))]
        run_on(under_test, final, steps=3)
        before = len(recorder.plans)
        ids.append(under_test.add(prompts[1], greedy(5)))
        run_on(under_test, final)
        phases = recorder.phases()[before:]
    assert phases.startswith("PPDPPDPPDP")
    for request_id, prompt, n in zip(ids, prompts, (30, 5), strict=True):
        assert list(final[request_id].outputs[0].token_ids) == greedy_reference(checkpoint, prompt, n)


def test_partial_chunks_under_an_uneven_budget_all_finish(checkpoint: Path) -> None:
    """2: ``max_num_seqs`` prompts at once, a budget that divides none of them."""
    prompts = random_prompts([50, 51, 52, 53, 54, 55, 56, 57], vocab=TINY_VOCAB)
    with recorded(checkpoint, budget=37) as (under_test, recorder):
        texts = under_test.tokens(prompts, greedy(6))
        chunks = [plan for plan in recorder.plans if plan.phase is Phase.PREFILL and not all(plan.emits)]
    assert texts == [greedy_reference(checkpoint, prompt, 6) for prompt in prompts]
    assert len(chunks) > 4


def test_the_long_prompt_is_not_starved_by_short_ones(checkpoint: Path) -> None:
    """7: first come, first served within the waiting queue, so its wait is that of those before it."""
    shorts = random_prompts([6] * 30, vocab=TINY_VOCAB)
    [long] = random_prompts([200], vocab=TINY_VOCAB, seed=1)
    final: dict[str, Any] = {}
    with recorded(checkpoint, rows=2, budget=64) as (under_test, recorder):
        for short in shorts[:4]:
            under_test.add(short, greedy(4))
        under_test.add(long, greedy(4))
        for short in shorts[4:]:
            under_test.add(short, greedy(4))
            run_on(under_test, final, steps=1)
        run_on(under_test, final)
        order = _internal_ids(recorder)
        lengths = {a.request_id: a.prompt_length for plan in recorder.plans for a in plan.admitted}
    assert [lengths[request_id] for request_id in order].index(200) == 4


def test_a_cached_head_of_line_does_not_block_those_behind_it(checkpoint: Path) -> None:
    """3: the first in line needs almost nothing computed, the second everything; both are placed in one step."""
    cached, other = random_prompts([64, 50], vocab=TINY_VOCAB)
    with recorded(checkpoint, prefix_caching=True) as (under_test, recorder):
        under_test.tokens([cached], greedy(4))
        before = len(recorder.plans)
        texts = under_test.tokens([cached, other], greedy(4))
        plan = next(plan for plan in recorder.plans[before:] if plan.phase is Phase.PREFILL)
    assert texts == [greedy_reference(checkpoint, prompt, 4) for prompt in (cached, other)]
    assert list(plan.starts) == [48, 0]
    assert list(plan.ends) == [64, 50]


@pytest.mark.parametrize("on_device", [True, False])
def test_a_seeded_stream_is_the_same_in_any_company(checkpoint: Path, on_device: bool) -> None:
    """17 and 18: alone, among others of uneven length, after a preemption; unseeded users on the same rows differ."""
    from vllm import SamplingParams

    def random_params(seed: int | None, n: int = 20) -> Any:
        return SamplingParams(temperature=1.5, top_k=30, seed=seed, max_tokens=n, ignore_eos=True)

    prompts = random_prompts([30, 7, 41, 12, 55, 60, 61, 62], vocab=TINY_VOCAB)
    with recorded(checkpoint, on_device=on_device) as (under_test, _):
        [alone] = under_test.tokens(prompts[:1], random_params(11))
        mixed = under_test.tokens(
            [prompts[1], prompts[2], prompts[0], prompts[3]],
            [random_params(None, 3), random_params(5, 9), random_params(11), random_params(11, 30)],
        )
        unseeded = under_test.tokens([prompts[0]] * 4, random_params(None))
        equal = under_test.tokens([prompts[0]] * 4, random_params(11))
    assert mixed[2] == alone
    assert len(set(map(tuple, unseeded))) > 1
    assert equal == [alone] * 4
    with recorded(checkpoint, on_device=on_device, blocks=17) as (under_test, recorder):
        tight = under_test.tokens([*prompts[1:], prompts[0]], random_params(11))
        assert recorder.counts.resumed > 0
    assert tight[-1] == alone


def test_block_edges_keep_stepping(checkpoint: Path) -> None:
    """8: prompts of exactly one and two blocks, batch 1."""
    for length in (16, 32):
        [prompt] = random_prompts([length], vocab=TINY_VOCAB)
        with recorded(checkpoint, rows=1) as (under_test, _):
            assert under_test.tokens([prompt], greedy(20)) == [greedy_reference(checkpoint, prompt, 20)]


@pytest.mark.parametrize("lanes", [1, 4])
def test_kv_pressure_is_no_loop_and_everything_is_given_back(checkpoint: Path, lanes: int) -> None:
    """9 and the invariants 3 and 4: a prefill that places nothing becomes a decode in the same step, every request
    ends, and rows and blocks are all back afterwards."""
    prompts = random_prompts([60 + i for i in range(16)], vocab=TINY_VOCAB)
    with recorded(checkpoint, lanes=lanes, blocks=17) as (under_test, recorder):
        before = free_blocks(under_test)
        texts = under_test.tokens(prompts, greedy(30))
        under_test.step()
        assert free_blocks(under_test) == before
        assert not recorder.row_of
        assert all(plan.phase is not Phase.EMPTY or not plan.request_ids for plan in recorder.plans)
        reasons = recorder.counts.phase_reasons
    assert texts == [greedy_reference(checkpoint, prompt, 30) for prompt in prompts]
    assert reasons["decode: the prefill pass placed nothing"] > 0


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_abort_mid_decode_frees_its_row_and_leaves_the_others(checkpoint: Path, asynchronous: bool) -> None:
    """23, 30: cancelled while a step is in flight; nobody gets a stale token, and the row is handed out again."""
    prompts = random_prompts([10, 20, 30, 40], vocab=TINY_VOCAB)
    final: dict[str, Any] = {}
    with recorded(checkpoint, lanes=1, rows=3, asynchronous=asynchronous) as (under_test, recorder):
        ids = [under_test.add(prompt, greedy(25)) for prompt in prompts[:3]]
        run_on(under_test, final, steps=8)
        under_test.engine.abort_request([ids[1]])
        ids.append(under_test.add(prompts[3], greedy(25)))
        run_on(under_test, final)
        last = [admission for plan in recorder.plans for admission in plan.admitted][-1]
        assert last.row == 1
        under_test.step()
        assert not recorder.row_of
    for index in (0, 2, 3):
        expected = greedy_reference(checkpoint, prompts[index], 25)
        assert list(final[ids[index]].outputs[0].token_ids) == expected


def test_a_readback_that_fails_ends_its_requests_and_not_the_engine(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSHAPE_TT_FAULTS", '[{"kind": "readback_error", "step": 4, "phase": "decode"}]')
    prompts = random_prompts([10, 20, 30], vocab=TINY_VOCAB)
    final: dict[str, Any] = {}
    with recorded(checkpoint) as (under_test, recorder):
        hit = [under_test.add(prompt, greedy(25)) for prompt in prompts[:2]]
        run_on(under_test, final)
        after = under_test.add(prompts[2], greedy(25))
        run_on(under_test, final)
        under_test.step()
        assert not recorder.row_of
    assert [final[request_id].outputs[0].finish_reason for request_id in hit] == ["error", "error"]
    assert list(final[after].outputs[0].token_ids) == greedy_reference(checkpoint, prompts[2], 25)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_row_with_nothing_left_to_choose_ends_and_the_others_go_on(checkpoint: Path, asynchronous: bool) -> None:
    """21: the only allowed token may not follow itself, so the second step masks everything."""
    from vllm import SamplingParams

    impossible = SamplingParams(temperature=0.0, max_tokens=10, allowed_token_ids=[70], ignore_eos=True)
    impossible._bad_words_token_ids = [[70, 70]]
    prompts = random_prompts([10, 20], vocab=TINY_VOCAB)
    with recorded(checkpoint, asynchronous=asynchronous) as (under_test, recorder):
        first, second = under_test.run(prompts, [impossible, greedy(12)])
        under_test.step()
        assert not recorder.row_of
    assert list(first.outputs[0].token_ids) == [70]
    assert first.outputs[0].finish_reason == "error"
    assert list(second.outputs[0].token_ids) == greedy_reference(checkpoint, prompts[1], 12)


def test_a_logits_processor_that_raises_ends_its_requests_and_not_the_engine(checkpoint: Path) -> None:
    prompts = random_prompts([10, 20, 30], vocab=TINY_VOCAB)
    final: dict[str, Any] = {}
    with recorded(checkpoint, logits_processors=["tests.broken_processor:RaisesOnThirdToken"]) as (under_test, _):
        hit = [under_test.add(prompt, greedy(12, extra_args={"break": True})) for prompt in prompts[:2]]
        run_on(under_test, final)
        after = under_test.add(prompts[2], greedy(12))
        run_on(under_test, final)
    assert [final[request_id].outputs[0].finish_reason for request_id in hit] == ["error", "error"]
    assert list(final[after].outputs[0].token_ids) == greedy_reference(checkpoint, prompts[2], 12)


def test_one_host_row_leaves_its_neighbours_on_the_device(checkpoint: Path) -> None:
    """14: each gets what it asked for, and the path is per row."""
    from vllm import SamplingParams

    prompts = random_prompts([10, 20, 30, 40], vocab=TINY_VOCAB)
    params = [
        greedy(12),
        greedy(12, logit_bias={99: 100.0}),
        SamplingParams(temperature=0.8, top_k=5, seed=1, max_tokens=12, ignore_eos=True),
        greedy(12),
    ]
    with recorded(checkpoint) as (under_test, recorder):
        texts = under_test.tokens(prompts, params)
        host = {index for plan in recorder.plans for index in plan.path.host}
        counts = recorder.counts
    assert texts[0] == greedy_reference(checkpoint, prompts[0], 12)
    assert texts[1] == [99] * 12
    assert texts[3] == greedy_reference(checkpoint, prompts[3], 12)
    assert (counts.rows["host"], counts.rows["device"]) == (12, 36)
    assert host == {1}


def test_upstreams_pass_and_the_short_one_schedule_the_same(checkpoint: Path) -> None:
    """The same requests, KV pressure and all, give the same plans with and without the short decode pass."""

    def plans(short: bool) -> list[Any]:
        prompts = random_prompts([40 + 7 * i for i in range(12)], vocab=TINY_VOCAB)
        with recorded(checkpoint, lanes=2, rows=4, blocks=24, prefix_caching=True) as (under_test, recorder):
            for lane in under_test.scheduler.lanes:
                assert lane.short_passes
                lane.short_passes = short
            texts = under_test.tokens(prompts, [greedy(20 + i) for i in range(12)])
            names: dict[str, str] = {}
            for plan in recorder.plans:
                for admission in plan.admitted:
                    names.setdefault(admission.request_id, f"request {len(names)}")
            return [texts] + [
                (
                    plan.phase,
                    [names[i] for i in plan.request_ids],
                    list(plan.rows),
                    plan.starts,
                    plan.grown,
                    [(names[r.request_id], r.row) for r in plan.released],
                    plan.reload,
                    plan.keep_overlap,
                )
                for plan in recorder.plans
            ]

    assert plans(short=True) == plans(short=False)
