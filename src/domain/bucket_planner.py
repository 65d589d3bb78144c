"""The best ladder for a measured load: which sizes, at most so many, waste least.

Every size is one compiled variant, so their number is a budget. With a histogram of what really arrived the sizes of
least total cost are found exactly, by dynamic programming over the lengths that occur.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .buckets import Ladder

_INFINITE = float("inf")


def plan_ladder(
    histogram: Mapping[int, float],
    budget: int,
    *,
    top: int,
    multiple: int = 1,
    cost: Callable[[int], float] = float,
) -> Ladder:
    """At most ``budget`` sizes, ``top`` among them, of least total cost for ``histogram`` (length to how often).

    ``multiple``: sizes other than ``top`` are multiples of it. ``cost`` of a size must not fall as sizes rise; by
    default a size costs its own length, and the total is the padded cells. Raises ValueError where a length is above
    ``top``, which must be on the ladder even if nothing so long was measured.

    An optimal size is always a measured length rounded up to ``multiple``: lowered to that it serves the same lengths
    for less. Let best(k, j) be the least cost of all lengths up to candidate j with k sizes, j the last of them. The
    last size before j moves up with j (the costs satisfy the quadrangle inequality), so each row of best is found by
    halving, in O(candidates x log candidates).
    """
    if budget < 1:
        raise ValueError(f"a budget of {budget} variants plans no ladder; allow 1 or more")
    lengths = sorted(length for length, times in histogram.items() if times > 0)
    if lengths and lengths[-1] > top:
        raise ValueError(f"a length of {lengths[-1]} was measured above the top, {top}; raise the top")
    candidates = sorted({min(top, -(-length // multiple) * multiple) for length in lengths} | {top})
    served = [0.0]
    place = 0
    for size in candidates:
        more = 0.0
        while place < len(lengths) and lengths[place] <= size:
            more += histogram[lengths[place]]
            place += 1
        served.append(served[-1] + more)
    prices = [cost(size) for size in candidates]
    count = len(candidates)
    best = [prices[j] * served[j + 1] for j in range(count)]
    origins: list[list[int]] = []
    for _ in range(min(budget, count) - 1):
        best, origin = _one_more(best, served, prices)
        origins.append(origin)
    sizes, j = [candidates[-1]], count - 1
    for origin in reversed(origins):
        j = origin[j]
        if j < 0:
            break
        sizes.append(candidates[j])
    return Ladder(sizes)


def _one_more(best: list[float], served: list[float], prices: list[float]) -> tuple[list[float], list[int]]:
    """From best(k, .) to best(k + 1, .), and the size before the last of each; -1 where there is none."""
    count = len(best)
    out = [_INFINITE] * count
    origin = [-1] * count
    spans = [(0, count - 1, -1, count - 2)]
    while spans:
        low, high, first, last = spans.pop()
        if low > high:
            continue
        j = (low + high) // 2
        for i in range(first, min(last, j - 1) + 1):
            before = best[i] if i >= 0 else 0.0
            total = before + prices[j] * (served[j + 1] - served[i + 1])
            if total < out[j]:
                out[j], origin[j] = total, i
        spans.append((low, j - 1, first, max(first, origin[j])))
        spans.append((j + 1, high, max(first, origin[j]), last))
    return out, origin


def padded_total(histogram: Mapping[int, float], ladder: Ladder) -> float:
    """Cells that ``histogram`` takes on ``ladder``; divided by the cells it needs this is the padding."""
    total = 0.0
    for length, times in histogram.items():
        size = ladder.fit(length)
        if size is None:
            raise ValueError(f"a length of {length} is above the ladder's top, {ladder.top}; raise the top")
        total += size * times
    return total
