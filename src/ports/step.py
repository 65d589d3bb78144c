"""One step of the engine, said in full (design, choice 1: the plan says everything)."""
from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Generic, TypeVar

import attrs

from .sampling import SamplingPath, SamplingTraits

Params = TypeVar("Params")
"""The serving stack's own sampling parameters: carried, never looked into."""

BlockIds = tuple[Sequence[int], ...]
"""KV block ids of one row, one sequence a KV cache group, in position order, local to the row's lane."""


class Phase(enum.Enum):
    PREFILL = "prefill"
    DECODE = "decode"
    EMPTY = "empty"


@attrs.frozen
class ReloadCommands:
    """What the device must read from the host before a decode (contract 3.10). Commands, not hints:
    whatever is not named here stays as it is on the device, and the host's copy may be a step old."""

    inputs: bool = False
    """tokens, positions and page tables"""
    page_table: bool = False
    """page tables only; never together with ``inputs``"""
    sampling_params: bool = False
    reset_sampling_state: bool = False
    """implies ``inputs``"""

    def __attrs_post_init__(self) -> None:
        if self.inputs and self.page_table:
            raise ValueError("reload inputs already carries the page table; do not command both")
        if self.reset_sampling_state and not self.inputs:
            raise ValueError("resetting the sampling state needs the inputs reloaded in the same step")


NO_RELOAD = ReloadCommands()
NO_ROWS = SamplingPath(num_rows=0)


@attrs.frozen
class Release:
    """A row that is free from this step on: its request finished, was preempted or is being resumed."""

    request_id: str
    row: int


@attrs.frozen(kw_only=True)
class Admission(Generic[Params]):
    """A request that gets a row in this step: new, or resumed after a preemption."""

    request_id: str
    row: int
    """lane * rows a lane + slot within the lane; the row is the device slot for life (choice 3)"""
    token_ids: Sequence[int]
    """everything known of the request, prompt first; read, never written"""
    prompt_length: int
    """tokens of ``token_ids`` that the client sent"""
    blocks: BlockIds
    resumed: bool
    traits: SamplingTraits
    params: Params


@attrs.frozen
class Growth:
    """Blocks appended to a row that keeps its request."""

    row: int
    blocks: BlockIds


@attrs.frozen(kw_only=True)
class StepPlan(Generic[Params]):
    """What one step does. Parallel sequences have one entry a scheduled row: lane by lane, in scheduling order."""

    step: int
    phase: Phase
    why: str
    """one phrase: why this phase"""
    lanes: int
    rows_per_lane: int
    released: tuple[Release, ...] = ()
    admitted: tuple[Admission[Params], ...] = ()
    grown: tuple[Growth, ...] = ()
    request_ids: Sequence[str] = ()
    rows: Sequence[int] = ()
    starts: Sequence[int] = ()
    """first position computed in this step"""
    ends: Sequence[int] = ()
    """prefill only: one past the last position computed (a decode row computes exactly ``start``)"""
    emits: Sequence[bool] = ()
    """prefill only: False for a chunk that does not reach the end of what is known"""
    path: SamplingPath = NO_ROWS
    """over the rows that emit a token, in order"""
    reload: ReloadCommands = NO_RELOAD
    keep_overlap: bool = False
    """True: earlier frames may stay in flight. False: they are read and applied before this step is built."""
    overlap_why: str = ""
    """one phrase: why kept, or why drained"""
    same_rows: bool = False
    """True: ``request_ids`` and ``rows`` are the same objects as in the last decode plan"""
    batch_size: int = 0
    """decode only: device rows of the batch shape to run"""

    @property
    def capacity(self) -> int:
        return self.lanes * self.rows_per_lane

    def lane_of(self, row: int) -> int:
        return row // self.rows_per_lane
