"""The members of a tt-metal model object, looked up and checked once."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from ...ports.capabilities import ModelCapabilities

Call = Callable[..., Any]


class ModelContractError(TypeError):
    """The model object lacks a member of the generator contract, or has one of another kind."""


@attrs.frozen(kw_only=True)
class ModelMembers:
    """Bound methods of one model object (contract 3)."""

    owner: str
    prefill_forward: Call
    decode_forward: Call
    allocate_kv_cache: Call | None
    allocate_kv_cache_per_layer: Call | None
    warmup_model_prefill: Call | None
    warmup_model_decode: Call | None
    read_decode_output: Call | None
    process_decode_output_host: Call | None
    explicit_reloads: bool
    """``decode_input_update_contract`` is 1: reload commands; False: the legacy ``reset_batch``"""


def read_members(model: Any, capabilities: ModelCapabilities) -> ModelMembers:
    """Check ``model`` against the contract and what it declares. Raises :class:`ModelContractError`."""
    owner = type(model).__name__

    def member(name: str, why: str | None) -> Call | None:
        found = getattr(model, name, None)
        if found is None:
            if why is None:
                return None
            raise ModelContractError(f"{owner} has no {name}, {why}; add the method to the model class")
        if not callable(found):
            raise ModelContractError(f"{owner}.{name} is a {type(found).__name__}, not a method; make it callable")
        call: Call = found
        return call

    def required(name: str, why: str) -> Call:
        call = member(name, why)
        assert call is not None
        return call

    version = getattr(model, "decode_input_update_contract", 0)
    if isinstance(version, bool) or version not in (0, 1):
        raise ModelContractError(
            f"{owner}.decode_input_update_contract is {version!r}; declare 1 for reload commands or 0 for reset_batch"
        )
    per_layer = member("allocate_kv_cache_per_layer", None)
    late = "which supports_async_decode needs" if capabilities.supports_async_decode else None
    return ModelMembers(
        owner=owner,
        prefill_forward=required("prefill_forward", "which every model needs"),
        decode_forward=required("decode_forward", "which every model needs"),
        allocate_kv_cache_per_layer=per_layer,
        allocate_kv_cache=member("allocate_kv_cache", None if per_layer else "nor allocate_kv_cache_per_layer"),
        warmup_model_prefill=member("warmup_model_prefill", None),
        warmup_model_decode=member("warmup_model_decode", None),
        read_decode_output=member("read_decode_output", late),
        process_decode_output_host=member("process_decode_output_host", late),
        explicit_reloads=version == 1,
    )
