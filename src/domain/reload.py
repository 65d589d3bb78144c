"""Which parts of its resident inputs the device must read again before a decode (contract 3.10).

The device keeps tokens, positions, page tables and sampling parameters; in steady decode it advances them by
itself and the host's copies are a step old. Everything that breaks that is a cause listed here.
"""
from __future__ import annotations

import enum

from ..ports.step import NO_RELOAD, ReloadCommands


class ReloadCause(enum.Enum):
    """Why the inputs are read again. The value is the phrase shown to people."""

    FIRST = "nothing is resident yet"
    AFTER_PREFILL = "a prefill ran since the last decode"
    ROWS_CHANGED = "the set of decoding rows changed"
    HOST_SAMPLED = "the last tokens were chosen on the host"
    NOT_RESIDENT = "the model does not keep its inputs resident"


def reload_commands(cause: ReloadCause | None, *, rows_grown: bool, device_sampling: bool) -> ReloadCommands:
    """``cause`` None means that the resident inputs are still true. Sampling parameters and state belong to rows,
    so they are read again exactly when the rows are."""
    if cause is None:
        return ReloadCommands(page_table=True) if rows_grown else NO_RELOAD
    # Sampler state and parameters follow the rows; tokens that the host chose leave both as they were.
    rows_moved = device_sampling and cause is not ReloadCause.HOST_SAMPLED
    return ReloadCommands(inputs=True, sampling_params=rows_moved, reset_sampling_state=rows_moved)
