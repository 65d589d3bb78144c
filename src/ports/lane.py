"""A lane: one data-parallel replica inside the engine, with its own queues, rows and KV cache."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import attrs

from .sampling import SamplingTraits
from .step import BlockIds, Params, Phase


@attrs.frozen(kw_only=True)
class LaneSnapshot:
    """What the phase policy may know of a lane before a step."""

    waiting: int
    """requests without a row, those parked while a grammar compiles included"""
    continuations: int
    """running requests whose known tokens are not all computed: prefill work"""
    decodes: int
    """running requests that decode"""
    rows: int
    """most requests that may run at once"""

    @property
    def running(self) -> int:
        return self.continuations + self.decodes

    @property
    def wants_prefill(self) -> bool:
        # A waiting request with no row to go to is not a reason to stop decoding (contract 5.3).
        return self.continuations > 0 or (self.waiting > 0 and self.running < self.rows)


@attrs.frozen(kw_only=True)
class Arrival(Generic[Params]):
    """A request that a lane placed in this step, not yet on a row: new, or back from a preemption."""

    request_id: str
    token_ids: Sequence[int]
    prompt_length: int
    blocks: BlockIds
    computed: int
    """tokens already in the KV cache: a prefix-cache hit"""
    resumed: bool
    traits: SamplingTraits
    params: Params


@attrs.frozen(kw_only=True)
class LaneStep(Generic[Params]):
    """What one lane's pass produced. ``cached``, ``blocks`` and ``computed`` are parallel: requests that
    have a row already, the blocks appended to each in this step (None: none) and the tokens computed before it."""

    finished: Sequence[str] = ()
    preempted: Sequence[str] = ()
    arrivals: Sequence[Arrival[Params]] = ()
    cached: Sequence[str] = ()
    blocks: Sequence[BlockIds | None] = ()
    computed: Sequence[int] = ()
    scheduled: Sequence[int] = ()
    """prefill only: tokens scheduled, arrivals first, then ``cached``"""
    emits: Sequence[bool] = ()
    """prefill only, same order: whether the chunk reaches the end of what is known"""

    @property
    def num_rows(self) -> int:
        return len(self.arrivals) + len(self.cached)


Output = TypeVar("Output", covariant=True)


class Lane(Protocol[Output]):
    """One side of the coordinator. ``Output`` is the serving stack's own record of a pass."""

    def snapshot(self) -> LaneSnapshot: ...

    def schedule_phase(self, phase: Phase) -> Output:
        """Run one pass in which only ``phase``'s work is visible. An empty pass still drains lifecycle events."""
        ...
