"""Many lanes' passes become ONE immutable plan (design, choices 1 and 2). A single engine is one lane.

The planner owns what outlives a step: who sits on which row, which batch decoded last, and what is resident on the
device because of it. From that and the lanes' passes it derives rows, sampling path, reload commands and overlap.
In steady decode, when the same requests decode again, everything that follows from the rows is the same object as in
the plan before: the work left is a comparison of ids and a scan for appended blocks.
"""
from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Generic

import attrs

from ..ports.capabilities import ModelCapabilities
from ..ports.lane import LaneStep
from ..ports.sampling import HostReason, SamplingPath
from ..ports.step import Admission, BlockIds, Growth, Params, Phase, Release, StepPlan
from .overlap import overlap
from .phase import PhaseChoice
from .reload import ReloadCause, reload_commands
from .rows import RowTable
from .sampling_path import SamplingRules


@attrs.frozen(kw_only=True)
class _Decoding:
    """The last decode batch, and all that follows from its rows."""

    request_ids: list[str]
    rows: list[int]
    path: SamplingPath
    batch_size: int


class Planner(Generic[Params]):
    def __init__(
        self,
        *,
        lanes: int,
        rows_per_lane: int,
        sampling: SamplingRules,
        capabilities: ModelCapabilities,
        asynchronous: bool,
    ) -> None:
        self.rows = RowTable(lanes, rows_per_lane)
        self._sampling = sampling
        self._capabilities = capabilities
        self._asynchronous = asynchronous
        self._step = 0
        self._own_reason: dict[str, HostReason | None] = {}
        self._decoding: _Decoding | None = None
        self._stale: ReloadCause | None = ReloadCause.FIRST

    def plan(self, choice: PhaseChoice, steps: Sequence[LaneStep[Params]]) -> StepPlan[Params]:
        """One pass a lane, in lane order. Raises LookupError, with the ids involved, when a lane and the row table
        disagree: a guess would corrupt a neighbour's text."""
        self._step += 1
        released = self._release(steps)
        if choice.phase is Phase.DECODE:
            return self._decode(choice, steps, released)
        if choice.phase is Phase.PREFILL:
            return self._prefill(choice, steps, released)
        for step in steps:
            if step.num_rows:
                raise LookupError(f"an empty step has scheduled rows: {list(step.cached)}")
        return self._build(choice, released)

    def _release(self, steps: Sequence[LaneStep[Params]]) -> tuple[Release, ...]:
        # Finished before preempted before placed: a row given back in this step can be handed out in it, on both
        # sides of the port (contract 8.16). A request that resumes in the step it was preempted in is in both lists.
        released: list[Release] = []
        for step in steps:
            for request_id in step.finished:
                row = self.rows.release(request_id)
                self._own_reason.pop(request_id, None)
                if row is not None:
                    released.append(Release(request_id, row))
            for request_id in step.preempted:
                row = self.rows.release(request_id)
                if row is not None:
                    released.append(Release(request_id, row))
        return tuple(released)

    def _decode(
        self, choice: PhaseChoice, steps: Sequence[LaneStep[Params]], released: tuple[Release, ...]
    ) -> StepPlan[Params]:
        ids: list[str] = []
        starts: list[int] = []
        blocks: list[BlockIds | None] = []
        for step in steps:
            if step.arrivals:
                raise LookupError(
                    f"a decode step was handed requests that need a prefill: {[a.request_id for a in step.arrivals]}"
                )
            ids += step.cached
            starts += step.computed
            blocks += step.blocks
        if not ids:
            return self._build(attrs.evolve(choice, phase=Phase.EMPTY), released)
        last = self._decoding
        same = last is not None and ids == last.request_ids
        if same:
            assert last is not None
            now = last
        else:
            rows = self.rows.rows_of(ids)
            now = _Decoding(
                request_ids=ids,
                rows=rows,
                path=self._sampling.path(Phase.DECODE, [self._own_reason[i] for i in ids]),
                batch_size=self._batch_size(max(rows) + 1),
            )
        cause = self._cause(same)
        grown = _growth(now.rows, blocks)
        reload = reload_commands(cause, rows_grown=bool(grown), device_sampling=not now.path.all_host)
        choice_of_overlap = overlap(
            Phase.DECODE, cause, asynchronous=self._asynchronous, prefill_may_overlap=False
        )
        self._decoding = now
        self._stale = None if now.path.all_device else ReloadCause.HOST_SAMPLED
        return StepPlan(
            step=self._step,
            phase=Phase.DECODE,
            why=choice.why,
            lanes=self.rows.lanes,
            rows_per_lane=self.rows.rows_per_lane,
            released=released,
            grown=grown,
            request_ids=now.request_ids,
            rows=now.rows,
            starts=starts,
            path=now.path,
            reload=reload,
            keep_overlap=choice_of_overlap.keep,
            overlap_why=choice_of_overlap.why,
            same_rows=same,
            batch_size=now.batch_size,
        )

    def _cause(self, same: bool) -> ReloadCause | None:
        if self._stale is not None and self._stale is not ReloadCause.HOST_SAMPLED:
            return self._stale
        if not same:
            return ReloadCause.ROWS_CHANGED
        if self._stale is not None:
            return self._stale
        return None if self._capabilities.supports_async_decode else ReloadCause.NOT_RESIDENT

    def _prefill(
        self, choice: PhaseChoice, steps: Sequence[LaneStep[Params]], released: tuple[Release, ...]
    ) -> StepPlan[Params]:
        ids: list[str] = []
        starts: list[int] = []
        scheduled: list[int] = []
        emits: list[bool] = []
        admitted: list[Admission[Params]] = []
        grown: list[Growth] = []
        for lane, step in enumerate(steps):
            for arrival in step.arrivals:
                if arrival.request_id in self.rows:
                    # A session that got its next input: it kept its row while it waited, and arrives again.
                    held = self.rows.release(arrival.request_id)
                    assert held is not None
                    released = (*released, Release(arrival.request_id, held))
                row = self.rows.assign(lane, arrival.request_id)
                self._own_reason[arrival.request_id] = self._sampling.own_reason(arrival.traits)
                ids.append(arrival.request_id)
                starts.append(arrival.computed)
                admitted.append(
                    Admission(
                        request_id=arrival.request_id,
                        row=row,
                        token_ids=arrival.token_ids,
                        prompt_length=arrival.prompt_length,
                        blocks=arrival.blocks,
                        resumed=arrival.resumed,
                        traits=arrival.traits,
                        params=arrival.params,
                    )
                )
            ids += step.cached
            starts += step.computed
            scheduled += step.scheduled
            emits += step.emits
            grown += _growth(self.rows.rows_of(list(step.cached)), list(step.blocks))
        if not ids:
            return self._build(attrs.evolve(choice, phase=Phase.EMPTY), released)
        if not len(ids) == len(starts) == len(scheduled) == len(emits):
            raise LookupError(f"a lane's pass is not parallel: {len(ids)} ids, {len(scheduled)} token counts")
        self._stale = ReloadCause.AFTER_PREFILL
        if admitted:
            # A request may be back on another row than it had: what followed from the old rows is void, even if the
            # same requests decode next.
            self._decoding = None
        # Only rows that reach the end of what is known are sampled, so only they have a path.
        path = self._sampling.path(
            Phase.PREFILL, [self._own_reason[i] for i, emit in zip(ids, emits, strict=True) if emit]
        )
        choice_of_overlap = overlap(
            Phase.PREFILL,
            None,
            asynchronous=self._asynchronous,
            prefill_may_overlap=self._capabilities.supports_async_prefill,
        )
        return StepPlan(
            step=self._step,
            phase=Phase.PREFILL,
            why=choice.why,
            lanes=self.rows.lanes,
            rows_per_lane=self.rows.rows_per_lane,
            released=released,
            admitted=tuple(admitted),
            grown=tuple(grown),
            request_ids=ids,
            rows=self.rows.rows_of(ids),
            starts=starts,
            ends=[start + n for start, n in zip(starts, scheduled, strict=True)],
            emits=emits,
            path=path,
            keep_overlap=choice_of_overlap.keep,
            overlap_why=choice_of_overlap.why,
        )

    def _build(self, choice: PhaseChoice, released: tuple[Release, ...]) -> StepPlan[Params]:
        if released and self._stale is None:
            # The device still holds these rows; the next decode must not run them.
            self._stale = ReloadCause.ROWS_CHANGED
        return StepPlan(
            step=self._step,
            phase=Phase.EMPTY,
            why=choice.why,
            lanes=self.rows.lanes,
            rows_per_lane=self.rows.rows_per_lane,
            released=released,
            keep_overlap=True,
            overlap_why="nothing is built",
        )

    def _batch_size(self, rows: int) -> int:
        """Smallest declared decode batch that covers ``rows``; the full capacity where none does, or where rows of
        several lanes lie apart by construction."""
        capacity = self.rows.lanes * self.rows.rows_per_lane
        sizes = self._capabilities.decode_batch_sizes
        if self.rows.lanes > 1 or not sizes:
            return capacity
        index = bisect_left(sizes, rows)
        return min(sizes[index], capacity) if index < len(sizes) else capacity


def _growth(rows: Sequence[int], blocks: Sequence[BlockIds | None]) -> tuple[Growth, ...]:
    return tuple([Growth(rows[i], new) for i, new in enumerate(blocks) if new is not None])
