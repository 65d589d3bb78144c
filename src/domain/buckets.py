"""Ladders: the few sizes that a host-variable length is rounded up to, and the ways to draw one.

Every compiled graph has static shapes, so a length n runs at the smallest declared size >= n. A ladder is only the
sizes; who pads what is said in `attention_plan` and by the runner. Which sizes are best for a measured load is
`bucket_planner`'s question.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import attrs


def _checked(sizes: Iterable[int]) -> tuple[int, ...]:
    out = tuple(sorted(set(sizes)))
    if not out:
        raise ValueError("a ladder needs at least one size; name one")
    if out[0] < 0:
        raise ValueError(f"a ladder holds {out[0]}; sizes are zero or more")
    return out


@attrs.frozen
class Ladder:
    """Sizes in rising order, each once. The converter sorts and drops doubles."""

    sizes: tuple[int, ...] = attrs.field(converter=_checked)

    @property
    def top(self) -> int:
        """The largest size; nothing longer can run."""
        return self.sizes[-1]

    def fit(self, amount: int) -> int | None:
        """The smallest size that holds ``amount`` (0 takes the smallest of all), or None above the top."""
        place = bisect_left(self.sizes, amount)
        return self.sizes[place] if place < len(self.sizes) else None

    def least(self, size: int) -> int:
        """The smallest amount >= 1 that lands on ``size``: one more than the size below it.

        A bound on what can really arrive, not on the size: a 2-token query lands on 512 where the ladder is 1, 512.
        """
        place = self.sizes.index(size)
        return self.sizes[place - 1] + 1 if place else 1

    def avoiding(self, taken: Iterable[int]) -> Ladder:
        """The same ladder with every size in ``taken`` raised until it is in neither.

        A gather of as many rows as its source has faults on the device (spyre contract 6, check 8), so no list of pages
        may be as long as the pool.
        """
        barred = set(taken)
        out: list[int] = []
        for size in self.sizes:
            while size in barred or (out and size <= out[-1]):
                size += 1
            out.append(size)
        return Ladder(out)


def doubling(limit: int, start: int = 1) -> Ladder:
    """Powers of two from the first one >= ``start`` up to ``limit``, and ``limit`` itself (spyre contract 3.2)."""
    if limit < 1:
        raise ValueError(f"a ladder up to {limit} is empty; the limit is 1 or more")
    size = 1
    while size < start:
        size *= 2
    sizes = [limit]
    while size < limit:
        sizes.append(size)
        size *= 2
    return Ladder(sizes)


def ramped(minimum: int, step: int, maximum: int) -> Ladder:
    """Doubling from ``minimum`` up to ``step``, then every ``step`` up to ``maximum`` (field case 41, linear)."""
    _positive(step=step)
    sizes = [minimum, *range(step, maximum + 1, step), maximum]
    size = max(1, minimum)
    while size < min(step, maximum):
        sizes.append(size)
        size *= 2
    return Ladder(size for size in sizes if size <= maximum)


def padded(minimum: int, step: int, maximum: int, *, most: int, percent: int) -> Ladder:
    """As few sizes as keep padding within ``most`` cells and ``percent`` of the size (field case 41, padded).

    Below ``step`` the sizes double. Above it each is the largest multiple of ``step`` that is at most ``most`` past the
    one before and whose worst-filled use (one more than the one before) leaves no more than ``percent`` empty; the next
    multiple of ``step`` if none is.
    """
    _positive(step=step)
    if not 0 <= percent < 100:
        raise ValueError(f"a padding of {percent} percent is no bound; name 0 to 99")
    sizes = set(ramped(minimum, step, min(step, maximum)).sizes)
    last = max(sizes)
    while last < maximum:
        relative = (last + 1) * 100 // (100 - percent)
        ceiling = min(last + most, relative) // step * step
        last = min(maximum, max(ceiling, (last // step + 1) * step))
        sizes.add(last)
    return Ladder(sizes)


def gapped(maximum: int, gap: int, start: int = 16) -> Ladder:
    """Doubling from ``start`` while neighbours are at most ``gap`` apart, then every ``gap`` (field case 42).

    With gap 64 and maximum 512 a step of 300 tokens runs at 320 and not at 512.
    """
    _positive(gap=gap, start=start)
    sizes = [maximum]
    size = start
    while size < maximum:
        sizes.append(size)
        size += min(size, gap)
    return Ladder(sizes)


def geometric(limit: int, count: int, start: int = 1) -> Ladder:
    """At most ``count`` sizes from ``start`` to ``limit``, each the same factor above the one before.

    The ladder of least relative padding where nothing is known of the load but its order of magnitude.
    """
    _positive(limit=limit, count=count, start=start)
    if count == 1 or start >= limit:
        return Ladder((limit,))
    factor = (limit / start) ** (1 / (count - 1))
    return Ladder({limit, *(min(limit, round(start * factor**place)) for place in range(count - 1))})


def body_sizes(max_num_batched_tokens: int, max_num_seqs: int) -> Ladder:
    """Rows of the packed body where the user names none (spyre contract 1.4): powers of two below the number of
    sequences, that number, and the token budget (512 at most)."""
    most = min(max_num_batched_tokens, 512)
    sequences = min(max_num_seqs, most)
    return Ladder({most, *doubling(sequences).sizes})


def query_sizes(max_num_batched_tokens: int) -> Ladder:
    """Query rows of one sequence (spyre contract 3.2): 1, then multiples of 512 up to the token budget."""
    step = min(512, max_num_batched_tokens)
    return Ladder({1, *range(step, max_num_batched_tokens + 1, step), max_num_batched_tokens})


def block_counts(kv_lengths: Ladder, block_size: int) -> Ladder:
    """KV lengths in tokens, as blocks of ``block_size``."""
    return Ladder(-(-length // block_size) for length in kv_lengths.sizes)


def overridden(name: str, text: str, limit: int) -> tuple[Ladder, tuple[str, ...]]:
    """The ladder that a variable ``name`` asks for (comma-separated sizes >= 1), and what to warn of.

    Sizes above ``limit`` cannot be reached and go; ``limit`` itself is put on top, or the longest step would have no
    size (spyre contract 1.6). Raises ValueError for anything that is not a list of whole numbers >= 1.
    """
    try:
        sizes = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise ValueError(f"{name}={text!r} is not a ladder; give whole numbers of 1 or more, separated by commas")
    notes = []
    over = sorted({size for size in sizes if size > limit})
    if over:
        notes.append(f"{name}: {', '.join(map(str, over))} above the limit of {limit} left out")
    if limit not in sizes:
        notes.append(f"{name}: {limit} added, since a step can be that long")
    return Ladder({limit, *(size for size in sizes if size <= limit)}), tuple(notes)


def volume(batch: int, longest: int, block_size: int) -> int:
    """KV tokens that a rectangle of ``batch`` rows takes when its longest row has ``longest`` tokens and every row has
    one block of slack, for the token it writes next may open one."""
    return batch * (-(-longest // block_size) + 1) * block_size


def within_volume(limit: int, final_lengths: Iterable[int], block_size: int) -> bool:
    """Whether rows that will END at ``final_lengths`` tokens stay within ``limit`` at every step until then.

    A rectangle only grows while its rows live, so the last step decides for all before it (field case 40).
    """
    lengths = tuple(final_lengths)
    return not lengths or volume(len(lengths), max(lengths), block_size) <= limit


def _positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name}={value} draws no ladder; it is 1 or more")
