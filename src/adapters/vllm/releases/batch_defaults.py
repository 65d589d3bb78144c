"""How many sequences an engine runs where the user names no number.

0.26 to 0.33: ``EngineArgs.get_batch_defaults`` says 256 or 1024 by the size of a GPU, and no hook comes between it and
the config, in which a default cannot be told from a wish. A device that warms up a shape for every number of sequences
wants few.
"""

from __future__ import annotations

import functools
from typing import Any

from vllm.engine.arg_utils import EngineArgs
from vllm.usage.usage_lib import UsageContext


def cap_default_sequences(limit: int) -> None:
    """Make the default at most ``limit`` in this process, for the command line and for ``LLM``. What the user names
    stands. Calling it again changes nothing.

    Raises RuntimeError if vLLM does not say its defaults where it did.
    """
    own = EngineArgs.__dict__.get("get_batch_defaults")
    if not isinstance(own, classmethod):
        raise RuntimeError(
            "this vLLM has no EngineArgs.get_batch_defaults, where its default number of sequences is capped for the "
            "device; use a release from 0.26 to 0.33, or name --max-num-seqs"
        )
    inner = own.__func__
    if isinstance(inner, _Capped):
        return
    EngineArgs.get_batch_defaults = classmethod(_Capped(inner, limit))  # type: ignore[assignment]


class _Capped:
    """vLLM's function with the numbers of sequences capped."""

    def __init__(self, inner: Any, limit: int) -> None:
        functools.update_wrapper(self, inner)
        self._inner = inner
        self._limit = limit

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return functools.partial(self, instance)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        tokens, sequences = self._inner(*arguments, **named)
        # vLLM falls back on a number of its own for a use that is not listed.
        everywhere: dict[Any, int] = dict.fromkeys((None, *UsageContext), self._limit)
        return tokens, {**everywhere, **{context: min(count, self._limit) for context, count in sequences.items()}}
