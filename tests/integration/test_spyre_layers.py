"""Each layer on the emulated card against a plain fp32 reference, its padded lanes and rows poisoned.

The tolerance is relative to the largest magnitude of the reference: fp16 has 11 bits, so one rounding is at most 2^-11,
and each test names how many of them its layer adds up.
"""

from __future__ import annotations

import attrs
import pytest
import torch
from torch import Tensor

from stepshape.adapters.torch_spyre.layers import activations, embedding, linears, norms, rotary, widening
from stepshape.domain.head_padding import Widening, head_widening, mlp_widening

ROUNDING = 2.0**-11
ROWS = 6
POISON = float("nan")


def up(x: Tensor, card: torch.device) -> Tensor:
    return x.half().to(card)


def down(x: Tensor) -> Tensor:
    return x.to("cpu").float()


def near(got: Tensor, want: Tensor, roundings: int) -> None:
    """``got`` within ``roundings`` fp16 roundings of the largest of ``want``."""
    assert torch.isfinite(got).all()
    assert (got - want).abs().max() <= roundings * ROUNDING * want.abs().max()


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Random numbers that fp16 holds exactly, so that the reference starts from the same ones."""
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).half().float()


def poisoned(x: Tensor) -> Tensor:
    """``x`` with two rows of NaN after it: the body's padding."""
    return torch.cat([x, torch.full((2, *x.shape[1:]), POISON)])


@pytest.mark.parametrize("out", [64, 100, 192])
@pytest.mark.parametrize("biased", [False, True])
def test_a_transposed_linear_is_the_linear(spyre_card: torch.device, out: int, biased: bool) -> None:
    x, weight, bias = numbers(ROWS, 128), numbers(out, 128, seed=1, scale=0.1), numbers(out, seed=2)
    stored = up(linears.transposed(weight), spyre_card)
    got = down(linears.linear(up(poisoned(x), spyre_card), stored, up(bias, spyre_card) if biased else None))
    near(got[:ROWS], torch.nn.functional.linear(x, weight, bias if biased else None), 2)


def test_an_lm_head_shows_no_padded_column(spyre_card: torch.device) -> None:
    x, weight = numbers(ROWS, 64), numbers(300, 64, seed=1, scale=0.1)
    stored = linears.transposed(weight, linears.HEAD_ROWS)
    assert stored.shape == (64, 2048) and not stored[:, 300:].any()
    stored[:, 300:] = 6e4  # what a padded column must not bring in
    got = down(linears.head_logits(up(x, spyre_card), up(stored, spyre_card), 300))
    near(got, x @ weight.t(), 1)


def reference_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


@pytest.mark.parametrize("scale", [1e-3, 1.0, 400.0, 1.5e4])
@pytest.mark.parametrize("gemma", [False, True])
def test_a_norm_neither_overflows_nor_vanishes(spyre_card: torch.device, scale: float, gemma: bool) -> None:
    """At 400 the square of an activation is no fp16 any more; the public norm then gives zeros."""
    x, weight = numbers(ROWS, 576, scale=scale), numbers(576, seed=1)
    norm = norms.gemma_rms_norm if gemma else norms.rms_norm
    got = down(norm(up(poisoned(x), spyre_card), up(weight, spyre_card), 1e-5))
    near(got[:ROWS], reference_norm(x, weight + 1.0 if gemma else weight, 1e-5), 6)


def test_a_row_of_zeros_stays_zeros(spyre_card: torch.device) -> None:
    got = down(norms.rms_norm(up(torch.zeros(2, 64), spyre_card), None, 1e-6))
    assert not got.any()


def test_the_norm_of_a_padded_head_divides_by_its_real_width(spyre_card: torch.device) -> None:
    heads = Widening(64, 128)
    x, weight = numbers(ROWS, 64), numbers(64, seed=1)
    lanes = torch.tensor(heads.rotary_lanes())
    wide, wide_weight = torch.zeros(ROWS, 128), torch.full((128,), 6e4)
    wide[:, lanes], wide_weight[lanes] = x, weight
    got = down(norms.rms_norm(up(wide, spyre_card), up(wide_weight, spyre_card), 1e-6, heads.orig))
    near(got[:, lanes], reference_norm(x, weight, 1e-6), 6)
    rest = torch.ones(128, dtype=torch.bool)
    rest[lanes] = False
    assert not got[:, rest].any()


def rotate_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x`` [T, H, D] as the checkpoints' own code does it."""
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * torch.cat([cos, cos], -1).unsqueeze(1) + turned * torch.cat([sin, sin], -1).unsqueeze(1)


def cos_sin(positions: int, size: int) -> Tensor:
    angles = torch.arange(positions).unsqueeze(1) * 10000.0 ** (-torch.arange(0, size, 2) / size)
    return torch.cat([angles.cos(), angles.sin()], -1).half().float()


@pytest.mark.parametrize("size", [128, 64, 16])
def test_two_by_two_rotation_is_rotate_half(spyre_card: torch.device, size: int) -> None:
    heads = head_widening(size)
    table = cos_sin(32, size)
    x = numbers(ROWS, 3, size)
    positions = torch.tensor([0, 1, 5, 31, 7, 2])
    lanes = torch.tensor(heads.rotary_lanes())
    wide = torch.zeros(ROWS, 3, heads.padded)
    wide[..., lanes] = x
    cache = up(rotary.rotation_cache(table, heads.padded), spyre_card)
    matrices = rotary.rotations(cache, positions.to(spyre_card))
    got = down(rotary.rotate(up(wide.reshape(ROWS, -1), spyre_card), matrices)).view(ROWS, 3, heads.padded)
    cos, sin = table[positions].chunk(2, -1)
    near(got[..., lanes], rotate_half(x, cos, sin), 3)
    rest = torch.ones(heads.padded, dtype=torch.bool)
    rest[lanes] = False
    assert not got[..., rest].any()


