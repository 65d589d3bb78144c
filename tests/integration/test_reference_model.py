"""The reference model in ttnn, through the contract's driver, on the double of ttnn: every token is the twin's."""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from stepshape.adapters.ttnn.model_contract import ContractGenerator
from stepshape.adapters.ttnn.reference_run import Generated, Layout, generate, page_table, prompts_for, start
from stepshape.adapters.ttnn.reference_weights import VOCAB, ReferenceWeights
from stepshape.ports.capabilities import read_capabilities
from stepshape.ports.generator import DecodeInputs, PrefillInputs
from stepshape.ports.sampling import DeviceSampling
from stepshape.ports.step import NO_RELOAD, ReloadCommands
from tests.double import plug_in

CONFIG = types.SimpleNamespace(vocab_size=VOCAB, stepshape_seed=7)
WEIGHTS = ReferenceWeights(7)
LAYOUT = Layout(lanes=1, rows_per_lane=3, max_len=160)
NEW = 36
"""crosses a block"""

COMPUTE, IO = "0", "1"


class Run:
    def __init__(self, machine: Any, model: Any, generator: ContractGenerator, layout: Layout) -> None:
        self.machine, self.model, self.generator, self.layout = machine, model, generator, layout

    def generate(self, new_tokens: int = NEW, **how: Any) -> Generated:
        prompts = prompts_for(self.layout, new_tokens)
        self.machine.journal.clear()
        return generate(
            self.generator, self.layout, prompts, new_tokens, clock=lambda: 0.0, **{"overlapped": True, **how}
        )


@contextmanager
def reference(layout: Layout = LAYOUT, *, traced: bool = True, **machine: Any) -> Iterator[Run]:
    """The model on a mesh of a Galaxy: warmed up, closed at the end."""
    plugged = plug_in(**{"cluster": "GALAXY", "chips": 32, **machine})
    from stepshape.adapters.ttnn.mesh import MeshSettings, open_mesh
    from stepshape.adapters.ttnn.reference_model import ReferenceForCausalLM

    mesh = open_mesh(MeshSettings(shape=(2, 4), trace_region_size=1_000_000, num_command_queues=2))
    try:
        model = ReferenceForCausalLM.initialize_vllm_model(
            CONFIG, mesh.handle, layout.capacity, max_seq_len=layout.max_len, tt_data_parallel=layout.lanes
        )
        generator = ContractGenerator(
            model,
            mesh,
            read_capabilities(model.model_capabilities, "ReferenceForCausalLM"),
            trace_prefill=traced,
            trace_decode=traced,
        )
        start(generator, layout, traced=traced)
        yield Run(plugged, model, generator, layout)
    finally:
        mesh.close()


def expected(layout: Layout, new_tokens: int) -> list[list[int]]:
    return [WEIGHTS.continuation(prompt, new_tokens) for prompt in prompts_for(layout, new_tokens)]


@pytest.mark.parametrize("eager", [(), (0,), (1,), (0, 1)])
def test_the_text_is_the_twins_whichever_queue_is_ahead(eager: tuple[int, ...]) -> None:
    with reference(eager=eager) as run:
        assert run.generate().tokens == expected(LAYOUT, NEW)


@pytest.mark.parametrize("eager", [(0,), (1,)])
def test_it_is_the_events_that_keep_the_order(eager: tuple[int, ...]) -> None:
    def text() -> Any:
        with reference(eager=eager, ignores_waits=True) as run:
            return run.generate().tokens

    try:
        assert text() != expected(LAYOUT, NEW)
    except RuntimeError as error:
        assert "before the event" in str(error) or "argmax" in str(error)  # noqa: PT017


@pytest.mark.parametrize("how", [{"overlapped": False}, {"overlapped": False, "on_device": False}])
@pytest.mark.parametrize("traced", [True, False])
def test_sync_async_host_and_device_say_the_same(how: dict[str, Any], traced: bool) -> None:
    with reference(traced=traced) as run:
        assert run.generate(12, **how).tokens == expected(LAYOUT, 12)


def test_lanes_are_submeshes_with_a_buffer_and_a_trace_each() -> None:
    layout = Layout(lanes=4, rows_per_lane=2, max_len=160)
    with reference(layout) as run:
        captured = Counter(line.split()[0] for line in run.machine.journal)
        assert run.generate().tokens == expected(layout, NEW)
        journal = run.machine.journal
    assert captured["begin_trace_capture"] == 2 * 4
    assert sum(line == f"execute_trace {COMPUTE}" for line in journal) == 4 * (NEW - 1) + _pieces(layout)
    assert journal[-5:] == ["close_mesh_device 2x1"] * 4 + ["close_mesh_device 2x4"] or (
        journal[-6:-1] == ["close_mesh_device 2x1"] * 4 + ["close_mesh_device 2x4"]
    )


