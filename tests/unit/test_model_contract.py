"""What the driver of the generator contract sends, drops and makes of the answer, on a model that writes it down."""
from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from stepshape.adapters.emulator.mesh.device import EmulatedMesh, open_emulated_mesh
from stepshape.adapters.ttnn.model_contract import ContractGenerator
from stepshape.adapters.ttnn.model_members import DECODE, PREFILL, RELOADS, ModelContractError
from stepshape.adapters.ttnn.readback import DeferredReadback
from stepshape.adapters.ttnn.sampling_wire import TTSamplingParams, to_wire
from stepshape.ports.capabilities import ModelCapabilities
from stepshape.ports.generator import DecodeInputs, HostResult, KVCacheLayer, PrefillInputs
from stepshape.ports.sampling import DeviceSampling
from stepshape.ports.step import NO_RELOAD, ReloadCommands

ASYNC = ModelCapabilities(supports_sample_on_device=True, supports_async_decode=True, supports_tokens_and_logits=True)
SYNC = ModelCapabilities(supports_sample_on_device=True)


class Recording:
    """A tt-metal-style model of 4 rows and 6 words that answers on the host."""

    decode_input_update_contract = 1

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def allocate_kv_cache(self, shape: Any, dtype: Any, num_layers: int) -> str:
        self.calls.append(("allocate", {"shape": shape, "dtype": dtype, "num_layers": num_layers}))
        return "cache"

    def prefill_forward(self, **kwargs: Any) -> Any:
        self.calls.append(("prefill", kwargs))
        rows = len(kwargs["tokens"])
        return torch.arange(rows)[:, None] if "sampling_params" in kwargs else torch.rand(rows, 3, 6)

    def decode_forward(self, **kwargs: Any) -> Any:
        self.calls.append(("decode", kwargs))
        return torch.arange(4)[:, None] if "sampling_params" in kwargs else torch.rand(4, 1, 6)

    def read_decode_output(self, out: Any, async_read: bool) -> Any:
        return out, []

    def process_decode_output_host(self, out: Any, is_tokens: bool) -> Any:
        return out

    @property
    def last(self) -> dict[str, Any]:
        return self.calls[-1][1]


class Legacy(Recording):
    decode_input_update_contract = 0


class PerLayer(Recording):
    def allocate_kv_cache_per_layer(self, per_layer_specs: Any) -> str:
        self.calls.append(("allocate_per_layer", {"specs": per_layer_specs}))
        return "cache"


@pytest.fixture
def mesh() -> Any:
    opened = open_emulated_mesh((1, 1))
    yield opened
    opened.close()


def decode_inputs(**changes: Any) -> DecodeInputs[torch.Tensor]:
    values: dict[str, Any] = {
        "tokens": torch.zeros((4, 1), dtype=torch.int32),
        "positions": torch.zeros(4, dtype=torch.int32),
        "page_table": torch.zeros((4, 2), dtype=torch.int32),
        "layer_page_tables": None,
        "sampling": [DeviceSampling()] * 4,
        "logits_rows": None,
        "reload": NO_RELOAD,
    }
    return DecodeInputs(**{**values, **changes})


def prefill_inputs(**changes: Any) -> PrefillInputs[torch.Tensor]:
    values: dict[str, Any] = {
        "tokens": torch.zeros((2, 9), dtype=torch.int32),
        "page_table": torch.zeros((2, 2), dtype=torch.int32),
        "layer_page_tables": None,
        "starts": [0, 4],
        "ends": [9, 8],
        "slots": (3, 1),
        "sampling": None,
        "logits_rows": None,
    }
    return PrefillInputs(**{**values, **changes})