def test_as_many_tokens_as_positions_is_no_whole_gather(spyre_card: torch.device) -> None:
    cache = up(rotary.rotation_cache(cos_sin(8, 128), 128), spyre_card)
    assert rotary.rotations(cache, torch.arange(8).to(spyre_card)).shape == (8, 2, 2, 64)


@attrs.define
class Shard:
    org_vocab_start_index: int
    org_vocab_end_index: int
    added_vocab_start_index: int
    added_vocab_end_index: int
    num_org_vocab_padding: int


def test_the_embedding_is_the_sum_of_its_shards(spyre_card: torch.device) -> None:
    """100 ids and 4 added ones over two ranks, each rank's part padded to 64 rows and its padding poisoned."""
    table = numbers(104, 64)
    shards = [Shard(0, 50, 100, 102, 14), Shard(50, 100, 102, 104, 14)]
    ids = torch.tensor([0, 49, 50, 99, 100, 102, 103, 1])
    whole = torch.zeros(len(ids), 64)
    for shard in shards:
        stored = torch.full((68, 64), 6e4)
        stored[:50] = table[shard.org_vocab_start_index : shard.org_vocab_end_index]
        stored[64:66] = table[shard.added_vocab_start_index : shard.added_vocab_end_index]
        reindex, keep = embedding.shard_tables(shard, 104, torch.float16)
        part = embedding.embed_shard(
            ids.to(spyre_card), up(stored, spyre_card), reindex.to(spyre_card), keep.to(spyre_card)
        )
        whole += down(part)
    assert torch.equal(whole, table[ids])
    assert torch.equal(down(embedding.embed(ids.to(spyre_card), up(table, spyre_card))), table[ids])


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_a_gated_gelu_is_torchs(spyre_card: torch.device, scale: float) -> None:
    x = numbers(ROWS, 128, scale=scale)
    gate, up_half = x.chunk(2, -1)
    up_half.clamp_(-50, 50)
    want = torch.nn.functional.gelu(gate, approximate="tanh") * up_half
    near(down(activations.gelu_tanh_and_mul(up(poisoned(x), spyre_card)))[:ROWS], want, 8)


@pytest.mark.parametrize("size", [16, 64, 96])
def test_attention_in_padded_heads_is_attention(spyre_card: torch.device, size: int) -> None:
    """Projections widened as a checkpoint's are, one head each, down to the output projection."""
    heads = head_widening(size)
    hidden = 64
    x = numbers(ROWS, hidden)
    weights = {
        f"l.{part}_proj.weight": numbers(*shape, seed=seed, scale=0.1)
        for seed, (part, shape) in enumerate(
            {"q": (size, hidden), "k": (size, hidden), "v": (size, hidden), "o": (hidden, size)}.items()
        )
    }

    def attend(read: dict[str, Tensor], scale: float) -> Tensor:
        q, k, v = (x @ read[f"l.{part}_proj.weight"].t() for part in "qkv")
        return torch.softmax(q @ k.t() * scale, -1) @ v @ read["l.o_proj.weight"].t()

    wide = {name: widening.widen_heads(name, weight, heads, 1, 1) for name, weight in weights.items()}
    assert wide["l.q_proj.weight"].shape == (heads.padded, hidden)
    assert wide["l.o_proj.weight"].shape == (hidden, heads.padded)
    torch.testing.assert_close(attend(wide, size**-0.5), attend(weights, size**-0.5))
    fused = torch.cat([weights[f"l.{part}_proj.weight"] for part in "qkv"])
    parts = torch.cat([wide[f"l.{part}_proj.weight"] for part in "qkv"])
    assert torch.equal(widening.widen_heads("l.qkv_proj.weight", fused, heads, 1, 1), parts)


def test_a_padded_mlp_is_the_mlp(spyre_card: torch.device) -> None:
    columns = mlp_widening(100)
    assert columns == Widening(100, 128)
    x = numbers(ROWS, 64)
    gate, up_weight, down_weight = numbers(100, 64, scale=0.1), numbers(100, 64, seed=1), numbers(64, 100, seed=2)
    fused = widening.widen_mlp("mlp.gate_up_proj.weight", torch.cat([gate, up_weight]), columns)
    assert torch.equal(fused[:128], widening.widen_mlp("mlp.gate_proj.weight", gate, columns))
    stored = [linears.transposed(w) for w in (fused, widening.widen_mlp("mlp.down_proj.weight", down_weight, columns))]
    inner = linears.linear(up(x, spyre_card), up(stored[0], spyre_card))
    inner = torch.nn.functional.silu(inner[:, :128]) * inner[:, 128:]
    want = (torch.nn.functional.silu(x @ gate.t()) * (x @ up_weight.t())) @ down_weight.t()
    near(down(linears.linear(inner, up(stored[1], spyre_card))), want, 8)


def test_other_weights_pass_through() -> None:
    weight = numbers(8, 8)
    for name in ("model.norm.weight", "lm_head.weight", "l.q_proj.qzeros"):
        assert widening.widen_heads(name, weight, Widening(64, 128), 1, 1) is weight
        assert widening.widen_mlp(name, weight, Widening(100, 128)) is weight


def test_a_checkpoint_that_does_not_fit_its_config_is_named() -> None:
    with pytest.raises(ValueError, match="70 rows are no whole number of heads of 64 lanes"):
        widening.widen_heads("l.q_proj.weight", numbers(70, 8), Widening(64, 128), 1, 1)
