"""How many requests may be in their prompt at once, said as a cap on admission (spyre contract 1.5.9).

The last, short chunk of a prompt costs a step of the widest body shape. Two prompts that end one after the other in
the same steps cost half as many of those as two whose chunks share every step's budget.
"""

from __future__ import annotations


def admission_cap(*, cap: int, running: int, prefilling: int, waiting_for_input: int, limit: int) -> int:
    """Requests that may be running after this step's admissions.

    ``cap``: the scheduler's own limit. ``running``: requests running now, ``prefilling`` of them with a part of the
    prompt still to compute. ``waiting_for_input``: paused streaming sessions, which hold a row without running.
    ``limit``: requests that may prefill at once; 0 or less leaves ``cap`` as it is.
    """
    if limit <= 0:
        return cap
    free = max(limit - prefilling, 0)
    return min(cap, running + waiting_for_input + free)
