"""Tries the limits of a card (``domain/spyre_limits.py``, the table) on the card that is there.

A probe that runs through says that its limit, and the workaround for it, can go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch

from ...domain.spyre_limits import Limit, Run

Collective = Callable[[str, torch.Tensor, int, int], None]
"""Tries a collective: operator, tensor, ranks of its group, ranks of the world. Raises where it cannot be run."""


@attrs.frozen
class Outcome:
    """``holds`` None: the probe was not run; ``said`` then tells why."""

    limit: Limit
    holds: bool | None
    said: str


def probe(
    limit: Limit, *, device: torch.device, backend: str | Callable[..., Any], collective: Collective | None = None
) -> Outcome:
    """Run one probe. ``backend`` is what ``torch.compile`` takes; ``collective`` None: those probes are left out."""
    text = limit.text.probe
    scope = {
        "torch": torch,
        "device": device,
        "half": torch.float16,
        "ones": lambda *shape: torch.ones(*shape, dtype=torch.float16, device=device),
    }
    # Both come from the table in this package, never from a user.
    function = eval(text.function, scope)
    arguments = eval(f"({text.arguments},)" if text.arguments else "()", scope)
    if text.run is Run.COLLECTIVE and collective is None:
        return Outcome(limit, None, "needs two processes")
    if text.run is Run.COLLECTIVE:
        function = collective
    if text.run in (Run.COMPILED, Run.DYNAMIC):
        torch._dynamo.reset_code(function.__code__)
        function = torch.compile(function, backend=backend, dynamic=text.run is Run.DYNAMIC, fullgraph=True)
    try:
        with torch.inference_mode():
            result = function(*arguments)
    except Exception as refused:
        return Outcome(limit, True, _sentence(refused))
    if text.run is Run.VALUE:
        return Outcome(limit, bool(result), "the value shows it" if result else "the value does not show it")
    return Outcome(limit, False, "ran through")


def probe_all(
    *, device: torch.device, backend: str | Callable[..., Any], collective: Collective | None = None
) -> Iterator[Outcome]:
    """Run every probe, in the table's order."""
    for limit in Limit:
        yield probe(limit, device=device, backend=backend, collective=collective)


def _sentence(refused: BaseException) -> str:
    """What was said first: torch.compile wraps it in words of its own."""
    inner = getattr(refused, "inner_exception", None)
    return str(inner if isinstance(inner, BaseException) else refused).strip().partition("\n")[0]
