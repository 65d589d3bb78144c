"""The emulated mesh gives transformers' own greedy text, whatever the architecture, lanes and chunking."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
import transformers

from stepshape.adapters.emulator.mesh.checkpoint import CheckpointError, UnsupportedArchitectureError, load_model
from stepshape.adapters.emulator.mesh.model import (
    EmulatedForCausalLM,
    EmulatedLegacyForCausalLM,
    EmulatedPlainForCausalLM,
)
from stepshape.adapters.emulator.mesh.rules import Rule, RuleBroken
from stepshape.ports.step import ReloadCommands

from ..mesh_driver import RELOAD_ALL, MeshDriver, prompt_of
from ..tiny_checkpoints import CONFIGS, config, greedy, save

LENGTHS = (1, 7, 8, 33, 61)
NEW = 14


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[str, tuple[Path, list[list[int]]]] = {}

    def get(kind: str) -> tuple[Path, list[list[int]]]:
        if kind not in made:
            folder = save(config(kind), tmp_path_factory.mktemp(kind))
            made[kind] = folder, greedy(folder, [prompt_of(length, length) for length in LENGTHS], NEW)
        return made[kind]

    return get


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("kind", list(CONFIGS))
def test_text_equals_transformers_own(checkpoints: Any, kind: str, lanes: int) -> None:
    folder, expected = checkpoints(kind)
    driver = MeshDriver(folder, lanes=lanes, rows_per_lane=8 // lanes)
    # The first two whole and together, the others in chunks of 11 that meet no block edge.
    slots = [0, 5, 3, 6, 2]
    for slot, length in zip(slots, LENGTHS, strict=True):
        driver.admit(slot, prompt_of(length, length))
    driver.prefill(slots[:2])
    driver.prefill(slots[2:], chunk=11)
    driver.steady(slots, NEW - 1)
    driver.close()
    for slot, length, text in zip(slots, LENGTHS, expected, strict=True):
        assert driver.rows[slot].tokens[length:] == text


def test_a_shared_prefix_is_read_and_not_computed_again(checkpoints: Any) -> None:
    folder, expected = checkpoints("llama")
    driver = MeshDriver(folder, rows_per_lane=4)
    prompt = prompt_of(33, 33)
    first = driver.admit(1, prompt)
    driver.prefill([1])
    driver.admit(2, prompt, shared=first.blocks[:4], computed=32)
    driver.prefill([2])
    driver.steady([1, 2], NEW - 1)
    driver.close()
    assert driver.rows[1].tokens[33:] == expected[3]
    assert driver.rows[2].tokens[33:] == expected[3]


def test_a_prefix_that_another_row_of_the_same_step_computes(checkpoints: Any) -> None:
    folder, expected = checkpoints("llama")
    driver = MeshDriver(folder, rows_per_lane=4)
    prompt = prompt_of(33, 33)
    driver.admit(0, prompt)
    driver.blocks_for(0, 33)
    driver.admit(1, prompt, shared=driver.rows[0].blocks[:4], computed=32)
    driver.prefill([0, 1])
    driver.close()
    assert driver.rows[0].tokens[33] == driver.rows[1].tokens[33] == expected[3][0]


@pytest.mark.parametrize("lanes", [1, 4])
def test_two_steps_in_flight_change_nothing(checkpoints: Any, lanes: int) -> None:
    folder, expected = checkpoints("llama")
    driver = MeshDriver(folder, lanes=lanes, rows_per_lane=8 // lanes)
    for slot, length in zip((0, 2, 4, 6, 7), LENGTHS, strict=True):
        driver.admit(slot, prompt_of(length, length))
    driver.prefill([0, 2, 4, 6, 7])
    driver.overlapped([0, 2, 4, 6, 7], NEW - 1)
    driver.close()
    for slot, length, text in zip((0, 2, 4, 6, 7), LENGTHS, expected, strict=True):
        assert driver.rows[slot].tokens[length:] == text


def test_rows_that_join_leave_and_resume(checkpoints: Any) -> None:
    folder, expected = checkpoints("llama")
    driver = MeshDriver(folder, rows_per_lane=4)
    driver.admit(0, prompt_of(33, 33))
    driver.prefill([0])
    driver.steady([0], 4)
    driver.admit(1, prompt_of(61, 61))
    driver.prefill([1])
    driver.steady([0, 1], 3)
    # Row 0 is preempted: its blocks go back, another request takes its slot and the blocks.
    evicted = driver.rows.pop(0)
    driver.free[0].extend(evicted.blocks)
    driver.admit(0, prompt_of(8, 8))
    driver.prefill([0])
    driver.steady([0, 1], NEW - 4)
    assert driver.rows[1].tokens[61 : 61 + NEW] == expected[4]
    assert driver.rows[0].tokens[8:][:11] == expected[2][:11]
    # It resumes in another slot: prompt and what it had generated are computed again.
    driver.admit(2, evicted.tokens)
    driver.prefill([2], chunk=20)
    driver.steady([2], NEW - 9)
    driver.close()
    assert driver.rows[2].tokens[33:] == expected[3]


def test_window_layers_may_have_a_table_of_their_own_that_forgets(checkpoints: Any) -> None:
    """Two KV groups: the sliding layers' table goes back to the null block where the window has passed."""
    folder, expected = checkpoints("gemma3")
    driver = MeshDriver(folder, rows_per_lane=4)
    window, slot, length = 16, 2, 61
    driver.admit(slot, prompt_of(length, length))
    sliding = list(range(10, 10 + driver.width))

    def tables(start: int, end: int) -> list[torch.Tensor]:
        full = torch.zeros((4, driver.width), dtype=torch.int32)
        full[slot] = driver.table([slot], [end])[0]
        passed = torch.zeros((4, driver.width), dtype=torch.int32)
        for page in range(max(start - window + 1, 0) // 8, -(-end // 8)):
            passed[slot, page] = sliding[page]
        return [passed, passed, full]

    for start, end in ((0, 40), (40, length)):
        driver.blocks_for(slot, end)
        changes: dict[str, Any] = {"starts": [start], "ends": [end], "page_table": driver.table([slot], [end])}
        inputs = driver.prefill_inputs([slot], chunk=end - start, **changes)
        result = driver.generator.prefill(attrs.evolve(inputs, layer_page_tables=tables(start, end))).read()
        driver.rows[slot].computed = end
    assert result.tokens is not None
    driver.rows[slot].tokens.append(int(result.tokens[0]))
    for step in range(NEW - 1):
        position = length + step
        driver.blocks_for(slot, position + 1)
        reload = RELOAD_ALL if step == 0 else ReloadCommands(page_table=True)
        driver.decode([slot], reload, layer_page_tables=tables(position, position + 1))
    driver.close()
    assert driver.rows[slot].tokens[length:] == expected[4]


@pytest.mark.parametrize("sampled", [True, False])
def test_the_legacy_decode_form_gives_the_same_text(checkpoints: Any, sampled: bool) -> None:
    folder, expected = checkpoints("llama")
    driver = MeshDriver(folder, lanes=2, rows_per_lane=2, model_class=EmulatedLegacyForCausalLM)
    driver.admit(1, prompt_of(33, 33))
    driver.prefill([1])
    for step in range(NEW - 1):
        reload = ReloadCommands(inputs=step == 0 or not sampled)
        changes: dict[str, Any] = {} if sampled else {"sampling": None}
        result = driver.generator.decode(driver.decode_inputs([1], reload, **changes)).read()
        if result.tokens is not None:
            token = int(result.tokens[1])
        else:
            assert result.logits is not None
            assert result.logits[[0, 2, 3]].isnan().all()
            token = int(result.logits[1].argmax())
        driver.rows[1].tokens.append(token)
    driver.close()
    assert driver.rows[1].tokens[33:] == expected[3]


def test_tokens_of_some_rows_and_logits_of_others(checkpoints: Any) -> None:
    folder, expected = checkpoints("llama")
    driver = MeshDriver(folder, rows_per_lane=4)
    for slot, length in zip((0, 1, 2), LENGTHS[2:], strict=True):
        driver.admit(slot, prompt_of(length, length))
    inputs = driver.prefill_inputs([0, 1, 2], logits_rows=[1])
    result = driver.generator.prefill(inputs).read()
    assert result.tokens is not None and result.logits is not None
    assert result.logits.shape == (1, 199)
    chosen = [int(result.tokens[0]), int(result.logits[0].argmax()), int(result.tokens[2])]
    assert chosen == [text[0] for text in expected[2:]]
    # What the host samples the device does not: its token there is not one of the vocabulary.
    assert int(result.tokens[1]) >= 199
    for slot, token in enumerate(chosen):
        driver.rows[slot].tokens.append(token)
    for step in range(1, NEW):
        reload = ReloadCommands(inputs=True, sampling_params=step == 1)
        result = driver.generator.decode(driver.decode_inputs([0, 1, 2], reload, logits_rows=[2, 0])).read()
        assert result.tokens is not None and result.logits is not None
        host = result.logits.argmax(-1).tolist()
        for slot, token in ((0, host[1]), (1, int(result.tokens[1])), (2, host[0])):
            driver.rows[slot].tokens.append(token)
    driver.close()
    for slot, length, text in zip((0, 1, 2), LENGTHS[2:], expected[2:], strict=True):
        assert driver.rows[slot].tokens[length:] == text


def test_bfloat16_weights_run_in_a_bfloat16_cache(tmp_path: Path) -> None:
    hf_config = config("llama")
    hf_config.dtype = torch.bfloat16
    folder = save(hf_config, tmp_path)
    loaded = load_model(transformers.AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    assert loaded.dtype is torch.bfloat16
    assert next(loaded.module.parameters()).dtype is torch.bfloat16


# -- what cannot run


def _mamba() -> Any:
    return transformers.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=8)


def _bloom() -> Any:
    return transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4)


