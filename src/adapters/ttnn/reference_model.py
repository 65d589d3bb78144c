"""A small language model in ttnn for bring-up: the whole generator contract, and nothing that a new card could lack.

It needs a mesh opened with two command queues, and the operations embedding, matmul, add and argmax. The same file runs
on a card, on tt-metal's simulator and on the tests' double of ttnn. What it says follows from its weights
(:mod:`.reference_weights`), so that every token can be checked. Lanes are submeshes: whole columns of the mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

import attrs
import torch
import ttnn

from .reference_program import DeviceTables, ReferenceProgram
from .reference_tables import TILE, Geometry, make_tables
from .reference_weights import VOCAB, ReferenceWeights

ARCHITECTURE = "StepshapeReferenceForCausalLM"
"""the checkpoint's, without our prefix"""
SEED_KEY = "stepshape_seed"
"""of the checkpoint's config: which weights"""
DEFAULT_MAX_LEN = 256


class ReferenceModelError(ValueError):
    """The model was asked for something that the contract does not allow, or that it does not have."""


@attrs.frozen(eq=False)
class StepOutput:
    """A step on the device: which run of which lanes it was."""

    lanes: tuple[_Lane, ...]
    runs: tuple[int, ...]
    rows: int
    """device rows a lane"""
    tokens: bool
    logits: bool
    logits_rows: tuple[int, ...] | None


@attrs.frozen(eq=False)
class HostHandle:
    """A step's outputs on the host, filled once their events have passed: (tokens, logits) a lane."""

    parts: tuple[tuple[ttnn.Tensor | None, ttnn.Tensor | None], ...]
    of: StepOutput


@attrs.define(eq=False)
class _Lane:
    tables: DeviceTables
    decode: ReferenceProgram
    prefill: ReferenceProgram


