"""Random checkpoints that vLLM and ``transformers`` both load: small, seeded, with a tokenizer and a chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TINY_VOCAB = 300

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def _write_tokenizer(folder: Path, size: int) -> None:
    """A byte-level BPE tokenizer: specials first, then the 256 bytes, then merges up to ``size`` ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate((*_SPECIAL, *alphabet))}
    letters = "etaoinshrdlucmfwypvbgk"
    merges: list[tuple[str, str]] = []
    for pair in ((a, b) for a in ("Ġ", *letters) for b in letters):
        if len(vocab) >= size:
            break
        merges.append(pair)
        vocab["".join(pair)] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|im_end|>",
                "pad_token": "<|endoftext|>",
                "chat_template": _TEMPLATE,
                "clean_up_tokenization_spaces": False,
            }
        )
    )


def tiny_llama(
    folder: Path,
    *,
    seed: int = 0,
    vocab_size: int = TINY_VOCAB,
    hidden_size: int = 64,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    max_position: int = 2048,
    **overrides: Any,
) -> Path:
    """Write a float32 ``LlamaForCausalLM`` with seeded random weights into ``folder`` and return it.

    Head size is ``hidden_size // num_heads``. The weights are wide (0.2), so greedy text depends on the whole
    context and does not settle into one token. ``overrides`` go to ``LlamaConfig``. Every token id has a text;
    ``<|im_end|>`` (id 2) is the end token, so a test that wants a length passes ``ignore_eos``.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "max_position_embeddings": max_position,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
        "dtype": "float32",
    }
    settings.update(overrides)
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        build: Any = LlamaForCausalLM
        model = build(LlamaConfig(**settings)).float()
    model.save_pretrained(folder, safe_serialization=True)
    _write_tokenizer(folder, vocab_size)
    return folder
