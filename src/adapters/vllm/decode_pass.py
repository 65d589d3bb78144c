"""A decode pass in which everything fits: what upstream's general pass would produce, without its generality.

In a decode pass of ours every visible request asks for one token, and almost always its last block has room for it.
Upstream's loop still runs budgets, encoders, connectors and the block allocator for each of them. Here a row costs a
comparison; the allocator is called for the rows that begin a block, once it is known that all of them get one.
Whatever is out of the ordinary returns None before anything is changed, and upstream's pass runs.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

from .releases.step_records import fields_without_default


def can_take_short_passes(scheduler: Any) -> bool:
    """One full-attention KV cache group, and none of the features that the general pass serves besides (all of them are
    refused at start on this platform; a scheduler that has one anyway keeps the general pass)."""
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    return (
        len(managers) == 1
        and type(managers[0]) is FullAttentionManager
        and not scheduler.needs_kv_cache_zeroing
        and scheduler.connector is None
        and scheduler.ec_connector is None
        and vars(scheduler).get("aux_output_connector") is None  # since 0.31
        and scheduler.lora_config is None
        and scheduler.num_spec_tokens == 0
        and scheduler.num_lookahead_tokens == 0
        and scheduler.num_sampled_tokens_per_step == 1
        and not scheduler.is_encoder_decoder
        and not scheduler.vllm_config.model_config.is_multimodal_model
        and not scheduler.has_mamba_layers
    )


def short_decode_pass(scheduler: Any, decodes: list[Any]) -> SchedulerOutput | None:
    """The output for ``decodes`` (running requests whose prompts are computed), or None."""
    if len(decodes) > scheduler.max_num_scheduled_tokens or scheduler._pause_state is PauseState.PAUSED_ALL:
        return None
    kv = scheduler.kv_cache_manager
    manager = kv.coordinator.single_type_managers[0]
    held, block_size, last = manager.req_to_blocks, manager.block_size, scheduler.max_model_len - 1
    ids: list[str] = []
    computed: list[int] = []
    outputs: list[int] = []
    growing: list[tuple[int, Any]] = []
    for request in decodes:
        position = request.num_computed_tokens
        pending = request.num_output_placeholders
        known = len(request._all_token_ids)
        if known + pending - position != 1 or request.spec_token_ids:
            return None
        if position >= last or (
            # The step in flight reaches max_tokens (upstream's own test): one more would be thrown away.
            pending > 0 and position + 2 - pending >= request.num_prompt_tokens + request.max_tokens
        ):
            continue
        request_id = request.request_id
        if position >= len(held[request_id]) * block_size:
            growing.append((len(ids), request))
        ids.append(request_id)
        computed.append(position)
        outputs.append(known - request.num_prompt_tokens + pending)
    if len(growing) > kv.block_pool.get_num_free_blocks():
        return None
    # From here on nothing can fail.
    scheduler.current_step += 1
    kv.new_step_starts()
    new_blocks: list[tuple[list[int], ...] | None] = [None] * len(ids)
    for index, request in growing:
        allocated = kv.allocate_slots(request, 1)
        if allocated is None:
            raise RuntimeError(
                f"request {request.request_id!r} was promised a block and got none; the pool lost count of its blocks"
            )
        new_blocks[index] = allocated.get_block_ids()
    if growing:
        kv.take_new_block_ids()  # drained, else upstream's list of blocks to zero grows without bound
    if ids and scheduler.counts_executed_steps:
        scheduler.num_executed_steps += 1
    output = SchedulerOutput(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=CachedRequestData(
            req_ids=ids,
            resumed_req_ids=set(),
            new_token_ids=[],
            all_token_ids={},
            new_block_ids=new_blocks,
            num_computed_tokens=computed,
            num_output_tokens=outputs,
        ),
        num_scheduled_tokens=dict.fromkeys(ids, 1),
        total_num_scheduled_tokens=len(ids),
        scheduled_spec_decode_tokens={},
        scheduled_encoder_inputs={},
        finished_req_ids=scheduler.finished_req_ids,
        free_encoder_mm_hashes=[],
        preempted_req_ids=scheduler.reset_preempted_req_ids,
        **fields_without_default(),
    )
    scheduler._update_after_schedule(output)
    return output
