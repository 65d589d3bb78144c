"""``stepshape spyre limits``: the limits of a Spyre card, and with ``--probe`` whether the card here has them."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Callable, Iterator

from ...domain.selection import SPYRE_DEVICE, Device, select_spyre
from ...domain.spyre_limits import Limit


def limits() -> int:
    """Print the table."""
    print("\n".join(lines(max(60, shutil.get_terminal_size((120, 24)).columns))))
    return 0


def lines(width: int) -> Iterator[str]:
    """The table as lines of at most ``width`` characters: number of the check and name, then what is to say of it."""
    yield "The limits of a Spyre card: number of the check, name, error, probe, and what we do because of it."
    for limit in Limit:
        text = limit.text
        yield ""
        yield f"{text.check:>2}  {text.name}"
        called = f"({text.probe.function})({text.probe.arguments})"
        for label, words in (
            ("error", f"{text.cause}; {text.mend}"),
            ("probe", f"{text.probe.run.value}: {called}"),
            ("workaround", text.workaround or "none: we do not do it"),
        ):
            yield from textwrap.wrap(
                words, width, initial_indent=f"    {label:<12}", subsequent_indent=" " * 16, break_on_hyphens=False
            )


def probes() -> int:
    """Run each probe on the card that the environment selects; return 1 where there is none."""
    import importlib.util

    wanted = select_spyre(os.environ, real_card=importlib.util.find_spec("torch_spyre") is not None)
    if wanted.device is None or wanted.problem is not None:
        print(wanted.problem or f"no Spyre card is here; set {SPYRE_DEVICE}=emulated to probe the emulated one")
        return 1
    import torch

    from ...adapters.torch_spyre.limits import Collective, probe_all

    backend: str | Callable[..., object] = "inductor"
    collective: Collective | None = None
    if wanted.device is Device.EMULATED:
        from ...adapters.emulator import spyre

        spyre.load()
        backend, collective = spyre.checking_backend(), spyre.check_collective
    for outcome in probe_all(device=torch.device("spyre"), backend=backend, collective=collective):
        state = {True: "holds", False: "gone", None: "not run"}[outcome.holds]
        print(f"{outcome.limit.text.check:>2}  {outcome.limit.text.name:<22}{state:<9}{outcome.said}")
    return 0
