"""The members of a tt-metal model object, looked up and checked once."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from ...ports.capabilities import ModelCapabilities

Call = Callable[..., Any]

PREFILL = ("tokens", "page_table", "kv_cache", "enable_trace", "prompt_lens", "start_pos", "empty_slots")
DECODE = ("tokens", "start_pos", "page_table", "kv_cache", "enable_trace", "read_from_device")
RELOADS = ("reload_inputs", "reload_page_table", "reload_sampling_params", "reset_sampling_state")
WARM_PREFILL = ("kv_cache", "can_sample_on_device", "enable_trace")
WARM_DECODE = ("kv_cache", "max_batch_size", "num_blocks", "can_sample_on_device", "enable_trace")
"""What every call of a member gives it (contract 3)."""


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

    def taking(name: str, call: Call, words: Sequence[str], places: int = 0) -> Call:
        """``call`` if it can be called as it will be; what is sent only at times is left to that time."""
        try:
            signature = inspect.signature(call)
        except (TypeError, ValueError):  # of a built-in, which does not tell
            return call
        try:
            signature.bind(*[None] * places, **dict.fromkeys(words))
        except TypeError as error:
            asked = ", ".join(words) if words else f"{places} values"
            raise ModelContractError(
                f"{owner}.{name} cannot be called as the contract says ({error}); it is given {asked}"
            ) from error
        return call

    version = getattr(model, "decode_input_update_contract", 0)
    if type(version) is not int or version not in (0, 1):
        raise ModelContractError(
            f"{owner}.decode_input_update_contract is {version!r}; declare 1 for reload commands or 0 for reset_batch"
        )
    per_layer = member("allocate_kv_cache_per_layer", None)
    late = None
    if capabilities.supports_async_decode or capabilities.supports_async_prefill:
        declared = "supports_async_decode" if capabilities.supports_async_decode else "supports_async_prefill"
        late = f"which {declared} needs"
    prefill_words = (*PREFILL, "read_from_device") if capabilities.supports_async_prefill else PREFILL
    decode_words = (*DECODE, *RELOADS) if version == 1 else DECODE
    one_shape = member("allocate_kv_cache", None if per_layer else "nor allocate_kv_cache_per_layer")
    prefill = required("prefill_forward", "which every model needs")
    decode = required("decode_forward", "which every model needs")
    warm_prefill, warm_decode = member("warmup_model_prefill", None), member("warmup_model_decode", None)
    return ModelMembers(
        owner=owner,
        prefill_forward=taking("prefill_forward", prefill, prefill_words),
        decode_forward=taking("decode_forward", decode, decode_words),
        allocate_kv_cache_per_layer=per_layer and taking("allocate_kv_cache_per_layer", per_layer, (), places=1),
        allocate_kv_cache=one_shape and taking("allocate_kv_cache", one_shape, (), places=3),
        warmup_model_prefill=warm_prefill and taking("warmup_model_prefill", warm_prefill, WARM_PREFILL),
        warmup_model_decode=warm_decode and taking("warmup_model_decode", warm_decode, WARM_DECODE),
        read_decode_output=member("read_decode_output", late),
        process_decode_output_host=member("process_decode_output_host", late),
        explicit_reloads=version == 1,
    )