def _lfm2() -> Any:
    return transformers.Lfm2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["conv", "full_attention"],
    )


def _gemma3n() -> Any:
    return transformers.Gemma3nTextConfig(
        vocab_size=64,
        vocab_size_per_layer_input=64,
        hidden_size=32,
        hidden_size_per_layer_input=8,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2,
        laurel_rank=4,
        activation_sparsity_pattern=[0.0] * 4,
    )


@pytest.mark.parametrize(
    ("make", "name", "reason"),
    [
        (_mamba, "MambaForCausalLM", "recurrent state"),
        (_bloom, "BloomForCausalLM", "do not go through transformers' attention interface"),
        (_lfm2, "Lfm2ForCausalLM", "recurrent state of their own"),
        (_gemma3n, "Gemma3nForCausalLM", "share the keys and values of others"),
    ],
)
def test_an_architecture_that_cannot_be_paged_is_refused_by_name(
    make: Any, name: str, reason: str, tmp_path: Path
) -> None:
    folder = save(make(), tmp_path)
    with pytest.raises(UnsupportedArchitectureError, match=rf"^{name} cannot run on the emulated mesh: .*{reason}"):
        load_model(transformers.AutoConfig.from_pretrained(folder))


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    hf_config = config("llama")
    hf_config._name_or_path = str(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint could be read at"):
        load_model(hf_config)


@pytest.mark.parametrize(
    ("model_class", "lanes"), [(EmulatedForCausalLM, 3), (EmulatedPlainForCausalLM, 2), (EmulatedForCausalLM, 8)]
)
def test_a_lane_count_that_does_not_fit_is_refused(checkpoints: Any, model_class: Any, lanes: int) -> None:
    with pytest.raises(RuleBroken) as caught:
        MeshDriver(checkpoints("llama")[0], lanes=lanes, model_class=model_class)
    assert caught.value.rule is Rule.LANES
