"""What a model on the device declares it can do.

Behaviour follows what is declared, never the model's name (design, choice 9). A declaration is checked
once, when the model is resolved, and every problem is reported in one sentence.
"""
from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import attrs


class CapabilityError(ValueError):
    """A model class declares something that cannot be read."""


@attrs.frozen(kw_only=True)
class ModelCapabilities:
    """Typed view of a model class's ``model_capabilities`` (tenstorrent contract 3.6).

    Keys that a class leaves out have the default below; keys we do not know are kept in ``unknown`` so
    that the start-up line can name them.
    """

    supports_sample_on_device: bool = False
    """Decode (and prefill, by mode) can return token ids in place of logits."""
    supports_tokens_and_logits: bool = False
    """One step can return token ids for some rows and logits for others; the sampling path is then per row."""
    supports_async_decode: bool = False
    """Tokens and positions stay resident, and readback may complete one step late."""
    supports_async_prefill: bool = False
    """A prefill may be read back late as well; without it a prefill returns host values at once."""
    supports_prefix_caching: bool = False
    """Prefill accepts ``start_pos`` > 0 for blocks another request has written."""
    supports_chunked_prefill: bool = False
    """Prefill accepts a prompt in several steps."""
    supports_device_penalties: bool = False
    """The device sampler applies penalties by slot. Read and reported; penalties are applied on the host for now."""
    supports_device_seeds: bool = False
    """The n-th token of a seeded row depends on (seed, n) alone, on the device."""
    max_device_top_k: int | None = None
    """Largest ``top_k`` of a stochastic row that the device sampler honours; None: any. 1: greedy only."""
    lane_counts: tuple[int, ...] = ()
    """Lane counts a single-execute model allows on its mesh; empty: the model declares no lanes."""
    decode_batch_sizes: tuple[int, ...] = ()
    """Global decode batch shapes the model captures, ascending; empty: only the full capacity."""
    stateful_slots: bool = False
    """The device keeps recurrent or sampler state per slot (a stateless model holds no slots)."""
    fabric_config: Mapping[str, str | int] | None = None
    """Arguments for ``ttnn.set_fabric_config``, enum members by name; they go before the cluster's default."""
    num_command_queues: int = 1
    """Command queues that the model wants its mesh opened with."""
    unknown: tuple[str, ...] = ()


_BOOLS = tuple(a.name for a in attrs.fields(ModelCapabilities) if a.default is False)


def read_capabilities(declared: Mapping[str, Any] | None, owner: str) -> ModelCapabilities:
    """Check ``declared`` (a class's ``model_capabilities``; None: all defaults) and return the typed view.

    ``owner`` names the model class in errors. Raises :class:`CapabilityError`.
    """
    if declared is None:
        return ModelCapabilities()
    if not isinstance(declared, Mapping):
        raise CapabilityError(
            f"{owner}.model_capabilities is a {type(declared).__name__}; declare a dict of capability names to values"
        )
    values: dict[str, Any] = {}
    unknown: list[str] = []
    for key, value in declared.items():
        if key in _BOOLS:
            if not isinstance(value, bool):
                raise CapabilityError(
                    f"{owner}.model_capabilities[{key!r}] is {value!r}, not a bool; declare True or False"
                )
            values[key] = value
        elif key == "max_device_top_k":
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise CapabilityError(
                    f"{owner}.model_capabilities['max_device_top_k'] is {value!r}; declare None or an int >= 1"
                )
            values[key] = value
        elif key == "fabric_config":
            values[key] = _read_fabric(value, owner)
        elif key == "num_command_queues":
            if isinstance(value, bool) or value not in (1, 2):
                raise CapabilityError(
                    f"{owner}.model_capabilities['num_command_queues'] is {value!r}; declare 1 or 2, which is what a "
                    "mesh has"
                )
            values[key] = value
        elif key in ("lane_counts", "decode_batch_sizes"):
            if not isinstance(value, (tuple, list)) or any(
                isinstance(v, bool) or not isinstance(v, int) or v < 1 for v in value
            ):
                raise CapabilityError(
                    f"{owner}.model_capabilities[{key!r}] is {value!r}; declare a tuple of ints >= 1"
                )
            values[key] = tuple(sorted(set(value)))
        else:
            unknown.append(str(key))
    return ModelCapabilities(**values, unknown=tuple(unknown))


def _read_fabric(value: Any, owner: str) -> dict[str, str | int] | None:
    """Names, numbers, or members of the device library's enums, which become names."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise CapabilityError(
            f"{owner}.model_capabilities['fabric_config'] is a {type(value).__name__}; declare a dict of "
            "set_fabric_config's arguments"
        )
    arguments: dict[str, str | int] = {}
    for name, argument in value.items():
        if isinstance(argument, enum.Enum):
            arguments[str(name)] = argument.name
        elif isinstance(argument, (str, int)) and not isinstance(argument, bool):
            arguments[str(name)] = argument
        else:
            raise CapabilityError(
                f"{owner}.model_capabilities['fabric_config'][{name!r}] is {argument!r}; declare a member's name or an "
                "int"
            )
    return arguments
