from __future__ import annotations

from typing import Any

import pytest
import torch

from stepshape.adapters.emulator.mesh.latency import NO_LATENCY, LatencyModel
from stepshape.adapters.emulator.mesh.null_model import (
    TOKEN,
    NullForCausalLM,
    NullMesh,
    NullMeshError,
    NullPlainForCausalLM,
)
from stepshape.adapters.ttnn.model_contract import ContractGenerator
from stepshape.ports.capabilities import read_capabilities
from stepshape.ports.generator import DecodeInputs, KVCacheLayer, PrefillInputs
from stepshape.ports.sampling import DeviceSampling
from stepshape.ports.step import NO_RELOAD


class Clock:
    """Time that passes only while somebody sleeps, or when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def generator(latency: LatencyModel = NO_LATENCY, clock: Clock | None = None) -> tuple[ContractGenerator, NullMesh]:
    ticking = clock or Clock()
    mesh = NullMesh((8, 4), latency=latency, clock=ticking, sleep=ticking.sleep)
    model = NullForCausalLM(mesh=mesh, capacity=8, vocab_size=50)
    return ContractGenerator(model, mesh, read_capabilities(model.model_capabilities, "Null")), mesh


def decode_inputs(**changes: Any) -> DecodeInputs[torch.Tensor]:
    values: dict[str, Any] = {
        "tokens": torch.zeros((8, 1), dtype=torch.int32),
        "positions": torch.zeros(8, dtype=torch.int32),
        "page_table": torch.zeros((8, 4), dtype=torch.int32),
        "layer_page_tables": None,
        "sampling": [DeviceSampling()] * 8,
        "logits_rows": None,
        "reload": NO_RELOAD,
    }
    return DecodeInputs(**{**values, **changes})


def prefill_inputs(**changes: Any) -> PrefillInputs[torch.Tensor]:
    values: dict[str, Any] = {
        "tokens": torch.zeros((2, 9), dtype=torch.int32),
        "page_table": torch.zeros((2, 4), dtype=torch.int32),
        "layer_page_tables": None,
        "starts": [0, 4],
        "ends": [9, 8],
        "slots": [1, 5],
        "sampling": [DeviceSampling()] * 2,
        "logits_rows": None,
    }
    return PrefillInputs(**{**values, **changes})


def test_it_answers_in_every_form_of_the_contract() -> None:
    driver, mesh = generator()
    driver.allocate_kv_cache([KVCacheLayer(shape=(4, 1, 16, 8), dtype="bfloat16", tensor=0)])
    driver.warm_up_prefill(sample_on_device=True, traced=True)
    driver.warm_up_decode(max_batch_size=8, blocks_per_row=4, sample_on_device=True, traced=True)
    tokens = driver.prefill(prefill_inputs()).read()
    assert tokens.tokens is not None and tokens.tokens.tolist() == [TOKEN] * 2 and tokens.logits is None
    both = driver.decode(decode_inputs(logits_rows=[1, 6])).read()
    assert both.tokens is not None and both.logits is not None
    assert both.tokens.tolist() == [TOKEN] * 8 and both.logits.shape == (2, 50)
    logits = driver.decode(decode_inputs(sampling=None)).read().logits
    assert logits is not None and logits.shape == (8, 50)
    some = driver.decode(decode_inputs(sampling=None, logits_rows=[3])).read().logits
    assert some is not None and some.shape == (1, 50)
    assert (mesh.prefill_steps, mesh.decode_steps) == (1, 3)


def test_a_timed_step_ends_after_the_one_before() -> None:
    clock = Clock()
    driver, mesh = generator(LatencyModel(prefill_ms=30, decode_ms=10), clock)
    first, second = driver.prefill(prefill_inputs()), driver.decode(decode_inputs())
    assert not first.done()
    second.read()
    assert clock.now == pytest.approx(100.04)
    assert first.done()
    # The device stood still for 60 ms; the next step begins when it is submitted.
    clock.now += 0.06
    driver.decode(decode_inputs()).read()
    assert clock.now == pytest.approx(100.11)
    assert mesh.busy_seconds == pytest.approx(0.05)
    assert mesh.began == 100.0 and mesh.ended == pytest.approx(100.11)
    mesh.restart_clock()
    assert (mesh.busy_seconds, mesh.decode_steps) == (0.0, 0)


def test_lanes_are_the_divisors_of_the_columns() -> None:
    assert NullForCausalLM.lane_counts_for((8, 4)) == (1, 2, 4)
    assert NullForCausalLM.lane_counts_for((4, 6)) == (1, 2, 3, 6)
    assert NullPlainForCausalLM.lane_counts_for((8, 4)) == ()


def test_its_pool_holds_every_row_at_full_length() -> None:
    assert NullForCausalLM.get_max_tokens_all_users(max_model_len=4096, max_num_seqs=64) == 64 * 4096


def test_a_mesh_without_chips_is_refused() -> None:
    with pytest.raises(NullMeshError, match="0x4 mesh has no chips"):
        NullMesh((0, 4))
    with pytest.raises(TypeError, match="initialize_vllm_model"):
        NullForCausalLM(vllm_config=object(), prefix="model")
