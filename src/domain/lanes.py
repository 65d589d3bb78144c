"""Which lane a new request goes to."""
from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen
class LaneLoad:
    waiting: int
    """all requests without a row, blocked ones too: they come back as work"""
    running: int


def least_loaded(loads: Sequence[LaneLoad]) -> int:
    """Index of the lane with the lowest ``4 * waiting + running``, the lowest index on a tie.

    The weights are those of vLLM's data-parallel balancer (contract 5.2). Requests stay with their lane for
    life: their KV blocks are there.
    """
    if not loads:
        raise ValueError("there is no lane to choose from; give at least one")
    return min(range(len(loads)), key=lambda i: 4 * loads[i].waiting + loads[i].running)
