"""What the environment asks of the Spyre plugin (spyre contract 1.6), read once and checked as a whole.

A value that is not understood is refused, whether or not it would have mattered in this launch: a typing error must
not be served (contract 8.21).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from .attention_plan import DecodeForm

KV_LADDER = "SPYRE_ATTN_KV_BUCKETS"
QUERY_LADDER = "SPYRE_ATTN_QUERY_BUCKETS"
NUM_SEQS_LADDER = "SPYRE_ATTN_NUM_SEQS_BUCKETS"
ENTRY_LADDER = "STEPSHAPE_SPYRE_ENTRY_BUCKETS"


class Granularity(enum.Enum):
    """What is compiled in one piece."""

    BLOCK = "block"
    """each decoder block, in place"""
    MODEL = "model"
    """the model's whole forward pass"""


class Guard(enum.Enum):
    """What a graph that is compiled while serving does."""

    OFF = "off"
    WARN = "warn"
    ERROR = "error"


@attrs.frozen(kw_only=True)
class SpyreOptions:
    """The checked environment. A ladder is the text of its variable, empty where it is unset: its limits come with a
    model."""

    granularity: Granularity = Granularity.BLOCK
    record_attention: bool = True
    """compile every attention variant before the first request; False: on first use"""
    kv_ladder: str = ""
    """tokens, comma-separated"""
    query_ladder: str = ""
    """tokens, comma-separated"""
    num_seqs_ladder: str = ""
    """sequences, comma-separated"""
    entry_ladder: str = ""
    """(sequence, block) entries of a flat decode, comma-separated"""
    decode: DecodeForm = DecodeForm.FLAT
    max_partial_prefills: int = 1
    """requests that may be in their prompt at once; 0: no cap"""
    guard: Guard = Guard.OFF
    devices: tuple[int, ...] | None = None
    """card of each local rank; None: rank n uses card n"""


class SpyreOptionsError(ValueError):
    """``problems``: one sentence of cause and mend for each variable that is not understood."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def read_spyre_options(environment: Mapping[str, str]) -> SpyreOptions:
    """Read the variables of contract 1.6; unset and empty mean the default. Raises :class:`SpyreOptionsError`."""
    reader = _Reader(environment)
    layout = reader.one_of("SPYRE_ATTN_KV_LAYOUT", ("token_major", "head_major"), "token_major")
    if layout == "head_major":
        reader.problems.append(
            "SPYRE_ATTN_KV_LAYOUT=head_major is not served here, pages are token-major; unset it or use token_major"
        )
    form = reader.one_of("STEPSHAPE_SPYRE_DECODE_FORM", ("flat", "rectangular"), "flat")
    options = SpyreOptions(
        granularity=Granularity(reader.one_of("SPYRE_COMPILE_GRANULARITY", ("block", "model"), "block")),
        record_attention=reader.flag("SPYRE_ATTN_RECORD", True),
        kv_ladder=reader.ladder(KV_LADDER),
        query_ladder=reader.ladder(QUERY_LADDER),
        num_seqs_ladder=reader.ladder(NUM_SEQS_LADDER),
        entry_ladder=reader.ladder(ENTRY_LADDER),
        decode=DecodeForm(form) if reader.flag("SPYRE_BATCHED_DECODE", True) else DecodeForm.OFF,
        max_partial_prefills=reader.count("SPYRE_MAX_NUM_PARTIAL_PREFILLS", 1),
        guard=Guard(reader.one_of("SPYRE_COMPILE_GUARD", ("off", "warn", "error"), "off")),
        devices=reader.numbers("SPYRE_DEVICES", least=0),
    )
    if reader.problems:
        raise SpyreOptionsError(tuple(reader.problems))
    return options


class _Reader:
    """Collects the problems of all variables, so that one start names them all."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.problems: list[str] = []

    def _text(self, name: str) -> str:
        return self._environment.get(name, "").strip()

    def one_of(self, name: str, values: tuple[str, ...], default: str) -> str:
        text = self._text(name)
        if not text:
            return default
        if text not in values:
            self.problems.append(f"{name}={text!r} is not understood; use {' or '.join(values)}")
            return default
        return text

    def flag(self, name: str, default: bool) -> bool:
        text = self._text(name)
        if text not in ("", "0", "1"):
            self.problems.append(f"{name}={text!r} is neither on nor off; use 1 or 0")
        return default if text not in ("0", "1") else text == "1"

    def count(self, name: str, default: int) -> int:
        text = self._text(name)
        if not text:
            return default
        if not text.isdecimal():
            self.problems.append(f"{name}={text!r} is not a count; use a whole number, 0 or more")
            return default
        return int(text)

    def numbers(self, name: str, *, least: int) -> tuple[int, ...] | None:
        text = self._text(name)
        if not text:
            return None
        parts = [part.strip() for part in text.split(",")]
        if any(not part.isdecimal() or int(part) < least for part in parts):
            self.problems.append(
                f"{name}={text!r} is not a list of whole numbers from {least} on; use for example {name}=128,256"
            )
            return None
        return tuple(int(part) for part in parts)

    def ladder(self, name: str) -> str:
        """The text, if it is a ladder at all; which of its sizes can be reached is seen when the limits are known."""
        self.numbers(name, least=1)
        return self._text(name)