def test_a_prefill_is_sent_by_the_names_of_the_contract(mesh: EmulatedMesh) -> None:
    model = Recording()
    driver = ContractGenerator(model, mesh, SYNC, trace_prefill=False)
    driver.allocate_kv_cache([KVCacheLayer(shape=(9, 1, 16, 8), dtype="bfloat16", tensor=i) for i in range(2)])
    assert model.last == {"shape": (9, 1, 16, 8), "dtype": torch.bfloat16, "num_layers": 2}
    inputs = prefill_inputs()
    result = driver.prefill(inputs)
    assert result.done()
    logits = result.read().logits
    assert logits is not None and logits.shape == (2, 6)
    sent = model.last
    assert sorted(sent) == [
        "empty_slots", "enable_trace", "kv_cache", "page_table", "prompt_lens", "start_pos", "tokens",
    ]  # fmt: skip
    assert sent["tokens"] is inputs.tokens and sent["page_table"] is inputs.page_table
    assert sent["kv_cache"] == "cache" and sent["enable_trace"] is False and sent["empty_slots"] == [3, 1]
    assert sent["prompt_lens"].dtype == np.int64 and sent["prompt_lens"].tolist() == [9, 8]
    assert sent["start_pos"].tolist() == [0, 4]


def test_what_is_sent_is_what_members_are_checked_for_at_load(mesh: EmulatedMesh) -> None:
    """Without sampling, where nothing is added."""
    for model, words in ((Recording(), (*DECODE, *RELOADS)), (Legacy(), DECODE)):
        driver = ContractGenerator(model, mesh, SYNC)
        driver.decode(decode_inputs(sampling=None)).read()
        assert sorted(model.last) == sorted(words)
        driver.prefill(prefill_inputs()).read()
        assert sorted(model.last) == sorted(PREFILL)


def test_layers_of_several_shapes_need_the_per_layer_form(mesh: EmulatedMesh) -> None:
    layers = [KVCacheLayer(shape=(9, 1, 16, size), dtype="float32", tensor=size) for size in (8, 4)]
    model = PerLayer()
    ContractGenerator(model, mesh, SYNC).allocate_kv_cache(layers)
    assert model.last["specs"] == [((9, 1, 16, 8), torch.float32, 8), ((9, 1, 16, 4), torch.float32, 4)]
    with pytest.raises(ModelContractError, match="give the class allocate_kv_cache_per_layer"):
        ContractGenerator(Recording(), mesh, SYNC).allocate_kv_cache(layers)
    with pytest.raises(ModelContractError, match="'wide' is not a torch dtype"):
        ContractGenerator(model, mesh, SYNC).allocate_kv_cache(
            [KVCacheLayer(shape=(9, 1, 16, 8), dtype="wide", tensor=0)]
        )


def test_a_steady_decode_sends_the_same_objects_and_no_reload(mesh: EmulatedMesh) -> None:
    model = Recording()
    driver = ContractGenerator(model, mesh, ASYNC)
    first = ReloadCommands(inputs=True, sampling_params=True, reset_sampling_state=True)
    driver.decode(decode_inputs(reload=first))
    sent = model.last
    assert (sent["reload_inputs"], sent["reload_sampling_params"], sent["reset_sampling_state"]) == (True, True, True)
    assert sent["read_from_device"] is False and sent["reload_page_table"] is False
    inputs = decode_inputs()
    driver.decode(inputs)
    steady = model.last
    assert steady["sampling_params"] is sent["sampling_params"]
    assert steady["tokens"] is inputs.tokens and steady["page_table"] is inputs.page_table
    assert not any(steady[name] for name in steady if name.startswith("re") and name != "read_from_device")
    assert driver.counters() == {
        "prefill_steps": 0,
        "decode_steps": 2,
        "reload_inputs": 1,
        "reload_page_table": 0,
        "reload_sampling_params": 1,
    }


def test_a_reload_of_sampling_waits_for_a_step_that_samples(mesh: EmulatedMesh) -> None:
    model = Recording()
    driver = ContractGenerator(model, mesh, ASYNC)
    driver.decode(decode_inputs(reload=ReloadCommands(inputs=True, sampling_params=True)))
    changed = [DeviceSampling(temperature=0.5, top_k=4, seed=3)] * 4
    driver.decode(decode_inputs(sampling=None, reload=ReloadCommands(inputs=True, sampling_params=True)))
    assert not model.last["reload_sampling_params"]
    assert "sampling_params" not in model.last
    driver.decode(decode_inputs(sampling=changed, reload=ReloadCommands(inputs=True)))
    assert model.last["reload_sampling_params"] is True
    assert model.last["sampling_params"] == to_wire(changed)


