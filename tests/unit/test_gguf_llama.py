"""A GGUF Llama is read back as the Hugging Face model it was made from, or refused with a reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGUFWriter
from hypothesis import given
from hypothesis import strategies as st

from stepshape.adapters.checkpoints.errors import CheckpointError
from stepshape.adapters.checkpoints.gguf_llama import GgufLlama, hugging_face_name, unpermute_rotary
from stepshape.adapters.checkpoints.gguf_tokenizer import tokenizer_config, tokenizer_json

HIDDEN, HEADS, KEY_VALUE_HEADS = 16, 4, 2


def permute_as_llama_cpp(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """What llama.cpp's converter does to a query or key projection."""
    rows, hidden = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, hidden).swapaxes(1, 2).reshape(rows, hidden)


def write_gguf(
    path: Path, weights: dict[str, npt.NDArray[np.float32]], architecture: str = "llama", **extra: str
) -> Path:
    """Write a one-layer model with two tokens and a merge; ``extra`` are string values by key, dots as underscores."""
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_VALUE_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(extra.pop("pre", "smollm"))
    writer.add_token_list(["<end>", "a", "b", "ab", "<tool>"])
    writer.add_token_types([3, 1, 1, 1, 4])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages }}")
    for key, value in extra.items():
        writer.add_string(key.replace("_", "."), value)
    for name, weight in weights.items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_weight(*shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


@given(heads=st.integers(1, 4), half=st.integers(1, 4), hidden=st.integers(1, 3))
def test_unpermuting_undoes_the_permutation_of_llama_cpp(heads: int, half: int, hidden: int) -> None:
    weight = np.arange(heads * 2 * half * hidden, dtype=np.float32).reshape(-1, hidden)
    np.testing.assert_array_equal(unpermute_rotary(permute_as_llama_cpp(weight, heads), heads), weight)


def test_queries_and_keys_are_unpermuted_by_their_own_head_counts_and_the_rest_is_left_alone(tmp_path: Path) -> None:
    query, key = random_weight(HIDDEN, HIDDEN), random_weight(HIDDEN // 2, HIDDEN)
    path = write_gguf(
        tmp_path / "model.gguf",
        {
            "token_embd.weight": random_weight(5, HIDDEN),
            "blk.0.attn_q.weight": permute_as_llama_cpp(query, HEADS),
            "blk.0.attn_k.weight": permute_as_llama_cpp(key, KEY_VALUE_HEADS),
            "blk.0.attn_v.weight": key,
        },
    )
    tensors = dict(GgufLlama(path).tensors())
    np.testing.assert_array_equal(tensors["model.layers.0.self_attn.q_proj.weight"], query)
    np.testing.assert_array_equal(tensors["model.layers.0.self_attn.k_proj.weight"], key)
    np.testing.assert_array_equal(tensors["model.layers.0.self_attn.v_proj.weight"], key)
    np.testing.assert_array_equal(tensors["model.embed_tokens.weight"], random_weight(5, HIDDEN))


@pytest.mark.parametrize("tied", [True, False])
def test_the_config_says_what_the_file_says(tmp_path: Path, tied: bool) -> None:
    weights = {"token_embd.weight": random_weight(5, HIDDEN)}
    if not tied:
        weights["output.weight"] = random_weight(5, HIDDEN)
    config = GgufLlama(write_gguf(tmp_path / "model.gguf", weights)).config()
    assert config["tie_word_embeddings"] is tied
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 4)
    assert config["rms_norm_eps"] == 1e-5, "a float32 read as a float64 shows digits that nobody wrote"
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (0, 0, None)
    assert config["vocab_size"] == 5


def test_control_tokens_are_special_and_user_defined_ones_are_plain_added_tokens(tmp_path: Path) -> None:
    model = GgufLlama(write_gguf(tmp_path / "model.gguf", {}))
    document = tokenizer_json(model)
    assert [(token["id"], token["special"]) for token in document["added_tokens"]] == [(0, True), (4, False)]
    assert document["model"]["merges"] == [["a", "b"]]
    config = tokenizer_config(model)
    assert config["eos_token"] == "<end>"
    assert "pad_token" not in config
    assert config["chat_template"] == "{{ messages }}"


@pytest.mark.parametrize(
    "name", ["blk.0.attn_q.bias", "blk.0.ffn_gate_exps.weight", "rope_freqs.weight", "blk.x.attn_q.weight"]
)
def test_a_tensor_that_a_plain_llama_lacks_is_refused_by_name(name: str) -> None:
    with pytest.raises(CheckpointError, match=f"tensor {name} has no place"):
        hugging_face_name(name)


def test_what_is_not_converted_is_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds a qwen2; only llama"):
        GgufLlama(write_gguf(tmp_path / "architecture.gguf", {}, architecture="qwen2"))
    with pytest.raises(CheckpointError, match="scales its rotary frequencies"):
        GgufLlama(write_gguf(tmp_path / "scaled.gguf", {}, llama_rope_scaling_type="yarn"))
    with pytest.raises(CheckpointError, match="the tokenizer gpt2/llama-bpe is not converted"):
        tokenizer_json(GgufLlama(write_gguf(tmp_path / "tokenizer.gguf", {}, pre="llama-bpe")))
    (tmp_path / "torn.gguf").write_bytes(b"GGUF\x03")
    with pytest.raises(CheckpointError, match="is not a readable GGUF file"):
        GgufLlama(tmp_path / "torn.gguf")
    with pytest.raises(CheckpointError, match="is not a readable GGUF file"):
        GgufLlama(tmp_path / "absent.gguf")
