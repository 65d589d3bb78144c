"""Continuous batching with no engine: the lengths of every step that a list of requests leads to.

First come, first served; running sequences before waiting ones; a prompt is cut into chunks by what is left of the
token budget. There is no preemption and no prefix cache: the lengths are for choosing ladders and counting padding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import attrs


@attrs.frozen
class Step:
    """One step: the query rows and the KV tokens before them, of each running sequence."""

    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]


@attrs.define
class _Running:
    prompt: int
    outputs: int
    computed: int = 0
    made: int = 0


def continuous_batching(
    requests: Iterable[tuple[int, int]], *, max_num_seqs: int, max_num_batched_tokens: int
) -> Iterator[Step]:
    """The steps of ``requests``, pairs of (prompt tokens, output tokens), all waiting at the start."""
    waiting = deque(requests)
    running: list[_Running] = []
    while waiting or running:
        while waiting and len(running) < max_num_seqs:
            running.append(_Running(*waiting.popleft()))
        budget = max_num_batched_tokens
        query = []
        for request in running:
            rows = min(budget, max(1, request.prompt - request.computed))
            query.append(rows)
            budget -= rows
        yield Step(
            tuple(rows for rows in query if rows),
            tuple(request.computed for request, rows in zip(running, query, strict=True) if rows),
        )
        for request, rows in zip(running, query, strict=True):
            request.computed += rows
            request.made += rows > 0 and request.computed >= request.prompt
        running = [request for request in running if request.made < request.outputs]