def test_a_rejected_step_still_owes_its_reload(mesh: EmulatedMesh) -> None:
    class Refuses(Recording):
        def __init__(self) -> None:
            super().__init__()
            self.refuse = False

        def decode_forward(self, **kwargs: Any) -> Any:
            if self.refuse:
                raise RuntimeError("busy")
            return super().decode_forward(**kwargs)

    model = Refuses()
    driver = ContractGenerator(model, mesh, ASYNC)
    driver.decode(decode_inputs(sampling=None, reload=ReloadCommands(inputs=True, sampling_params=True)))
    model.refuse = True
    with pytest.raises(RuntimeError, match="busy"):
        driver.decode(decode_inputs())
    model.refuse = False
    driver.decode(decode_inputs())
    assert model.last["reload_sampling_params"] is True


def test_the_legacy_form_gets_reset_batch_and_one_warning(mesh: EmulatedMesh) -> None:
    model = Legacy()
    with capture_logs() as logs:
        driver = ContractGenerator(model, mesh, ASYNC)
        driver.decode(decode_inputs(reload=ReloadCommands(inputs=True, sampling_params=True)))
        assert model.last["reset_batch"]
        driver.decode(decode_inputs(reload=ReloadCommands(page_table=True)))
        assert not model.last["reset_batch"]
        driver.decode(decode_inputs(sampling=None, reload=ReloadCommands(inputs=True)))
    assert not [name for name in model.last if name.startswith("re") and name != "read_from_device"]
    assert [line["event"] for line in logs] == ["legacy_decode_contract"]


def test_rows_are_picked_on_the_host_where_the_model_cannot(mesh: EmulatedMesh) -> None:
    model = Recording()
    driver = ContractGenerator(model, mesh, SYNC)
    torch.manual_seed(0)
    logits = driver.decode(decode_inputs(sampling=None, logits_rows=[2, 0], reload=ReloadCommands(inputs=True))).read()
    assert "logits_rows" not in model.last
    torch.manual_seed(0)
    assert logits.logits is not None
    assert torch.equal(logits.logits, torch.rand(4, 1, 6)[[2, 0], 0])
    with pytest.raises(ModelContractError, match="tokens or logits, not both"):
        driver.decode(decode_inputs(logits_rows=[2]))
    ContractGenerator(model, mesh, ASYNC).decode(decode_inputs(logits_rows=[2]))
    assert model.last["logits_rows"] == [2]


def test_tokens_come_back_as_one_int32_a_row(mesh: EmulatedMesh) -> None:
    tokens = ContractGenerator(Recording(), mesh, SYNC).decode(decode_inputs()).read().tokens
    assert tokens is not None
    assert tokens.dtype is torch.int32 and tokens.tolist() == [0, 1, 2, 3]

    class Short(Recording):
        def decode_forward(self, **kwargs: Any) -> Any:
            return torch.zeros(3, dtype=torch.int32)

    with pytest.raises(ModelContractError, match="4 rows came back with 3 tokens"):
        ContractGenerator(Short(), mesh, SYNC).decode(decode_inputs())


def test_top_k_of_one_closes_the_nucleus_too() -> None:
    rows = [
        DeviceSampling(temperature=0.7, top_k=1, top_p=0.9),
        DeviceSampling(),
        DeviceSampling(temperature=1, top_k=5),
    ]
    wire = to_wire(rows)
    assert wire.top_p == [0.0, 1.0, 1.0]
    assert wire == TTSamplingParams(
        temperature=[0.7, 0.0, 1],
        top_k=[1, 1, 5],
        top_p=[0.0, 1.0, 1.0],
        presence_penalty=[0.0] * 3,
        frequency_penalty=[0.0] * 3,
        repetition_penalty=[1.0] * 3,
        seed=[None] * 3,
        num_logprobs=[-2] * 3,
        enable_log_probs=[False] * 3,
    )


