"""A step on its way back, a merge of lanes, their statistics: the pieces between scheduler and runner."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from stepshape.adapters.vllm.frame import Frame
from stepshape.adapters.vllm.lane_stats import merge_stats
from stepshape.adapters.vllm.merge_outputs import check_fields, merge_outputs
from stepshape.adapters.vllm.outputs import Failure
from stepshape.ports.generator import HostResult, Readback
from stepshape.ports.step import Phase, StepPlan

from ..builders import arrival, decode_step, plan_decode, plan_prefill, planner, prefill_step


@attrs.define
class SlowReadback:
    """A port's adapter: takes a while, counts how often it is really read, may fail."""

    tokens: list[int]
    error: str | None = None
    reads: int = 0

    def read(self) -> HostResult[torch.Tensor]:
        self.reads += 1
        time.sleep(0.05)
        if self.error is not None:
            raise RuntimeError(self.error)
        return HostResult(tokens=torch.tensor(self.tokens, dtype=torch.int32), logits=None)

    def done(self) -> bool:
        return self.reads > 0


def decode_frame(readback: Readback[torch.Tensor] | None, error: str | None = None) -> Frame:
    p = planner(rows=4)
    plan_prefill(p, prefill_step(arrival("a"), arrival("b")))
    plan: StepPlan[Any] = plan_decode(p, decode_step(("a", 4), ("b", 4)))
    rows = np.array([0, 1], np.int64)
    unused: Any = None  # no row of this plan is sampled on the host
    return Frame(
        plan=plan,
        readback=readback,
        error=error,
        index={"a": 0, "b": 1},
        emitting=None,
        device_rows=rows,
        rows=rows,
        positions=rows + 5,
        epochs=rows,
        host_rows=[],
        host_batch=unused,
    )


def test_two_threads_get_one_reading() -> None:
    """Contract 8.20: the engine drains the same step that an output thread waits for."""
    readback = SlowReadback([7, 8, -1, -1])
    frame = decode_frame(readback)
    seen: list[Any] = []
    threads = [threading.Thread(target=lambda: seen.append(frame.get_output())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert readback.reads == 1
    assert all(output is seen[0] for output in seen)
    assert seen[0].sampled_token_ids == [[7], [8]]
    assert frame.is_read and not frame.failed


def test_a_failed_reading_names_its_requests_once() -> None:
    readback = SlowReadback([], error="the chip went away")
    frame = decode_frame(readback)
    output = frame.get_output()
    why = Failure("the device failed this request's step: the chip went away")
    assert output.failed == {"a": why, "b": why}
    assert output.sampled_token_ids == [[], []]
    assert frame.get_output() is output
    assert readback.reads == 1
    assert frame.failed


def test_a_step_that_was_never_submitted_fails_with_its_reason() -> None:
    failure = decode_frame(None, "unseen shape").get_output().failed["b"]
    assert failure == Failure("the device failed this request's step: unseen shape")


def test_every_field_of_this_vllms_scheduler_output_has_a_rule() -> None:
    check_fields()


def _lane_output(**changes: Any) -> Any:
    from vllm.v1.core.sched.output import SchedulerOutput

    return dataclasses.replace(SchedulerOutput.make_empty(), **changes)


def _empty_plan() -> StepPlan[Any]:
    return StepPlan(step=1, phase=Phase.EMPTY, why="idle", lanes=2, rows_per_lane=2)


def test_a_merge_sums_counts_and_unions_events() -> None:
    from vllm.v1.core.sched.output import CachedRequestData

    def decoding(name: str) -> Any:
        cached = CachedRequestData([name], set(), [], {}, [None], [5], [1])
        return _lane_output(
            scheduled_cached_reqs=cached, num_scheduled_tokens={name: 1}, total_num_scheduled_tokens=1
        )

    structured = dataclasses.replace(decoding("b"), has_structured_output_requests=True)
    merged = merge_outputs([decoding("a"), structured], _empty_plan(), {"gone"}, {"done"})
    assert merged.num_scheduled_tokens == {"a": 1, "b": 1}
    assert merged.total_num_scheduled_tokens == 2
    assert merged.scheduled_cached_reqs.req_ids == ["a", "b"]
    assert merged.has_structured_output_requests
    assert (merged.preempted_req_ids, merged.finished_req_ids) == ({"gone"}, {"done"})
    assert len(merged.lane_outputs) == 2


def test_a_merge_refuses_to_drop_what_nobody_supports() -> None:
    with pytest.raises(RuntimeError, match="new_block_ids_to_zero"):
        merge_outputs([_lane_output(new_block_ids_to_zero=[3])], _empty_plan(), set(), set())


def test_statistics_are_one_engines() -> None:
    from vllm.v1.metrics.stats import PrefixCacheStats, SchedulerStats

    lanes = [
        SchedulerStats(
            num_running_reqs=n,
            num_waiting_reqs=2 * n,
            kv_cache_usage=0.25 * n,
            prefix_cache_stats=PrefixCacheStats(requests=n, queries=10 * n, hits=n, preempted_requests=1),
        )
        for n in (1, 2)
    ]
    merged = merge_stats(lanes)
    assert merged is not None
    assert (merged.num_running_reqs, merged.num_waiting_reqs, merged.kv_cache_usage) == (3, 6, 0.375)
    prefix = merged.prefix_cache_stats
    assert (prefix.requests, prefix.queries, prefix.hits, prefix.preempted_requests) == (3, 30, 3, 2)
    assert merge_stats([None, None]) is None
