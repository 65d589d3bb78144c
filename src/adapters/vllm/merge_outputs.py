"""The lanes' ``SchedulerOutput``s as the one that vLLM's engine handles.

Driven by the class's own fields: a field of a newer vLLM that has no rule here stops the start, because a merge that
drops it would fail somewhere else, later and silently.
"""
from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from vllm import SamplingParams
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput

from ...ports.step import StepPlan
from .outputs import PlannedSchedulerOutput
from .releases.step_records import fields_without_default

_MERGED = frozenset(
    {
        "scheduled_new_reqs",
        "scheduled_cached_reqs",
        "num_scheduled_tokens",
        "total_num_scheduled_tokens",
        "finished_req_ids",
        "preempted_req_ids",
        "has_structured_output_requests",
        "pending_structured_output_tokens",
    }
)
# What belongs to features that are refused at start (speculation, multimodal encoders, KV and EC connectors, block
# zeroing, copy-on-write tails). Any value but the neutral one means that a refusal was missed.
_NEUTRAL = frozenset(
    {
        "scheduled_spec_decode_tokens",
        "scheduled_encoder_inputs",
        "free_encoder_mm_hashes",
        "encoder_input_updates",
        "num_invalid_spec_tokens",
        "kv_connector_metadata",
        "has_sync_kv_loads",
        "aux_output_connector_metadata",
        "ec_connector_metadata",
        "new_block_ids_to_zero",
        "kv_cache_block_copies",
        "kv_connector_block_state",
        "num_spec_tokens_to_schedule",
        "partial_tail_offloads",
        "block_table_updates",
    }
)
# Derived or informative; nobody downstream of a lane reads them here.
_DROPPED = frozenset(
    {"num_common_prefix_blocks", "skip_drafts", "scheduled_encoder_input_stats", "ec_manager_metadata"}
)


def check_fields() -> None:
    """Raise RuntimeError naming the fields of this vLLM's ``SchedulerOutput`` that no rule covers."""
    known = _MERGED | _NEUTRAL | _DROPPED
    unknown = sorted(f.name for f in dataclasses.fields(SchedulerOutput) if f.name not in known)
    if unknown:
        raise RuntimeError(
            f"this vLLM's SchedulerOutput has fields that the lane merge has no rule for: {', '.join(unknown)}; "
            "use a vLLM within the supported window, or add a rule"
        )


_NEUTRAL_HERE = tuple(f.name for f in dataclasses.fields(SchedulerOutput) if f.name in _NEUTRAL)


def merge_outputs(
    outputs: Sequence[SchedulerOutput], plan: StepPlan[SamplingParams], preempted: set[str], finished: set[str]
) -> PlannedSchedulerOutput:
    """``preempted`` and ``finished`` are given because a discarded pass may have added to them."""
    num_scheduled: dict[str, int] = {}
    cached = CachedRequestData.make_empty()
    new_reqs: list[Any] = []
    total = 0
    structured = pending = False
    for output in outputs:
        if output.total_num_scheduled_tokens:
            total += output.total_num_scheduled_tokens
            num_scheduled.update(output.num_scheduled_tokens)
            new_reqs += output.scheduled_new_reqs
            lane = output.scheduled_cached_reqs
            cached.req_ids += lane.req_ids
            cached.new_block_ids += lane.new_block_ids
            cached.num_computed_tokens += lane.num_computed_tokens
            cached.num_output_tokens += lane.num_output_tokens
            structured |= output.has_structured_output_requests
            pending |= output.pending_structured_output_tokens
        for name in _NEUTRAL_HERE:
            if getattr(output, name):
                raise RuntimeError(
                    f"a lane's scheduler set {name}={getattr(output, name)!r}, which no supported feature uses; "
                    "turn the feature off that asks for it"
                )
    return PlannedSchedulerOutput(
        scheduled_new_reqs=new_reqs,
        scheduled_cached_reqs=cached,
        num_scheduled_tokens=num_scheduled,
        total_num_scheduled_tokens=total,
        scheduled_spec_decode_tokens={},
        scheduled_encoder_inputs={},
        finished_req_ids=finished,
        free_encoder_mm_hashes=[],
        preempted_req_ids=preempted or None,
        has_structured_output_requests=structured,
        pending_structured_output_tokens=pending,
        plan=plan,
        lane_outputs=outputs,
        **fields_without_default(),
    )
