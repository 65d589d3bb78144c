"""A tiny Llama served on the emulated card as it rounds: what must not change a token, and what must not be paid."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ..engines import random_prompts
from ..spyre_engines import SpyreEngine, greedy, spyre_config, spyre_engine
from ..tiny_checkpoints import save

PROMPTS = random_prompts([5, 40, 17, 100], vocab=190)
LONG = random_prompts([150, 130, 90, 60, 30, 12, 8, 4], vocab=190, seed=3)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(spyre_config("llama"), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def engine(llama: Path) -> Iterator[SpyreEngine]:
    """Eager, asynchronous; one for the tests that only ask."""
    with spyre_engine(llama) as built:
        yield built


def sampled(seed: int | None, **more: Any) -> Any:
    from vllm import SamplingParams

    more = {"max_tokens": 12, "ignore_eos": True, "detokenize": False, **more}
    return SamplingParams(temperature=1.0, seed=seed, **more)


def test_a_step_takes_three_copies_and_compiles_nothing(engine: SpyreEngine) -> None:
    """Contract 11, fault 8: one upload of each type, not one a sequence; and demand 5."""
    engine.tokens(PROMPTS, greedy(12))
    assert engine.counts.most_copies == 3
    assert engine.events["host_to_device"] == engine.counts.copies
    assert engine.late == 0


def test_the_order_of_arrival_moves_no_token(engine: SpyreEngine) -> None:
    """The same bodies and the same buckets, other places in the batch: decodes read their own pages and no others."""
    texts = engine.tokens(PROMPTS, greedy(16))
    back = engine.tokens(PROMPTS[::-1], greedy(16))
    assert [t[:4] for t in back[::-1]] == [t[:4] for t in texts]


def test_logprobs_and_the_prompts_own(engine: SpyreEngine) -> None:
    """Contract 11, fault 5: ``prompt_logprobs`` asks for more logits rows than there are sequences."""
    out = engine.run([PROMPTS[3]], greedy(4, logprobs=3, prompt_logprobs=2))[0]
    assert len(out.prompt_logprobs) == 100 and out.prompt_logprobs[0] is None
    for place, entry in enumerate(out.prompt_logprobs[1:], start=1):
        assert PROMPTS[3][place] in entry and 2 <= len(entry) <= 3
    for token, entry in zip(out.outputs[0].token_ids, out.outputs[0].logprobs, strict=True):
        assert entry[token].rank == 1 and 3 <= len(entry) <= 4
    assert engine.counts.most_copies == 3


def test_a_seeded_request_is_itself_in_any_company(engine: SpyreEngine) -> None:
    """Contract 11, fault 4: a seeded prompt of several chunks draws for chunks that keep nothing; vLLM winds its
    generator back by an offset that a host generator lacks."""
    alone = engine.tokens([LONG[0]], sampled(7))[0]
    together = engine.tokens([LONG[0], *PROMPTS[:2]], [sampled(7), sampled(None), sampled(8)])
    assert together[0] == alone
    assert engine.tokens([LONG[0]], sampled(8))[0] != alone


def test_min_p_leaves_the_best_alone(engine: SpyreEngine) -> None:
    """Or one of the best: in fp16 two of 199 logits are now and then the same."""
    for out in engine.run(PROMPTS[:2], sampled(1, min_p=1.0, max_tokens=8, logprobs=2)):
        for token, entry in zip(out.outputs[0].token_ids, out.outputs[0].logprobs, strict=True):
            assert entry[token].logprob == max(each.logprob for each in entry.values())


@pytest.fixture(scope="module")
def texts(engine: SpyreEngine) -> list[list[int]]:
    return engine.tokens(LONG, greedy(16))


def test_synchronous_scheduling_gives_the_same_text(llama: Path, texts: list[list[int]]) -> None:
    with spyre_engine(llama, async_scheduling=False) as other:
        assert other.tokens(LONG, greedy(16)) == texts


def test_compiled_blocks_give_the_same_text_from_two_artifacts_a_body(llama: Path, texts: list[list[int]]) -> None:
    """Demand 6; and faults 2, 3 and 7: no stride of a size-1 dimension, no missed dispatch key and no functionalised
    graph compiles anything again."""
    with spyre_engine(llama, enforce_eager=False) as other:
        assert other.tokens(LONG, greedy(16)) == texts
        assert other.late == 0
        assert blocks_compiled() == 2 * len(other.runner.body_ladder.sizes)


def blocks_compiled() -> int:
    from stepshape.adapters.emulator.spyre import counters

    return sum(count for (kernel, _), count in counters().artifacts.items() if kernel.startswith("llama."))


def test_artifacts_do_not_grow_with_depth(tmp_path: Path) -> None:
    from stepshape.adapters.emulator.spyre import reset_counters

    config = spyre_config("llama")
    config.num_hidden_layers = 6
    deep = save(config, tmp_path)
    reset_counters(compiled=True)
    with spyre_engine(deep, enforce_eager=False, max_num_seqs=1, max_model_len=64) as other:
        assert blocks_compiled() == 2 * len(other.runner.body_ladder.sizes)


def test_the_whole_model_can_be_one_graph(
    llama: Path, texts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPYRE_COMPILE_GRANULARITY", "model")
    with spyre_engine(llama, enforce_eager=False) as other:
        assert other.tokens(LONG[:4], greedy(16)) == texts[:4]
        assert other.late == 0


def test_unrecorded_shapes_are_compiled_late_and_guarded(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPYRE_ATTN_RECORD", "0")
    monkeypatch.setenv("SPYRE_COMPILE_GUARD", "error")
    with spyre_engine(llama, enforce_eager=False, max_num_seqs=1, max_model_len=128) as other:
        assert other.runner.kit.late_graphs() == 0
        with pytest.raises(RuntimeError, match="graphs were compiled while serving"):
            other.tokens(PROMPTS[3:], greedy(2))


@pytest.mark.parametrize("form", ["rectangular", "off"])
def test_other_forms_of_decode_serve_too(llama: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if form == "off":
        monkeypatch.setenv("SPYRE_BATCHED_DECODE", "0")
    else:
        monkeypatch.setenv("STEPSHAPE_SPYRE_DECODE_FORM", form)
    with spyre_engine(llama) as other:
        out = other.run(PROMPTS, greedy(12, logprobs=1))
        assert all(len(each.outputs[0].token_ids) == 12 for each in out)
        assert other.late == 0 and other.counts.most_copies == 3


def test_a_prefix_that_is_cached_gives_the_same_text(llama: Path) -> None:
    prompts = random_prompts([140, 150], vocab=190, shared=128)
    with spyre_engine(llama, enable_prefix_caching=True) as other:
        cold = other.tokens([prompts[0]], greedy(8))
        warm = other.run([prompts[0]], greedy(8))[0]
        assert warm.num_cached_tokens == 128
        assert list(warm.outputs[0].token_ids) == cold[0]


def test_a_preempted_request_goes_on_where_it_was(llama: Path) -> None:
    prompts = random_prompts([60, 60, 60], vocab=190, seed=5)
    with spyre_engine(llama) as roomy:
        want = roomy.tokens(prompts, greedy(40))
    with spyre_engine(llama, num_gpu_blocks_override=5) as tight:
        preempted = 0
        ids = [tight.add(prompt, greedy(40)) for prompt in prompts]
        done: dict[str, list[int]] = {}
        while tight.engine.has_unfinished_requests():
            for output in tight.step():
                if output.finished:
                    done[output.request_id] = list(output.outputs[0].token_ids)
            preempted = max(preempted, *(r.num_preemptions for r in tight.scheduler.requests.values()), 0, 0)
        assert preempted > 0
        assert [done[request] for request in ids] == want
        assert tight.late == 0


def test_one_request_prefills_at_a_time(llama: Path) -> None:
    """The cap of the core: a step never holds two prompts that are not over."""
    with spyre_engine(llama) as other:
        for prompt in LONG[:4]:
            other.add(prompt, greedy(4))
        most = 0
        while other.engine.has_unfinished_requests():
            other.step()
            running = other.scheduler.running
            most = max(most, sum(r.num_computed_tokens < r.num_prompt_tokens for r in running))
        assert most == 1


@pytest.mark.parametrize("fill", ["0x00", "0x7b"])
def test_what_fresh_memory_holds_is_nobodys_business(
    llama: Path, texts: list[list[int]], fill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 11, fault 1: pad rows of attention's ``torch.empty`` output, unwritten pages, staging tails. The other
    engines' memory is NaN (0xff)."""
    from stepshape.adapters.emulator.spyre import set_fill

    set_fill(int(fill, 0))
    try:
        with spyre_engine(llama) as other:
            assert other.tokens(LONG, greedy(16)) == texts
    finally:
        set_fill(0xFF)


def test_one_thread_unless_told_otherwise(engine: SpyreEngine) -> None:
    """Contract 11, fault 6: two OpenMP threads beside a busy process are seventy times slower than one."""
    assert os.environ["OMP_NUM_THREADS"] == "1" and torch.get_num_threads() == 1
