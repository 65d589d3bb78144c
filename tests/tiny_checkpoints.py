"""Small random checkpoints, saved as real ones are."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

VOCABULARY = 199
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    # Wide enough that greedy choices differ from step to step and are no near ties.
    "initializer_range": 0.3,
    # Tied weights make a random model repeat its last token.
    "tie_word_embeddings": False,
}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "granite": (
        "GraniteConfig",
        {"attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0},
    ),
    "mistral": ("MistralConfig", {"sliding_window": 24}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
    "gemma2": ("Gemma2Config", {"sliding_window": 16, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0}),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "sliding_window": 16,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "gpt_oss": ("GptOssConfig", {"sliding_window": 16, "num_local_experts": 4, "num_experts_per_tok": 2}),
}


def config(kind: str) -> Any:
    name, extra = CONFIGS[kind]
    return getattr(transformers, name)(**{**_SHAPE, **extra})


def save(hf_config: Any, folder: Path, *, seed: int = 0) -> Path:
    """Write random float32 weights for ``hf_config`` to ``folder``."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(hf_config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Some of these initialise to zero, which would hide a fault in them.
            if "bias" in name or "sinks" in name:
                parameter.normal_()
    model.save_pretrained(folder)
    return folder


def greedy(folder: Path, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """What transformers itself generates for each prompt, with its eager attention (it knows caps and sinks)."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    texts = []
    for prompt in prompts:
        out = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
        )
        texts.append([int(token) for token in out[0, len(prompt) :]])
    return texts
