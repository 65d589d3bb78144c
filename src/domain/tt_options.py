"""The operator's options under ``additional_config["tt"]`` (tenstorrent contract 1.8).

Every problem is found and named, not only the first: a start-up takes long enough that a second failed one is worth
avoiding.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ..ports.sampling import SampleOnDevice


class TraceMode(enum.Enum):
    """Which phases run as captured traces. ``NONE`` also turns overlap off (contract 1.8)."""

    ALL = "all"
    DECODE_ONLY = "decode_only"
    NONE = "none"


class FabricReliability(enum.Enum):
    STRICT_INIT = "STRICT_INIT"
    RELAXED_INIT = "RELAXED_INIT"


class DispatchCoreAxis(enum.Enum):
    ROW = "row"
    COL = "col"


class Optimizations(enum.Enum):
    PERFORMANCE = "performance"
    ACCURACY = "accuracy"


class OptionsError(ValueError):
    """The options cannot be used. ``problems`` holds one sentence each."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


DEFAULT_TRACE_REGION = 50_000_000
"""Bytes set aside for traces where the operator names none (contract 1.8)."""


@attrs.frozen(kw_only=True)
class TTOptions:
    """Typed options with the contract's defaults. Sizes are bytes, steps are engine steps."""

    sample_on_device_mode: SampleOnDevice = SampleOnDevice.OFF
    always_compat_sampling: bool = False
    """Every row is sampled on the host, whatever the device could do."""
    register_test_models: bool = False
    trace_mode: TraceMode = TraceMode.ALL
    enable_model_warmup: bool = True
    trace_region_size: int = DEFAULT_TRACE_REGION
    worker_l1_size: int | None = None
    l1_small_size: int | None = None
    fabric_config: str | None = None
    """A ``ttnn.FabricConfig`` member's name; None: by cluster."""
    fabric_reliability_mode: FabricReliability | None = None
    """None: what the model asks for, else STRICT_INIT."""
    dispatch_core_axis: DispatchCoreAxis | None = None
    optimizations: Optimizations | None = None
    decode_interleave_enabled: bool = True
    decode_interleave_prefill_steps: int = 2
    decode_interleave_decode_steps: int = 1

    @property
    def sampler(self) -> SampleOnDevice:
        """What the device may sample once ``always_compat_sampling`` has had its say."""
        return SampleOnDevice.OFF if self.always_compat_sampling else self.sample_on_device_mode


LAUNCHER_KEYS = ("rank_binding", "mpi_args", "extra_ttrun_args", "config_pkl_dir", "env_passthrough")
"""Options of the multi-host launcher (contract 7.7)."""


class _UnreadableError(ValueError):
    """Why one value cannot be used: the text after the key."""


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _UnreadableError(f"is {value!r} ({type(value).__name__}), not a bool; use true or false")
    return value


def _integer(least: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _UnreadableError(f"is {value!r} ({type(value).__name__}), not an int; use a whole number >= {least}")
        if value < least:
            raise _UnreadableError(f"is {value}, below {least}; use a whole number >= {least}")
        return value

    return read


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _UnreadableError(f"is {value!r} ({type(value).__name__}), not a str; use a name")
    if not value:
        raise _UnreadableError("is empty; use a name or leave the option out")
    return value


def _member(kind: type[enum.Enum], hidden: tuple[enum.Enum, ...] = ()) -> Callable[[Any], enum.Enum]:
    allowed = {str(member.value): member for member in kind if member not in hidden}

    def read(value: Any) -> enum.Enum:
        choices = ", ".join(allowed)
        if not isinstance(value, str):
            raise _UnreadableError(f"is {value!r} ({type(value).__name__}), not a str; use one of {choices}")
        if value not in allowed:
            raise _UnreadableError(f"is {value!r}; use one of {choices}")
        return allowed[value]

    return read


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "sample_on_device_mode": _member(SampleOnDevice, hidden=(SampleOnDevice.OFF,)),
    "always_compat_sampling": _boolean,
    "register_test_models": _boolean,
    "trace_mode": _member(TraceMode),
    "enable_model_warmup": _boolean,
    "trace_region_size": _integer(0),
    "worker_l1_size": _integer(1),
    "l1_small_size": _integer(0),
    "fabric_config": _text,
    "fabric_reliability_mode": _member(FabricReliability),
    "dispatch_core_axis": _member(DispatchCoreAxis),
    "optimizations": _member(Optimizations),
    "decode_interleave_enabled": _boolean,
    "decode_interleave_prefill_steps": _integer(1),
    "decode_interleave_decode_steps": _integer(1),
}
_NULLABLE = frozenset(
    field.name
    for field in attrs.fields(TTOptions)
    if field.default is None or field.name == "sample_on_device_mode"
)


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(key, list(_READERS), n=1, cutoff=0.5)
    mend = f"did you mean {near[0]}?" if near else f"the options are {', '.join(sorted(_READERS))}"
    return f"additional_config.tt has no option {key!r}; {mend}"


def read_tt_options(additional_config: Any) -> TTOptions:
    """Read ``additional_config["tt"]``; missing: all defaults. JSON null counts as "left out" where the default is
    "unset".

    Raises :class:`OptionsError` with a sentence for each problem: a container that is no dict, an unknown key (with the
    nearest known one), a wrong type (naming the type that came), a value outside its range.
    """
    if not isinstance(additional_config, Mapping):
        raise OptionsError(
            (f"additional_config is a {type(additional_config).__name__}, not a dict; pass a JSON object",)
        )
    near = [key for key in map(str, additional_config) if key != "tt" and key.lower().partition(".")[0] == "tt"]
    if near:
        raise OptionsError(
            (f'additional_config has {near[0]!r}, which nothing reads; put the options in one object under "tt"',)
        )
    section = additional_config.get("tt", {})
    if not isinstance(section, Mapping):
        raise OptionsError((f"additional_config.tt is a {type(section).__name__}, not a dict; pass a JSON object",))
    values: dict[str, Any] = {}
    problems: list[str] = []
    for raw_key, value in section.items():
        key = str(raw_key)
        if key in LAUNCHER_KEYS:
            problems.append(
                f"additional_config.tt.{key}: multi-host launch is not supported yet; leave the option out and "
                "serve from one host"
            )
        elif key not in _READERS:
            problems.append(_unknown(key))
        elif value is not None or key not in _NULLABLE:
            try:
                values[key] = _READERS[key](value)
            except _UnreadableError as problem:
                problems.append(f"additional_config.tt.{key} {problem}")
    if problems:
        raise OptionsError(tuple(problems))
    return TTOptions(**values)
