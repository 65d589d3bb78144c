"""Drives an emulated model as a serving stack would: lanes, slots, blocks, reload commands. Greedy by default."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from transformers import AutoConfig

from stepshape.adapters.emulator.mesh.device import EmulatedMesh, open_emulated_mesh
from stepshape.adapters.emulator.mesh.model import EmulatedForCausalLM, EmulatedPlainForCausalLM
from stepshape.adapters.ttnn.model_contract import ContractGenerator
from stepshape.ports.capabilities import read_capabilities
from stepshape.ports.generator import DecodeInputs, KVCacheLayer, PrefillInputs, Readback
from stepshape.ports.sampling import DeviceSampling
from stepshape.ports.step import ReloadCommands

GREEDY = DeviceSampling()
RELOAD_ALL = ReloadCommands(inputs=True, sampling_params=True)
KEEP = ReloadCommands()


@attrs.define
class Row:
    """A request in a slot: all its tokens, and how many of them are computed."""

    tokens: list[int]
    blocks: list[int] = attrs.field(factory=list)
    computed: int = 0


class MeshDriver:
    """``lanes`` x ``rows_per_lane`` slots on an emulated 2x4 mesh."""

    def __init__(
        self,
        folder: Path,
        *,
        lanes: int = 1,
        rows_per_lane: int = 4,
        block_size: int = 8,
        num_blocks: int = 64,
        max_seq_len: int = 192,
        model_class: type[EmulatedPlainForCausalLM] = EmulatedForCausalLM,
        warm: bool = True,
        mesh: EmulatedMesh | None = None,
    ) -> None:
        self.mesh = open_emulated_mesh((2, 4), seed=1) if mesh is None else mesh
        self.lanes, self.rows_per_lane, self.block_size = lanes, rows_per_lane, block_size
        self.capacity = lanes * rows_per_lane
        self.width = -(-max_seq_len // block_size)
        config: Any = AutoConfig.from_pretrained(folder)
        self.model = model_class.initialize_vllm_model(
            config, self.mesh, self.capacity, max_seq_len=max_seq_len, tt_data_parallel=lanes
        )
        self.generator = ContractGenerator(
            self.model, self.mesh, read_capabilities(self.model.model_capabilities, model_class.__name__)
        )
        text = config.get_text_config()
        heads = text.num_key_value_heads // min(max(8 // lanes, 1), text.num_key_value_heads)
        self.generator.allocate_kv_cache(
            [
                KVCacheLayer(shape=(num_blocks, heads, block_size, text.head_dim), dtype="float32", tensor=layer)
                for layer in range(text.num_hidden_layers)
            ]
        )
        if warm:
            for traced in (False, True):
                self.generator.warm_up_prefill(sample_on_device=True, traced=traced)
                self.generator.warm_up_decode(
                    max_batch_size=self.capacity, blocks_per_row=self.width, sample_on_device=True, traced=traced
                )
        # Not in order, so that no test passes by luck of block numbers.
        self.free = [list(range(num_blocks - 1, 0, -1)) for _ in range(lanes)]
        self.rows: dict[int, Row] = {}

    def admit(self, slot: int, prompt: Sequence[int], *, shared: Sequence[int] = (), computed: int = 0) -> Row:
        """Place a request; ``shared`` blocks hold its first ``computed`` positions already."""
        self.rows[slot] = Row(list(prompt), list(shared), computed)
        return self.rows[slot]

    def blocks_for(self, slot: int, end: int) -> None:
        row, free = self.rows[slot], self.free[slot // self.rows_per_lane]
        while len(row.blocks) * self.block_size < end:
            row.blocks.append(free.pop())

    def table(self, slots: Sequence[int], ends: Sequence[int]) -> torch.Tensor:
        table = torch.zeros((len(slots), self.width), dtype=torch.int32)
        for index, (slot, end) in enumerate(zip(slots, ends, strict=True)):
            live = self.rows[slot].blocks[: -(-end // self.block_size)]
            table[index, : len(live)] = torch.tensor(live, dtype=torch.int32)
        return table

    def prefill_inputs(self, slots: Sequence[int], *, chunk: int | None = None, **changes: Any) -> PrefillInputs[Any]:
        """The next chunk of each slot's prompt, with blocks allocated."""
        starts = [self.rows[slot].computed for slot in slots]
        ends = [len(self.rows[slot].tokens) for slot in slots]
        if chunk is not None:
            ends = [min(end, start + chunk) for start, end in zip(starts, ends, strict=True)]
        for slot, end in zip(slots, ends, strict=True):
            self.blocks_for(slot, end)
        tokens = torch.zeros((len(slots), max(ends)), dtype=torch.int32)
        for index, (slot, end) in enumerate(zip(slots, ends, strict=True)):
            tokens[index, :end] = torch.tensor(self.rows[slot].tokens[:end], dtype=torch.int32)
        inputs: PrefillInputs[Any] = PrefillInputs(
            tokens=tokens,
            page_table=self.table(slots, ends),
            layer_page_tables=None,
            starts=starts,
            ends=ends,
            slots=list(slots),
            sampling=[GREEDY] * len(slots),
            logits_rows=None,
        )
        return attrs.evolve(inputs, **changes)

    def prefill(self, slots: Sequence[int], *, chunk: int | None = None, **changes: Any) -> None:
        """Run prompts to their end and append the first sampled token."""
        waiting = list(slots)
        while waiting:
            inputs = self.prefill_inputs(waiting, chunk=chunk, **changes)
            result = self.generator.prefill(inputs).read()
            assert result.tokens is not None
            for index, slot in enumerate(inputs.slots):
                row = self.rows[slot]
                row.computed = inputs.ends[index]
                if row.computed == len(row.tokens):
                    row.tokens.append(int(result.tokens[index]))
                    waiting.remove(slot)

    def decode_inputs(
        self, slots: Sequence[int], reload: ReloadCommands, *, ahead: int = 0, **changes: Any
    ) -> DecodeInputs[Any]:
        """The next position of each slot. ``ahead``: steps in flight whose tokens are not known yet."""
        tokens = torch.zeros((self.capacity, 1), dtype=torch.int32)
        positions = torch.full((self.capacity,), -1, dtype=torch.int32)
        page_table = torch.zeros((self.capacity, self.width), dtype=torch.int32)
        for slot in slots:
            row = self.rows[slot]
            position = len(row.tokens) - 1 + ahead
            self.blocks_for(slot, position + 1)
            tokens[slot, 0] = row.tokens[-1]
            positions[slot] = position
            page_table[slot] = self.table([slot], [position + 1])[0]
        inputs: DecodeInputs[Any] = DecodeInputs(
            tokens=tokens,
            positions=positions,
            page_table=page_table,
            layer_page_tables=None,
            sampling=self.neutral(),
            logits_rows=None,
            reload=reload,
        )
        return attrs.evolve(inputs, **changes)

    def neutral(self, **rows: DeviceSampling) -> list[DeviceSampling]:
        """Default parameters in every row, but for ``rN=...``."""
        return [rows.get(f"r{slot}", GREEDY) for slot in range(self.capacity)]

    def decode(self, slots: Sequence[int], reload: ReloadCommands, **changes: Any) -> None:
        """One step, read at once; appends each slot's token."""
        self.apply(slots, self.generator.decode(self.decode_inputs(slots, reload, **changes)))

    def apply(self, slots: Sequence[int], readback: Readback[Any]) -> None:
        tokens = readback.read().tokens
        assert tokens is not None
        for slot in slots:
            self.rows[slot].tokens.append(int(tokens[slot]))
            self.rows[slot].computed = len(self.rows[slot].tokens) - 1

    def grew(self, slots: Sequence[int], ahead: int = 0) -> ReloadCommands:
        """What a steady step must reload: page tables where a row's next position opens a block."""
        opens = any((len(self.rows[slot].tokens) - 1 + ahead) % self.block_size == 0 for slot in slots)
        return ReloadCommands(page_table=opens)

    def steady(self, slots: Sequence[int], steps: int) -> None:
        """Decode with the commands of a steady run: everything once, then page tables as blocks are added."""
        for step in range(steps):
            self.decode(slots, RELOAD_ALL if step == 0 else self.grew(slots))

    def overlapped(self, slots: Sequence[int], steps: int) -> None:
        """The same with two steps in flight: a step is submitted before the last one's tokens are read."""
        pending: Readback[Any] | None = None
        for step in range(steps):
            ahead = 0 if pending is None else 1
            reload = RELOAD_ALL if step == 0 else self.grew(slots, ahead)
            submitted = self.generator.decode(self.decode_inputs(slots, reload, ahead=ahead))
            if pending is not None:
                self.apply(slots, pending)
            pending = submitted
        assert pending is not None
        self.apply(slots, pending)

    def close(self) -> None:
        self.mesh.close()


def prompt_of(length: int, seed: int = 0, vocabulary: int = 199) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, vocabulary, length)]