class NoDecode(Recording):
    decode_forward = None  # type: ignore[assignment]


class NoAllocation(Recording):
    allocate_kv_cache = None  # type: ignore[assignment]


class NoReadback(Recording):
    read_decode_output = None  # type: ignore[assignment]


class WrongKind(Recording):
    prefill_forward = 3  # type: ignore[assignment]


class WrongVersion(Recording):
    decode_input_update_contract = 2


class OldCall(Recording):
    """Declares reload commands and takes ``reset_batch``."""

    def decode_forward(  # type: ignore[override]
        self, tokens: Any, start_pos: Any, page_table: Any, kv_cache: Any, enable_trace: bool, read_from_device: bool,
        reset_batch: bool = False, sampling_params: Any = None,
    ) -> Any:
        return None


class OddAllocation(Recording):
    def allocate_kv_cache(self, shape: Any) -> str:  # type: ignore[override]
        return "cache"


class FloatVersion(Recording):
    decode_input_update_contract = 1.0  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (OldCall, r"OldCall.decode_forward cannot be called as the contract says \(.*unexpected .*'reload_inputs'"),
        (OddAllocation, r"OddAllocation.allocate_kv_cache cannot be called as the contract says \(too many positional"),
        (FloatVersion, r"decode_input_update_contract is 1\.0; declare 1"),
        (NoDecode, "NoDecode has no decode_forward, which every model needs"),
        (NoAllocation, "NoAllocation has no allocate_kv_cache, nor allocate_kv_cache_per_layer"),
        (NoReadback, "NoReadback has no read_decode_output, which supports_async_decode needs"),
        (WrongKind, "WrongKind.prefill_forward is a int, not a method"),
        (WrongVersion, "decode_input_update_contract is 2; declare 1"),
    ],
)
def test_a_member_that_is_missing_or_mistyped_is_named(mesh: EmulatedMesh, model: Any, words: str) -> None:
    with pytest.raises(ModelContractError, match=words):
        ContractGenerator(model(), mesh, ASYNC)


@pytest.mark.parametrize(
    ("answer", "sampled", "words"),
    [
        (torch.full((4,), 3.7), True, "came back with torch.float32 for its tokens; return int32"),
        ((None, None), True, "came back with None for its tokens"),
        (torch.zeros(6), False, r"logits came back as \[6\]; return"),
        (torch.zeros(1, 1, 6), False, "1 rows of logits where 4 were asked for"),
    ],
)
def test_an_answer_of_another_shape_is_named(mesh: EmulatedMesh, answer: Any, sampled: bool, words: str) -> None:
    class Answering(Recording):
        def decode_forward(self, **kwargs: Any) -> Any:
            return answer

    generator = ContractGenerator(Answering(), mesh, SYNC)
    with pytest.raises(ModelContractError, match=words):
        generator.decode(decode_inputs(sampling=[DeviceSampling()] * 4 if sampled else None)).read()


# -- readbacks


def test_two_threads_finish_a_readback_once(mesh: EmulatedMesh) -> None:
    gate, finished = threading.Event(), []
    event = mesh.submit(gate.wait)

    def finish() -> HostResult[torch.Tensor]:
        finished.append(1)
        return HostResult(tokens=torch.ones(2, dtype=torch.int32), logits=None)

    readback = DeferredReadback(mesh, [event], finish)
    seen: list[Any] = []
    readers = [threading.Thread(target=lambda: seen.append(readback.read())) for _ in range(2)]
    for reader in readers:
        reader.start()
    assert not readback.done()
    gate.set()
    for reader in readers:
        reader.join()
    assert len(finished) == 1
    assert seen[0] is seen[1] is readback.read()
    assert readback.done()


def test_a_readback_raises_what_the_device_raised_every_time(mesh: EmulatedMesh) -> None:
    def fails() -> None:
        raise ValueError("the step broke")

    readback = DeferredReadback(mesh, [mesh.submit(fails)], lambda: HostResult(tokens=None, logits=None))
    for _ in range(2):
        with pytest.raises(ValueError, match="the step broke"):
            readback.read()
    assert readback.done()
