"""Every rule of the emulated mesh, broken through the generator contract, raises by its name."""
from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from stepshape.adapters.emulator.mesh.emulated_model import EmulatedModelError
from stepshape.adapters.emulator.mesh.model import EmulatedForCausalLM, EmulatedLegacyForCausalLM
from stepshape.adapters.emulator.mesh.rules import Rule, RuleBroken
from stepshape.adapters.ttnn.sampling_wire import to_wire
from stepshape.ports.generator import KVCacheLayer
from stepshape.ports.sampling import DeviceSampling
from stepshape.ports.step import ReloadCommands

from ..mesh_driver import GREEDY, KEEP, RELOAD_ALL, MeshDriver, prompt_of
from ..tiny_checkpoints import config, save

PAGES = ReloadCommands(page_table=True)
INPUTS = ReloadCommands(inputs=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    hf_config = config("llama")
    hf_config.num_hidden_layers = 1
    return save(hf_config, tmp_path_factory.mktemp("llama"))


def decoding(driver: MeshDriver) -> MeshDriver:
    """Rows 0 and 2 decode: 9 and 16 prompt tokens, so that both are one step into a block, and one step on."""
    driver.admit(0, prompt_of(9, 1))
    driver.admit(2, prompt_of(16, 2))
    driver.prefill([0, 2])
    driver.decode([0, 2], RELOAD_ALL)
    return driver


def raw_decode(driver: MeshDriver, **changes: Any) -> Any:
    """``decode_forward`` itself, with a good steady step's arguments but for ``changes``."""
    inputs = driver.decode_inputs([0, 2], KEEP)
    arguments: dict[str, Any] = {
        "tokens": inputs.tokens,
        "start_pos": inputs.positions,
        "page_table": inputs.page_table,
        "kv_cache": driver.model._model._cache,
        "enable_trace": True,
        "reload_inputs": False,
        "reload_page_table": False,
        "reload_sampling_params": False,
        "reset_sampling_state": False,
        "sampling_params": to_wire(driver.neutral()),
    }
    return driver.model.decode_forward(**{**arguments, **changes})


def edited(tensor: torch.Tensor, index: Any, value: int) -> torch.Tensor:
    copy = tensor.clone()
    copy[index] = value
    return copy


# -- shapes


def an_unseen_decode_width(driver: MeshDriver) -> None:
    inputs = decoding(driver).decode_inputs([0, 2], RELOAD_ALL)
    driver.generator.decode(attrs.evolve(inputs, page_table=inputs.page_table[:, :10].contiguous()))


def an_unseen_decode_batch(driver: MeshDriver) -> None:
    inputs = decoding(driver).decode_inputs([0, 2], RELOAD_ALL)
    driver.generator.decode(
        attrs.evolve(
            inputs,
            tokens=inputs.tokens[:3],
            positions=inputs.positions[:3],
            page_table=inputs.page_table[:3],
            sampling=[GREEDY] * 3,
        )
    )


def an_unseen_prefill_length(driver: MeshDriver) -> None:
    driver.admit(0, prompt_of(9))
    inputs = driver.prefill_inputs([0])
    longer = torch.zeros((1, 300), dtype=torch.int32)
    driver.generator.prefill(attrs.evolve(inputs, tokens=longer, ends=[300]))


def an_unseen_prefill_width(driver: MeshDriver) -> None:
    driver.admit(0, prompt_of(9))
    inputs = driver.prefill_inputs([0])
    driver.generator.prefill(attrs.evolve(inputs, page_table=inputs.page_table[:, :4].contiguous()))


def a_warm_up_that_compiles_after_a_trace(driver: MeshDriver) -> None:
    driver.generator.warm_up_decode(max_batch_size=2, blocks_per_row=24, sample_on_device=True, traced=False)


# -- reading


def a_read_before_its_event(driver: MeshDriver) -> None:
    out = raw_decode(decoding(driver), read_from_device=False)
    model: Any = driver.model
    handle, events = model.read_decode_output(out, async_read=True)
    # The device is through; only the host has not looked.
    driver.mesh.record_event().synchronize()
    assert events[0].done()
    driver.model.process_decode_output_host(handle, is_tokens=True)


# -- phases and slots


def a_prefill_with_nothing_to_compute(driver: MeshDriver) -> None:
    decoding(driver)
    inputs = driver.prefill_inputs([2])
    driver.generator.prefill(attrs.evolve(inputs, starts=[17], ends=[17]))


def a_decode_row_sent_as_a_prefill(driver: MeshDriver) -> None:
    decoding(driver)
    inputs = driver.prefill_inputs([2])
    driver.generator.prefill(attrs.evolve(inputs, starts=[17], ends=[18]))


def a_decode_of_an_empty_slot(driver: MeshDriver) -> None:
    decoding(driver).admit(1, prompt_of(4))
    driver.decode([0, 1, 2], RELOAD_ALL)


def a_prefill_into_anothers_slot(driver: MeshDriver) -> None:
    decoding(driver).admit(3, prompt_of(12))
    inputs = driver.prefill_inputs([3])
    driver.generator.prefill(attrs.evolve(inputs, slots=[0])).read()
    driver.decode([0, 2], RELOAD_ALL)


def a_position_that_jumps(driver: MeshDriver) -> None:
    decoding(driver).rows[0].tokens.append(7)
    driver.decode([0, 2], RELOAD_ALL)


def the_same_slot_twice(driver: MeshDriver) -> None:
    driver.admit(0, prompt_of(9))
    driver.admit(1, prompt_of(9))
    driver.generator.prefill(attrs.evolve(driver.prefill_inputs([0, 1]), slots=[1, 1]))


# -- blocks


def a_stale_block_beyond_the_live_ones(driver: MeshDriver) -> None:
    driver.admit(0, prompt_of(9))
    inputs = driver.prefill_inputs([0])
    driver.generator.prefill(attrs.evolve(inputs, page_table=edited(inputs.page_table, (0, 2), 5)))


def a_null_block_among_the_live_ones(driver: MeshDriver) -> None:
    driver.admit(0, prompt_of(9))
    inputs = driver.prefill_inputs([0])
    driver.generator.prefill(attrs.evolve(inputs, page_table=edited(inputs.page_table, (0, 1), 0)))


def a_block_out_of_range(driver: MeshDriver) -> None:
    driver.admit(0, prompt_of(9))
    inputs = driver.prefill_inputs([0])
    driver.generator.prefill(attrs.evolve(inputs, page_table=edited(inputs.page_table, (0, 1), 64)))


def two_rows_of_a_prefill_that_write_one_block(driver: MeshDriver) -> None:
    driver.admit(0, prompt_of(9))
    driver.admit(1, prompt_of(9))
    inputs = driver.prefill_inputs([0, 1])
    page_table = edited(inputs.page_table, (1, 1), int(inputs.page_table[0, 1]))
    driver.generator.prefill(attrs.evolve(inputs, page_table=page_table))


def a_decode_that_writes_a_shared_block(driver: MeshDriver) -> None:
    decoding(driver)
    driver.rows[2].blocks[2] = driver.rows[0].blocks[1]
    driver.decode([0, 2], RELOAD_ALL)


def a_block_that_was_given_away(driver: MeshDriver) -> None:
    """The known failure: a freed block still in a decoding row's table, and another request writes it."""
    decoding(driver).admit(1, prompt_of(9, 3), shared=driver.rows[0].blocks[:1])
    driver.prefill([1])
    driver.decode([0, 1, 2], RELOAD_ALL)


def a_prefix_hit_on_other_tokens(driver: MeshDriver) -> None:
    decoding(driver).admit(1, prompt_of(16, 5), shared=driver.rows[0].blocks[:1], computed=8)
    driver.prefill([1])


def a_start_that_skips_positions(driver: MeshDriver) -> None:
    driver.admit(0, prompt_of(16), computed=8)
    driver.prefill([0])


# -- reloads


def a_first_decode_without_inputs(driver: MeshDriver) -> None:
    driver.admit(0, prompt_of(9))
    driver.prefill([0])
    driver.decode([0], KEEP)


def a_row_that_joins_without_a_reload(driver: MeshDriver) -> None:
    decoding(driver).admit(1, prompt_of(4))
    driver.prefill([1])
    driver.decode([0, 1, 2], KEEP)


def a_row_that_leaves_without_a_reload(driver: MeshDriver) -> None:
    decoding(driver).decode([0], KEEP)


def a_replaced_request_without_a_reload(driver: MeshDriver) -> None:
    decoding(driver).admit(0, prompt_of(10, 8))
    driver.prefill([0])
    driver.decode([0, 2], PAGES)


def a_block_added_without_a_reload(driver: MeshDriver) -> None:
    decoding(driver)
    for _ in range(10):
        driver.decode([0, 2], KEEP)


def host_sampling_without_a_reload(driver: MeshDriver) -> None:
    driver.generator.decode(decoding(driver).decode_inputs([0, 2], KEEP, sampling=None)).read()
    for slot in (0, 2):
        driver.rows[slot].tokens.append(3)
    driver.decode([0, 2], KEEP)


def sampling_that_changes_without_a_reload(driver: MeshDriver) -> None:
    changed = driver.neutral(r0=DeviceSampling(temperature=0.7, top_k=5))
    raw_decode(decoding(driver), sampling_params=to_wire(changed))


def a_reload_of_a_token_that_is_a_step_old(driver: MeshDriver) -> None:
    decoding(driver)
    inputs = driver.decode_inputs([0, 2], RELOAD_ALL)
    old = driver.rows[0].tokens[-2]
    assert old != driver.rows[0].tokens[-1]
    driver.generator.decode(attrs.evolve(inputs, tokens=edited(inputs.tokens, (0, 0), old))).read()


def both_kinds_of_page_reload(driver: MeshDriver) -> None:
    raw_decode(decoding(driver), reload_inputs=True, reload_page_table=True)


def a_reset_without_inputs(driver: MeshDriver) -> None:
    raw_decode(decoding(driver), reset_sampling_state=True)


def a_reload_of_sampling_that_is_not_there(driver: MeshDriver) -> None:
    raw_decode(decoding(driver), reload_sampling_params=True, sampling_params=None)


# -- neutral rows


def an_inactive_row_with_a_token(driver: MeshDriver) -> None:
    inputs = decoding(driver).decode_inputs([0, 2], INPUTS)
    driver.generator.decode(attrs.evolve(inputs, tokens=edited(inputs.tokens, (1, 0), 4)))


def an_inactive_row_with_a_position(driver: MeshDriver) -> None:
    inputs = decoding(driver).decode_inputs([0, 2], INPUTS)
    driver.generator.decode(attrs.evolve(inputs, positions=edited(inputs.positions, 1, -2)))


def an_inactive_row_with_a_block(driver: MeshDriver) -> None:
    inputs = decoding(driver).decode_inputs([0, 2], INPUTS)
    driver.generator.decode(attrs.evolve(inputs, page_table=edited(inputs.page_table, (1, 0), 4)))


def an_inactive_row_with_a_temperature(driver: MeshDriver) -> None:
    driver.decode([0, 2], RELOAD_ALL, sampling=decoding(driver).neutral(r1=DeviceSampling(temperature=1.0)))


# -- shapes of one step


def tokens_of_another_dtype(driver: MeshDriver) -> None:
    driver.admit(0, prompt_of(9))
    inputs = driver.prefill_inputs([0])
    driver.generator.prefill(attrs.evolve(inputs, tokens=inputs.tokens.long()))


def tokens_shorter_than_the_chunk(driver: MeshDriver) -> None:
    driver.admit(0, prompt_of(9))
    inputs = driver.prefill_inputs([0])
    driver.generator.prefill(attrs.evolve(inputs, tokens=inputs.tokens[:, :8].contiguous()))


def logits_of_an_inactive_row(driver: MeshDriver) -> None:
    decoding(driver).decode([0, 2], RELOAD_ALL, logits_rows=[1])


# -- sampling on the wire


def wire(**changes: Any) -> Callable[[MeshDriver], None]:
    def breaks(driver: MeshDriver) -> None:
        good = to_wire(driver.neutral(r0=DeviceSampling(temperature=0.7, top_k=5)))
        values: dict[str, Any] = {
            name: [value, *getattr(good, name)[1:]] if not isinstance(value, (list, torch.Tensor)) else value
            for name, value in changes.items()
        }
        raw_decode(decoding(driver), reload_sampling_params=True, sampling_params=dataclasses.replace(good, **values))

    return breaks


# -- KV cache and lanes


def a_cache_of_other_heads(driver: MeshDriver) -> None:
    driver.generator.allocate_kv_cache([KVCacheLayer(shape=(64, 2, 8, 16), dtype="float32", tensor=0)])


def a_cache_of_more_layers(driver: MeshDriver) -> None:
    layers = [KVCacheLayer(shape=(64, 1, 8, 16), dtype="float32", tensor=layer) for layer in range(2)]
    driver.generator.allocate_kv_cache(layers)


def a_step_with_another_cache(driver: MeshDriver) -> None:
    raw_decode(decoding(driver), kv_cache=object())


def lanes_that_do_not_divide_the_batch(driver: MeshDriver) -> None:
    config_of = driver.model._model.loaded.module.config
    EmulatedForCausalLM.initialize_vllm_model(config_of, driver.mesh, 6, tt_data_parallel=4)


BREAKS: list[tuple[Rule, Callable[[MeshDriver], Any]]] = [
    (Rule.UNSEEN_SHAPE, an_unseen_decode_width),
    (Rule.UNSEEN_SHAPE, an_unseen_decode_batch),
    (Rule.UNSEEN_SHAPE, an_unseen_prefill_length),
    (Rule.UNSEEN_SHAPE, an_unseen_prefill_width),
    (Rule.UNSEEN_SHAPE, a_warm_up_that_compiles_after_a_trace),
    (Rule.READ_BEFORE_EVENT, a_read_before_its_event),
    (Rule.MIXED_BATCH, a_prefill_with_nothing_to_compute),
    (Rule.MIXED_BATCH, a_decode_row_sent_as_a_prefill),
    (Rule.WRONG_SLOT, a_decode_of_an_empty_slot),
    (Rule.WRONG_SLOT, a_prefill_into_anothers_slot),
    (Rule.WRONG_SLOT, a_position_that_jumps),
    (Rule.WRONG_SLOT, the_same_slot_twice),
    (Rule.STALE_BLOCK, a_stale_block_beyond_the_live_ones),
    (Rule.STALE_BLOCK, a_null_block_among_the_live_ones),
    (Rule.STALE_BLOCK, a_block_out_of_range),
    (Rule.STALE_BLOCK, two_rows_of_a_prefill_that_write_one_block),
    (Rule.STALE_BLOCK, a_decode_that_writes_a_shared_block),
    (Rule.STALE_BLOCK, a_block_that_was_given_away),
    (Rule.STALE_BLOCK, a_prefix_hit_on_other_tokens),
    (Rule.UNWRITTEN_READ, a_start_that_skips_positions),
    (Rule.LATE_RELOAD, a_first_decode_without_inputs),
    (Rule.LATE_RELOAD, a_row_that_joins_without_a_reload),
    (Rule.LATE_RELOAD, a_row_that_leaves_without_a_reload),
    (Rule.LATE_RELOAD, a_replaced_request_without_a_reload),
    (Rule.LATE_RELOAD, a_block_added_without_a_reload),
    (Rule.LATE_RELOAD, host_sampling_without_a_reload),
    (Rule.LATE_RELOAD, sampling_that_changes_without_a_reload),
    (Rule.STALE_RELOAD, a_reload_of_a_token_that_is_a_step_old),
    (Rule.RELOAD_CONFLICT, both_kinds_of_page_reload),
    (Rule.RELOAD_CONFLICT, a_reset_without_inputs),
    (Rule.RELOAD_CONFLICT, a_reload_of_sampling_that_is_not_there),
    (Rule.NOT_NEUTRAL, an_inactive_row_with_a_token),
    (Rule.NOT_NEUTRAL, an_inactive_row_with_a_position),
    (Rule.NOT_NEUTRAL, an_inactive_row_with_a_block),
    (Rule.NOT_NEUTRAL, an_inactive_row_with_a_temperature),
    (Rule.INPUT_SHAPE, tokens_of_another_dtype),
    (Rule.INPUT_SHAPE, tokens_shorter_than_the_chunk),
    (Rule.INPUT_SHAPE, logits_of_an_inactive_row),
    (Rule.SAMPLING_WIRE, wire(temperature=-1.0)),
    (Rule.SAMPLING_WIRE, wire(temperature=math.nan)),
    (Rule.SAMPLING_WIRE, wire(top_k=0)),
    (Rule.SAMPLING_WIRE, wire(top_k=200)),
    (Rule.SAMPLING_WIRE, wire(top_p=1.5)),
    (Rule.SAMPLING_WIRE, wire(seed=-1)),
    (Rule.SAMPLING_WIRE, wire(seed=[None])),
    (Rule.SAMPLING_WIRE, wire(top_k=torch.ones(4))),
    (Rule.SAMPLING_WIRE, wire(presence_penalty=0.5)),
    (Rule.DEVICE_TOP_K, wire(top_k=33)),
    (Rule.LANES, lanes_that_do_not_divide_the_batch),
    (Rule.KV_SHAPE, a_cache_of_other_heads),
    (Rule.KV_SHAPE, a_cache_of_more_layers),
    (Rule.KV_SHAPE, a_step_with_another_cache),
]


@pytest.mark.parametrize(("rule", "breaks"), BREAKS, ids=[f"{r.text.name}-{b.__name__}" for r, b in BREAKS])
def test_a_broken_rule_raises_by_name(folder: Path, rule: Rule, breaks: Callable[[MeshDriver], Any]) -> None:
    driver = MeshDriver(folder)
    try:
        with pytest.raises(RuleBroken) as caught:
            breaks(driver)
        assert caught.value.rule is rule, caught.value
        assert str(caught.value).startswith(f"{rule.text.name}: {rule.text.cause} (")
        assert str(caught.value).endswith(f"; {rule.text.mend}")
    finally:
        driver.close()


def test_no_rule_is_untested() -> None:
    assert {rule for rule, _ in BREAKS} == set(Rule)


def test_an_unwarmed_device_compiles_what_it_meets(folder: Path) -> None:
    driver = MeshDriver(folder, warm=False)
    decoding(driver).steady([0, 2], 3)
    driver.close()


def test_warm_up_computes_nothing(folder: Path) -> None:
    driver = MeshDriver(folder)
    assert driver.mesh._submitted == 0
    driver.close()


def test_a_decode_shape_without_device_sampling_does_not_cover_it(folder: Path) -> None:
    driver = MeshDriver(folder, warm=False)
    for traced in (False, True):
        driver.generator.warm_up_prefill(sample_on_device=False, traced=traced)
        driver.generator.warm_up_decode(max_batch_size=4, blocks_per_row=24, sample_on_device=False, traced=traced)
    driver.admit(0, prompt_of(9))
    with pytest.raises(RuleBroken) as caught:
        driver.prefill([0])
    assert caught.value.rule is Rule.UNSEEN_SHAPE
    assert driver.generator.prefill(driver.prefill_inputs([0], sampling=None)).read().logits is not None
    driver.close()


def test_the_host_may_reuse_its_buffers_at_once(folder: Path) -> None:
    texts = []
    for spoil in (False, True):
        driver = MeshDriver(folder)
        driver.admit(0, prompt_of(9, 1))
        inputs = driver.prefill_inputs([0])
        # The queue stands still until the host has had its way with the buffers.
        gate = threading.Event()
        driver.mesh.submit(gate.wait)
        readback = driver.generator.prefill(inputs)
        if spoil:
            inputs.tokens.fill_(3)
            inputs.page_table.fill_(9)
        gate.set()
        tokens = readback.read().tokens
        assert tokens is not None
        texts.append(int(tokens[0]))
        driver.close()
    assert texts[0] == texts[1]


def test_a_missed_reload_of_one_row_does_not_touch_the_other_rows_text(folder: Path) -> None:
    """After a broken step the device goes on: rows that were right stay right."""
    driver = decoding(MeshDriver(folder))
    with pytest.raises(RuleBroken):
        driver.decode([0], KEEP)
    driver.steady([0, 2], 4)
    twin = decoding(MeshDriver(folder))
    twin.steady([0, 2], 4)
    assert [row.tokens for row in driver.rows.values()] == [row.tokens for row in twin.rows.values()]
    driver.close()
    twin.close()


def test_lanes_have_pools_of_their_own(folder: Path) -> None:
    """The same block ids in two lanes are two blocks."""
    driver = MeshDriver(folder, lanes=4, rows_per_lane=1)
    alone = MeshDriver(folder, lanes=4, rows_per_lane=1)
    for slot in range(4):
        driver.admit(slot, prompt_of(12, slot))
    driver.prefill([0, 1, 2, 3])
    assert driver.rows[0].blocks == driver.rows[3].blocks
    driver.steady([0, 1, 2, 3], 6)
    alone.admit(2, prompt_of(12, 2))
    alone.prefill([2])
    alone.steady([2], 6)
    assert driver.rows[2].tokens == alone.rows[2].tokens
    driver.close()
    alone.close()


def test_the_legacy_form_keeps_its_tokens_until_the_batch_is_reset(folder: Path) -> None:
    driver = MeshDriver(folder, model_class=EmulatedLegacyForCausalLM)
    decoding(driver)
    inputs = driver.decode_inputs([0, 2], KEEP)
    # What the host sends without a reset is a step old and must not count.
    stale = attrs.evolve(inputs, tokens=edited(inputs.tokens, (0, 0), driver.rows[0].tokens[-2]))
    first = driver.generator.decode(stale).read().tokens
    twin = decoding(MeshDriver(folder))
    second = twin.generator.decode(twin.decode_inputs([0, 2], KEEP)).read().tokens
    assert first is not None and second is not None
    assert first.tolist() == second.tolist()
    driver.close()
    twin.close()


def test_a_model_on_another_mesh_is_refused(folder: Path) -> None:
    with pytest.raises(EmulatedModelError, match="given a Other as its mesh"):
        EmulatedForCausalLM.initialize_vllm_model(config("llama"), Other(), 4)  # type: ignore[arg-type]


class Other:
    shape = (1, 1)


def test_seeded_rows_repeat_in_any_batch_mix_and_unseeded_rows_differ(folder: Path) -> None:
    hot = DeviceSampling(temperature=1.5, top_k=32)
    seeded = attrs.evolve(hot, seed=11)
    driver = MeshDriver(folder)
    for slot in range(4):
        driver.admit(slot, prompt_of(9, 1))
    rows = [seeded, hot, hot, seeded]
    driver.prefill([0, 1, 2, 3], sampling=rows)
    for step in range(12):
        driver.decode([0, 1, 2, 3], RELOAD_ALL if step == 0 else driver.grew([0, 1, 2, 3]), sampling=rows)
    other = MeshDriver(folder)
    other.admit(2, prompt_of(9, 1))
    other.prefill([2], sampling=[seeded], chunk=9)
    for step in range(12):
        reload = RELOAD_ALL if step == 0 else other.grew([2])
        other.decode([2], reload, sampling=other.neutral(r2=seeded))
    driver.close()
    other.close()
    texts = [driver.rows[slot].tokens for slot in range(4)]
    assert texts[0] == texts[3] == other.rows[2].tokens
    assert texts[1] != texts[2]
    assert np.unique(texts[1]).size > 4
