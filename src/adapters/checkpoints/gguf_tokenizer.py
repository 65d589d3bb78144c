"""The byte-level BPE tokenizer of a GGUF file, as ``tokenizer.json`` and ``tokenizer_config.json``.

Written as data, so that no tokenizer library is needed. Source of the pre-tokenizers: ``llama-vocab.cpp``.
"""

from __future__ import annotations

from typing import Any

from .errors import CheckpointError
from .gguf_llama import GgufLlama

_CONTROL, _USER_DEFINED = 3, 4

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "gpt-2": _BYTE_LEVEL,
    # Each digit a token of its own, then the words of GPT-2.
    "smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL]},
}


def tokenizer_json(model: GgufLlama) -> dict[str, Any]:
    """Return ``tokenizer.json``. Raises CheckpointError for a tokenizer of another kind."""
    kind, pre = model.value("tokenizer.ggml.model"), model.value("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in _PRE_TOKENIZERS:
        known = ", ".join(sorted(_PRE_TOKENIZERS))
        raise CheckpointError(f"the tokenizer {kind}/{pre} is not converted here; gpt2 with one of {known} is.")
    tokens: list[str] = model.value("tokenizer.ggml.tokens")
    kinds: list[int] = model.value("tokenizer.ggml.token_type")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": index,
                "content": tokens[index],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": kind == _CONTROL,
            }
            for index, kind in enumerate(kinds)
            if kind in (_CONTROL, _USER_DEFINED)
        ],
        "normalizer": None,
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in model.value("tokenizer.ggml.merges")],
        },
    }


def tokenizer_config(model: GgufLlama) -> dict[str, Any]:
    """Return ``tokenizer_config.json``, with the chat template.

    The class is the one that takes ``tokenizer.json`` as it is; a named one (GPT2Tokenizer) rebuilds it and would lose
    the pre-tokenizer.
    """
    tokens: list[str] = model.value("tokenizer.ggml.tokens")
    special = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: model.value(f"tokenizer.ggml.{key}_token_id") for name, key in special.items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: tokens[index] for name, index in ids.items() if index is not None},
        "add_bos_token": bool(model.value("tokenizer.ggml.add_bos_token", False)),
        "chat_template": model.value("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": model.value("llama.context_length"),
    }