class ReferenceForCausalLM:
    """Made by :meth:`initialize_vllm_model`; the constructor's other arguments are vLLM's."""

    model_capabilities: ClassVar[dict[str, Any]] = {
        "supports_sample_on_device": True,
        "supports_tokens_and_logits": True,
        "supports_async_decode": True,
        "supports_prefix_caching": True,
        "supports_chunked_prefill": True,
        "supports_device_penalties": False,
        "supports_device_seeds": False,
        "max_device_top_k": 1,
        "num_command_queues": 2,
    }
    decode_input_update_contract: ClassVar[int] = 1

    def __init__(
        self,
        *,
        vllm_config: object = None,
        prefix: str = "",
        lanes: Sequence[ttnn.MeshDevice] = (),
        rows_per_lane: int = 0,
        max_len: int = DEFAULT_MAX_LEN,
        seed: int = 0,
    ) -> None:
        if not lanes:
            raise TypeError(f"{type(self).__name__} runs on a mesh; make it with initialize_vllm_model")
        self._devices = tuple(lanes)
        self._rows = rows_per_lane
        self._max_len = max_len
        self._weights = ReferenceWeights(seed)
        self._lanes: tuple[_Lane, ...] = ()
        self._loaded = False

    # -- what the class says

    @classmethod
    def lane_counts_for(cls, mesh_shape: tuple[int, int]) -> tuple[int, ...]:
        """The divisors of the columns."""
        columns = mesh_shape[1]
        return tuple(count for count in range(1, columns + 1) if columns % count == 0)

    @classmethod
    def initialize_vllm_model(
        cls,
        hf_config: Any,
        mesh_device: ttnn.MeshDevice,
        max_batch_size: int,
        max_seq_len: int | None = None,
        tt_data_parallel: int = 1,
        optimizations: str | None = None,
    ) -> ReferenceForCausalLM:
        """Contract 3.1. ``hf_config`` gives the vocabulary size and the seed; ``optimizations`` changes nothing."""
        if hf_config.vocab_size != VOCAB:
            raise ReferenceModelError(
                f"the checkpoint has vocab_size {hf_config.vocab_size} and the reference model {VOCAB} tokens; use the "
                "config of examples/reference_model"
            )
        rows, columns = mesh_device.shape
        if tt_data_parallel not in cls.lane_counts_for((rows, columns)) or max_batch_size % tt_data_parallel:
            raise ReferenceModelError(
                f"{max_batch_size} rows on a {rows}x{columns} mesh do not make {tt_data_parallel} lanes; use a divisor "
                f"of {columns} columns"
            )
        lanes = [mesh_device]
        if tt_data_parallel > 1:
            lanes = mesh_device.create_submeshes(ttnn.MeshShape(rows, columns // tt_data_parallel))
        return cls(
            lanes=lanes,
            rows_per_lane=max_batch_size // tt_data_parallel,
            max_len=max_seq_len or DEFAULT_MAX_LEN,
            seed=int(getattr(hf_config, SEED_KEY, 0)),
        )

    @classmethod
    def get_max_tokens_all_users(
        cls,
        *,
        model_name: str = "",
        num_devices: int = 1,
        tt_data_parallel: int = 1,
        max_model_len: int = DEFAULT_MAX_LEN,
        max_num_seqs: int = 1,
    ) -> int:
        """Every row of a lane at full length."""
        return max_num_seqs * max_model_len

    # -- vLLM's registry looks for these; the mesh never calls them

    def embed_input_ids(self, input_ids: torch.Tensor) -> NoReturn:
        raise NotImplementedError("the model runs on the mesh; use prefill_forward and decode_forward")

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> NoReturn:
        raise NotImplementedError("the model runs on the mesh; use prefill_forward and decode_forward")

    def compute_logits(self, hidden_states: torch.Tensor) -> NoReturn:
        raise NotImplementedError("the model runs on the mesh; use prefill_forward and decode_forward")

    # -- memory and warm-up

    def allocate_kv_cache(self, shape: tuple[int, ...], dtype: torch.dtype, num_layers: int) -> object:
        """Allocate each lane's buffer and tables. Of ``shape`` (contract 3.2) blocks and block size count."""
        geometry = Geometry(rows=self._rows, max_len=self._max_len, num_blocks=shape[0], block_size=shape[2])
        tables = make_tables(self._weights, geometry)
        made = []
        for device in self._devices:
            on_device = DeviceTables(device, geometry, tables)
            made.append(
                _Lane(
                    tables=on_device,
                    decode=ReferenceProgram(on_device, geometry.decode_rows, advances=True),
                    prefill=ReferenceProgram(on_device, TILE, advances=False),
                )
            )
        self._lanes = tuple(made)
        return self._lanes

    def warmup_model_prefill(self, *, kv_cache: object, can_sample_on_device: bool, enable_trace: bool) -> None:
        """One program serves every length: a prompt runs in pieces of one tile."""
        self._compile()
        if enable_trace:
            for lane in self._lanes:
                lane.prefill.capture()

    def warmup_model_decode(
        self, *, kv_cache: object, max_batch_size: int, num_blocks: int, can_sample_on_device: bool, enable_trace: bool
    ) -> None:
        """One program serves sampling here and there: tokens and logits both come out of it."""
        self._compile()
        if enable_trace:
            for lane in self._lanes:
                lane.decode.capture()

    def _compile(self) -> None:
        if not self._lanes:
            raise ReferenceModelError("no KV cache yet; call allocate_kv_cache first")
        for lane in self._lanes:
            # Both before either is captured: a compile afterwards allocates where a trace may write (contract 3.7).
            lane.prefill.compile()
            lane.decode.compile()

    # -- steps

    def prefill_forward(
        self,
        *,
        tokens: torch.Tensor,
        page_table: torch.Tensor,
        kv_cache: object,
        prompt_lens: Sequence[int],
        start_pos: Sequence[int],
        empty_slots: Sequence[int],
        enable_trace: bool = False,
        sampling_params: Any = None,
        logits_rows: Sequence[int] | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Contract 3.3. Row after row, a tile of positions at a time; host tensors come back."""
        _require_greedy(sampling_params)
        self._compile()
        sampled = sampling_params is not None
        wanted = _wanted(len(empty_slots), sampled, logits_rows)
        picked = torch.zeros(len(empty_slots), dtype=torch.int32)
        logits = torch.zeros(len(empty_slots), VOCAB)
        for row, slot in enumerate(empty_slots):
            lane = self._lanes[int(slot) // self._rows]
            start, end = int(start_pos[row]), int(prompt_lens[row])
            if not 0 <= start < end <= self._max_len:
                raise ReferenceModelError(f"row {row} computes positions {start} to {end} of {self._max_len}")
            last = self._prefill_row(lane, tokens[row], page_table[row], start, end, enable_trace)
            on_device, scores, read = lane.prefill.read(tokens=sampled, logits=row in wanted)
            ttnn.event_synchronize(read)
            if on_device is not None:
                picked[row] = _to_host(on_device).reshape(-1)[last]
            if scores is not None:
                logits[row] = _to_host(scores).reshape(-1, VOCAB)[last]
        return _answer(picked, logits, sampled, logits_rows)

    def _prefill_row(
        self, lane: _Lane, tokens: torch.Tensor, page_table: torch.Tensor, start: int, end: int, traced: bool
    ) -> int:
        """Submit one row's pieces. Returns the place of its last position within the last piece."""
        geometry = lane.tables.geometry
        pages = torch.zeros(TILE, geometry.width, dtype=torch.int32)
        pages[:, : page_table.shape[0]] = page_table
        for first in range(start, end, TILE):
            count = min(TILE, end - first)
            piece = torch.zeros(1, TILE, dtype=torch.int32)
            piece[0, :count] = tokens[first : first + count]
            positions = torch.full((1, TILE), geometry.nowhere, dtype=torch.int32)
            positions[0, :count] = torch.arange(first, first + count, dtype=torch.int32)
            lane.prefill.load(tokens=piece, positions=positions, pages=pages)
            lane.prefill.run(traced=traced)
        return (end - start - 1) % TILE

    def decode_forward(
        self,
        *,
        tokens: torch.Tensor,
        start_pos: torch.Tensor,
        page_table: torch.Tensor,
        kv_cache: object,
        reload_inputs: bool,
        reload_page_table: bool,
        reload_sampling_params: bool,
        reset_sampling_state: bool,
        enable_trace: bool = False,
        read_from_device: bool = True,
        sampling_params: Any = None,
        logits_rows: Sequence[int] | None = None,
    ) -> StepOutput | torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Contract 3.4 with the explicit commands of 3.10. What is not commanded stays as the device has it."""
        if reload_inputs and reload_page_table:
            raise ReferenceModelError("reload_inputs takes the page tables along; send one of the two commands")
        if not (self._loaded or reload_inputs):
            raise ReferenceModelError("nothing is resident yet; the first decode reloads its inputs")
        if reload_sampling_params:
            _require_greedy(sampling_params)
        self._compile()
        if reload_inputs or reload_page_table:
            self._load(tokens, start_pos, page_table, inputs=reload_inputs)
        runs = tuple(lane.decode.run(traced=enable_trace) for lane in self._lanes)
        sampled = sampling_params is not None
        out = StepOutput(
            self._lanes,
            runs,
            self._rows,
            sampled,
            not sampled or bool(logits_rows),
            None if logits_rows is None else tuple(logits_rows),
        )
        if not read_from_device:
            return out
        return self._finish(*self._submit_read(out))

    def _load(self, tokens: torch.Tensor, start_pos: torch.Tensor, page_table: torch.Tensor, *, inputs: bool) -> None:
        for number, lane in enumerate(self._lanes):
            geometry, mine = lane.tables.geometry, slice(number * self._rows, (number + 1) * self._rows)
            pages = torch.zeros(geometry.decode_rows, geometry.width, dtype=torch.int32)
            pages[: self._rows, : page_table.shape[1]] = page_table[mine]
            if not inputs:
                lane.decode.load(pages=pages)
                continue
            current = torch.zeros(1, geometry.decode_rows, dtype=torch.int32)
            current[0, : self._rows] = tokens[mine].reshape(-1)
            positions = torch.full((1, geometry.decode_rows), geometry.nowhere, dtype=torch.int32)
            positions[0, : self._rows] = torch.where(start_pos[mine] < 0, geometry.nowhere, start_pos[mine])
            lane.decode.load(tokens=current, positions=positions, pages=pages)
        self._loaded = self._loaded or inputs

    # -- reading back (contract 3.5)

    def read_decode_output(self, out: StepOutput, *, async_read: bool = False) -> Any:
        """``async_read``: (host handle, events) at once. Else host tensors."""
        handle, events = self._submit_read(out)
        return (handle, events) if async_read else self._finish(handle, events)

    def process_decode_output_host(
        self, out: HostHandle | StepOutput, *, is_tokens: bool
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Host tensors of a handle whose events have passed, or of a step that nobody has read yet."""
        if isinstance(out, StepOutput):
            return self._finish(*self._submit_read(out))
        if is_tokens != out.of.tokens:
            raise ReferenceModelError(f"the step sampled {'' if out.of.tokens else 'nothing '}on the device")
        return _gather(out)

    def _submit_read(self, out: StepOutput) -> tuple[HostHandle, list[ttnn.MeshEvent]]:
        parts, events = [], []
        for lane, run in zip(out.lanes, out.runs, strict=True):
            if lane.decode.runs != run:
                raise ReferenceModelError("a later decode has overwritten this step's outputs; read them before it")
            picked, scores, read = lane.decode.read(tokens=out.tokens, logits=out.logits)
            parts.append((picked, scores))
            events.append(read)
        return HostHandle(tuple(parts), out), events

    def _finish(
        self, handle: HostHandle, events: Sequence[ttnn.MeshEvent]
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        for event in events:
            ttnn.event_synchronize(event)
        return _gather(handle)


def _gather(handle: HostHandle) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    out = handle.of
    rows, lanes = out.rows, range(len(out.lanes))
    none = torch.zeros(0)
    tokens = [_to_host(part[0]).reshape(-1)[:rows] for part in handle.parts if part[0] is not None]
    logits = [_to_host(part[1]).reshape(-1, VOCAB)[:rows] for part in handle.parts if part[1] is not None]
    assert len(tokens) in (0, len(lanes)) and len(logits) in (0, len(lanes))
    return _answer(
        torch.cat(tokens) if tokens else none, torch.cat(logits) if logits else none, out.tokens, out.logits_rows
    )


def _answer(
    tokens: torch.Tensor, logits: torch.Tensor, sampled: bool, logits_rows: Sequence[int] | None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """What a step returns: tokens, logits of the rows asked for ([B, 1, V] for all of them), or both."""
    if sampled:
        return (tokens, logits[list(logits_rows)]) if logits_rows else tokens
    return logits.unsqueeze(1) if logits_rows is None else logits[list(logits_rows)]


def _wanted(rows: int, sampled: bool, logits_rows: Sequence[int] | None) -> set[int]:
    if logits_rows is None:
        return set() if sampled else set(range(rows))
    return set(logits_rows)


def _to_host(tensor: ttnn.Tensor) -> torch.Tensor:
    """A host tensor that every chip has a copy of, as float32 or int32."""
    values = ttnn.to_torch(ttnn.get_device_tensors(tensor)[0])
    return values.float() if values.is_floating_point() else values.to(torch.int32)


def _require_greedy(sampling_params: Any) -> None:
    if sampling_params is None:
        return
    for row, (temperature, top_k) in enumerate(
        zip(sampling_params.temperature, sampling_params.top_k, strict=True)
    ):
        if temperature > 0 and top_k != 1:
            raise ReferenceModelError(
                f"row {row} has temperature {temperature} and top_k {top_k}, and this device takes the best token only "
                "(max_device_top_k is 1); sample that row on the host"
            )
