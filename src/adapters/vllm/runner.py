"""Executes plans: brings the device-shaped buffers up to date, in place, and drives the generator.

Nothing is inferred here. Phase, rows, slots, sampling path, reload commands and overlap are read from the plan; a step
that changes no row costs a few array operations whatever the batch is.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import structlog
import torch
from vllm import SamplingParams
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.sampler import Sampler

from ...domain.overlap import FrameQueue
from ...ports.generator import DecodeInputs, Generator, PrefillInputs, Readback
from ...ports.sampling import DeviceSampling
from ...ports.step import Phase, ReloadCommands, StepPlan
from ...ports.telemetry import Telemetry
from .frame import Frame
from .host_sampling import GrammarMask, HostBatch, HostRow
from .settings import EngineSettings
from .step_buffers import StepBuffers

log = structlog.get_logger(__name__)

_NEUTRAL = DeviceSampling()
_RELOAD_ALL = ReloadCommands(inputs=True, sampling_params=True, reset_sampling_state=True)


@attrs.define(eq=False, kw_only=True)
class _Row:
    """A request on its row."""

    request_id: str
    params: SamplingParams
    prompt_length: int
    wire: DeviceSampling


@attrs.frozen(kw_only=True)
class _DecodeBatch:
    """What follows from a decode plan's rows alone; kept while the plan says they are the same."""

    rows: npt.NDArray[np.int64]
    index: dict[str, int]
    epochs: npt.NDArray[np.int64]
    sampling: Sequence[DeviceSampling] | None
    host_rows: list[HostRow]
    logits_rows: list[int] | None