def _pieces(layout: Layout) -> int:
    """Prefill runs: a tile of positions each."""
    return sum(-(-len(prompt) // 32) for prompt in prompts_for(layout, NEW))


def test_a_steady_decode_copies_nothing_and_replays_one_trace() -> None:
    with reference() as run:
        run.generate()
        journal = run.machine.journal
        # The last steps, which cross no block.
        last = journal[max(i for i, line in enumerate(journal) if line.startswith("copy_host")) + 1 :]
    kinds = {line for line in last if line.split()[0] in ("execute_trace", "from_device", "wait_for_event")}
    waits = {f"wait_for_event {IO}", f"wait_for_event {COMPUTE}"}
    assert kinds == {f"execute_trace {COMPUTE}", f"from_device {IO}", *waits}
    assert {line.split()[1] for line in journal if line.startswith("copy_host")} == {IO}
    assert not [line for line in last if line in ("embedding", "matmul", "add", "argmax", "from_torch")]


def test_slow_dispatch_has_no_trace_and_the_same_text() -> None:
    with reference(traced=False, slow_dispatch=True) as run:
        assert run.generate(8).tokens == expected(LAYOUT, 8)


def prefill(run: Run, prompts: list[list[int]], tables: torch.Tensor, **changes: Any) -> torch.Tensor:
    tokens = torch.zeros((len(prompts), max(map(len, prompts))), dtype=torch.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt, dtype=torch.int32)
    values: dict[str, Any] = {
        "tokens": tokens,
        "page_table": tables[: len(prompts)],
        "layer_page_tables": None,
        "starts": [0] * len(prompts),
        "ends": [len(prompt) for prompt in prompts],
        "slots": list(range(len(prompts))),
        "sampling": None,
        "logits_rows": None,
    }
    logits = run.generator.prefill(PrefillInputs(**{**values, **changes})).read().logits
    assert logits is not None
    return logits


def decode_inputs(run: Run, tables: torch.Tensor, tokens: list[int], positions: list[int], **changes: Any) -> Any:
    values: dict[str, Any] = {
        "tokens": torch.tensor(tokens, dtype=torch.int32)[:, None],
        "positions": torch.tensor(positions, dtype=torch.int32),
        "page_table": tables,
        "layer_page_tables": None,
        "sampling": None,
        "logits_rows": None,
        "reload": ReloadCommands(inputs=True),
    }
    return DecodeInputs(**{**values, **changes})


def test_logits_of_a_prompt_are_the_twins_in_chunks_and_from_a_shared_prefix() -> None:
    with reference() as run:
        tables = page_table(run.layout)
        prompt = prompts_for(Layout(lanes=1, rows_per_lane=9, max_len=160), 20)[8]
        assert len(prompt) > 96
        whole = prefill(run, [prompt], tables)
        assert whole[0].tolist() == WEIGHTS.logits(prompt)
        # The first block again as another request's prefix, the rest computed anew, in two chunks.
        shared = tables.clone()
        shared[1, 0] = tables[0, 0]
        other = [*prompt[:32], *reversed(prompt[32:])]
        prefill(run, [other[:70]], shared[1:], starts=[32], ends=[70], slots=[1])
        last = prefill(run, [other], shared[1:], starts=[70], ends=[len(other)], slots=[1])
        assert last[0].tolist() == WEIGHTS.logits(other)


def test_a_wrong_page_changes_what_it_says() -> None:
    with reference() as run:
        tables = page_table(run.layout)
        prompts = prompts_for(Layout(lanes=1, rows_per_lane=9, max_len=160), 20)[6:9]
        prefill(run, prompts, tables)
        tokens, positions = [1, 2, 3], [len(prompt) for prompt in prompts]
        right = run.generator.decode(decode_inputs(run, tables, tokens, positions)).read().logits
        assert right is not None
        wanted = [WEIGHTS.logits([*prompt, token]) for prompt, token in zip(prompts, tokens, strict=True)]
        assert right.tolist() == wanted
        swapped = tables[[1, 0, 2]]
        wrong = run.generator.decode(decode_inputs(run, swapped, tokens, positions)).read().logits
        assert wrong is not None
        assert wrong[0].tolist() != wanted[0]
        assert wrong[1].tolist() != wanted[1]
        assert wrong[2].tolist() == wanted[2]


def test_tokens_and_logits_come_in_one_step_and_inactive_rows_touch_nothing() -> None:
    with reference() as run:
        tables = page_table(run.layout)
        prompts = prompts_for(run.layout, NEW)[:2]
        prefill(run, prompts, tables)
        sampling = [DeviceSampling()] * 3
        reload = ReloadCommands(inputs=True, sampling_params=True, reset_sampling_state=True)
        idle = tables.clone()
        idle[1] = 0
        inputs = decode_inputs(
            run, idle, [5, 0, 0], [len(prompts[0]), -1, -1], sampling=sampling, logits_rows=[0], reload=reload
        )
        result = run.generator.decode(inputs).read()
        text = [*prompts[0], 5]
        assert result.tokens is not None
        assert result.logits is not None
        assert result.tokens[0] == WEIGHTS.continuation(text, 1)[0]
        assert result.logits.tolist() == [WEIGHTS.logits(text)]
        # Row 1 goes on from its prompt as if nothing had happened meanwhile.
        later = decode_inputs(run, tables, [0, 9, 0], [-1, len(prompts[1]), -1], logits_rows=[1])
        logits = run.generator.decode(later).read().logits
        assert logits is not None
        assert logits.tolist() == [WEIGHTS.logits([*prompts[1], 9])]


def test_what_the_contract_does_not_allow_is_refused() -> None:
    with reference(eager=()) as run:
        tables = page_table(run.layout)
        with pytest.raises(ValueError, match="nothing is resident yet"):
            run.generator.decode(decode_inputs(run, tables, [1] * 3, [0] * 3, reload=NO_RELOAD))
        warm = [DeviceSampling(temperature=0.8, top_k=5)] * 3
        reload = ReloadCommands(inputs=True, sampling_params=True)
        with pytest.raises(ValueError, match=r"row 0 has temperature 0.8 and top_k 5.*max_device_top_k is 1"):
            run.generator.decode(decode_inputs(run, tables, [1] * 3, [0] * 3, sampling=warm, reload=reload))
        model: Any = run.model
        arguments: dict[str, Any] = {
            "tokens": torch.ones((3, 1), dtype=torch.int32),
            "start_pos": torch.zeros(3, dtype=torch.int32),
            "page_table": tables,
            "kv_cache": None,
            "reload_inputs": True,
            "reload_page_table": False,
            "reload_sampling_params": False,
            "reset_sampling_state": False,
            "enable_trace": True,
            "read_from_device": False,
        }
        first = model.decode_forward(**arguments)
        model.decode_forward(**{**arguments, "reload_inputs": False})
        with pytest.raises(ValueError, match="a later decode has overwritten this step's outputs"):
            model.read_decode_output(first, async_read=True)
        with pytest.raises(ValueError, match="send one of the two commands"):
            model.decode_forward(**{**arguments, "reload_page_table": True})
        handle, events = model.read_decode_output(model.decode_forward(**arguments), async_read=True)
        assert len(events) == 1
        with pytest.raises(RuntimeError, match="read before the event"):
            model.process_decode_output_host(handle, is_tokens=False)


@pytest.mark.parametrize(
    ("lanes", "config", "words"),
    [
        (3, CONFIG, "6 rows on a 2x4 mesh do not make 3 lanes; use a divisor of 4 columns"),
        (1, types.SimpleNamespace(vocab_size=65), "vocab_size 65 and the reference model 64 tokens"),
    ],
)
def test_what_the_model_does_not_have_is_refused(lanes: int, config: Any, words: str) -> None:
    plug_in(cluster="T3K", chips=8)
    from stepshape.adapters.ttnn.mesh import MeshSettings, open_mesh
    from stepshape.adapters.ttnn.reference_model import ReferenceForCausalLM

    mesh = open_mesh(MeshSettings(shape=(2, 4)))
    try:
        with pytest.raises(ValueError, match=words):
            ReferenceForCausalLM.initialize_vllm_model(config, mesh.handle, 6, tt_data_parallel=lanes)
    finally:
        mesh.close()


def test_blocks_are_whole_tiles() -> None:
    with pytest.raises(ValueError, match="block_size 16 is no multiple of 32"), reference(
        Layout(lanes=1, rows_per_lane=1, max_len=64, block_size=16)
    ):
        pass