class StepRunner:
    def __init__(
        self,
        *,
        settings: EngineSettings,
        generator: Generator[torch.Tensor],
        max_len: int,
        widths: Sequence[int],
        layer_groups: Sequence[int] | None,
        sampler: Sampler,
        processors: Callable[[], LogitsProcessors],
        telemetry: Telemetry,
    ) -> None:
        """``widths``: blocks a row, by KV cache group. ``layer_groups``: the group of each layer, or None where there
        is one group."""
        self._settings = settings
        self._generator = generator
        self._telemetry = telemetry
        self._layer_groups = layer_groups
        vocab = settings.sampling.vocab_size
        self.buffers = StepBuffers(capacity=settings.capacity, max_len=max_len, widths=widths)
        self._rows: list[_Row | None] = [None] * settings.capacity
        # Prefill rows are sampled once a stay, decode rows again and again: two batches keep their memberships calm.
        self._prefill_host = HostBatch(vocab_size=vocab, sampler=sampler, processors=processors)
        self._decode_host = HostBatch(vocab_size=vocab, sampler=sampler, processors=processors)
        self._frames: FrameQueue[Frame] = FrameQueue(
            read=Frame.get_output, is_read=lambda frame: frame.is_read, apply=self._apply
        )
        self._unsampled: deque[Frame] = deque()
        self._decoding: _DecodeBatch | None = None
        self._resident_lost = False

    # -- the engine's two calls ------------------------------------------------------------------------------------

    def execute(self, plan: StepPlan[SamplingParams]) -> ModelRunnerOutput | None:
        """Submit one step. None: :meth:`sample` has its result; else the (empty) result."""
        self._telemetry.step(plan)
        if plan.keep_overlap:
            self._frames.apply_read()
        else:
            self._frames.drain()
        for release in plan.released:
            self.buffers.release(release.row)
            self._rows[release.row] = None
        for admission in plan.admitted:
            self.buffers.admit(admission.row, admission.token_ids, admission.blocks)
            self._rows[admission.row] = _Row(
                request_id=admission.request_id,
                params=admission.params,
                prompt_length=admission.prompt_length,
                wire=self._settings.sampling.wire(admission.traits),
            )
        for growth in plan.grown:
            self.buffers.append_blocks(growth.row, growth.blocks)
        if plan.phase is Phase.EMPTY:
            return EMPTY_MODEL_RUNNER_OUTPUT
        frame = self._prefill(plan) if plan.phase is Phase.PREFILL else self._decode(plan)
        self._frames.submitted(frame)
        self._unsampled.append(frame)
        return None

    def sample(self, grammar: GrammarMask | None) -> Frame | None:
        """The oldest submitted step that was not asked for yet. None: there is none, because ``execute`` raised; the
        engine then raises what it raised."""
        if not self._unsampled:
            return None
        frame = self._unsampled.popleft()
        frame.sample_with(grammar)
        return frame

    def drain(self) -> None:
        """Read and apply everything in flight (shutdown)."""
        self._frames.drain()

    # -- prefill ---------------------------------------------------------------------------------------------------

    def _prefill(self, plan: StepPlan[SamplingParams]) -> Frame:
        rows = np.asarray(plan.rows, np.int64)
        ends = np.asarray(plan.ends, np.int64)
        emitting = [i for i, emit in enumerate(plan.emits) if emit]
        host_rows = [self._host_row(plan.rows[emitting[i]], int(ends[emitting[i]])) for i in plan.path.host]
        sampling: list[DeviceSampling] | None = None
        logits_rows: list[int] | None = [emitting[i] for i in plan.path.host]
        if plan.path.num_device:
            host = {emitting[i] for i in plan.path.host}
            emits = set(emitting)
            sampling = [
                self._row(row).wire if i in emits and i not in host else _NEUTRAL for i, row in enumerate(plan.rows)
            ]
        elif len(host_rows) == len(plan.rows):
            logits_rows = None
        inputs = PrefillInputs(
            tokens=self.buffers.prefill_tokens(rows, ends),
            page_table=self.buffers.prefill_blocks(0, rows),
            layer_page_tables=self._layer_tables(rows),
            starts=plan.starts,
            ends=plan.ends,
            slots=plan.rows,
            sampling=sampling,
            logits_rows=logits_rows,
        )
        readback, error = self._submit(lambda: self._generator.prefill(inputs))
        at = np.asarray(emitting, np.int64)
        return Frame(
            plan=plan,
            readback=readback,
            error=error,
            index={request_id: i for i, request_id in enumerate(plan.request_ids)},
            emitting=emitting,
            device_rows=at,
            rows=rows[at],
            positions=ends[at],
            epochs=self.buffers.epoch[rows[at]],
            host_rows=host_rows,
            host_batch=self._prefill_host,
        )

    def _layer_tables(self, rows: npt.NDArray[np.int64]) -> list[torch.Tensor] | None:
        if self._layer_groups is None:
            return None
        by_group = {g: self.buffers.blocks_by_row(g, rows) for g in set(self._layer_groups)}
        return [by_group[g] for g in self._layer_groups]

    # -- decode ----------------------------------------------------------------------------------------------------

    def _decode(self, plan: StepPlan[SamplingParams]) -> Frame:
        batch = self._decoding
        if batch is None or not plan.same_rows:
            batch = self._decoding = self._decode_batch(plan)
        starts = np.asarray(plan.starts, np.int64)
        reload = plan.reload
        if self._resident_lost:
            # The plan could not know that the last submission failed.
            reload = _RELOAD_ALL if plan.path.num_device else ReloadCommands(inputs=True)
            self._frames.drain()
        if reload.inputs:
            self.buffers.load_decode(batch.rows, starts)
        elif reload.page_table:
            self.buffers.load_grown([growth.row for growth in plan.grown])
        size = plan.batch_size
        whole = size == self.buffers.capacity
        tables = self.buffers.wire_blocks
        groups = self._layer_groups
        inputs = DecodeInputs(
            tokens=self.buffers.wire_tokens if whole else self.buffers.wire_tokens[:size],
            positions=self.buffers.wire_positions if whole else self.buffers.wire_positions[:size],
            page_table=tables[0] if whole else tables[0][:size],
            layer_page_tables=None if groups is None else [tables[g] for g in groups],
            sampling=batch.sampling,
            logits_rows=batch.logits_rows,
            reload=reload,
        )
        readback, error = self._submit(lambda: self._generator.decode(inputs))
        self._resident_lost = readback is None
        return Frame(
            plan=plan,
            readback=readback,
            error=error,
            index=batch.index,
            emitting=None,
            device_rows=batch.rows,
            rows=batch.rows,
            positions=starts + 1,
            epochs=batch.epochs,
            host_rows=batch.host_rows,
            host_batch=self._decode_host,
        )

    def _decode_batch(self, plan: StepPlan[SamplingParams]) -> _DecodeBatch:
        rows = np.asarray(plan.rows, np.int64)
        path = plan.path
        sampling: list[DeviceSampling] | None = None
        logits_rows: list[int] | None = [plan.rows[i] for i in path.host]
        if path.num_device:
            host = set(path.host)
            sampling = [_NEUTRAL] * plan.batch_size
            for i, row in enumerate(plan.rows):
                if i not in host:
                    sampling[row] = self._row(row).wire
        elif not self._settings.sampling.capabilities.supports_tokens_and_logits:
            logits_rows = None
        return _DecodeBatch(
            rows=rows,
            index={request_id: i for i, request_id in enumerate(plan.request_ids)},
            epochs=self.buffers.epoch[rows],
            sampling=sampling,
            host_rows=[self._host_row(plan.rows[i], plan.starts[i] + 1) for i in path.host],
            logits_rows=logits_rows,
        )

    # -- both ------------------------------------------------------------------------------------------------------

    def _row(self, row: int) -> _Row:
        held = self._rows[row]
        if held is None:
            raise LookupError(f"row {row} is scheduled and holds no request; scheduler and runner disagree")
        return held

    def _host_row(self, row: int, known: int) -> HostRow:
        held = self._row(row)
        tokens = self.buffers.tokens[row, :known].tolist()
        return HostRow(
            request_id=held.request_id,
            row=row,
            params=held.params,
            prompt=tokens[: held.prompt_length],
            outputs=tokens[held.prompt_length :],
        )

    def _submit(self, call: Callable[[], Readback[torch.Tensor]]) -> tuple[Readback[torch.Tensor] | None, str | None]:
        """A submission that the device refuses ends its requests, not the engine."""
        try:
            return call(), None
        except Exception as error:
            log.exception("submission_failed")
            return None, str(error)

    def _apply(self, frame: Frame) -> None:
        """The frame's tokens become known on the host, where their requests are still the ones computed for."""
        tokens = frame.tokens
        if tokens is None:
            self._resident_lost = True
            return
        if not len(tokens):
            return
        current = self.buffers.epoch[frame.rows] == frame.epochs
        if current.all():
            self.buffers.write_tokens(frame.rows, frame.positions, tokens)
        else:
            self.buffers.write_tokens(frame.rows[current], frame.positions[current], tokens[current])


def grammar_mask(grammar: Any) -> GrammarMask | None:
    """vLLM's ``GrammarOutput`` in our words."""
    if grammar is None:
        return None
    # vLLM fills one buffer for every step; the mask of a frame in flight would become that of a later frame.
    return GrammarMask(request_ids=grammar.structured_output_request_ids, bitmask=grammar.grammar_bitmask.copy())
