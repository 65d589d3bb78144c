"""The attention kernels on the emulated card: its rules kept, eager and compiled alike, nothing compiled late."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stepshape.adapters.emulator import spyre
from stepshape.adapters.torch_spyre.compile import CountingBackend, TorchCompiler, raise_dynamo_limits
from stepshape.domain.attention_plan import DecodeForm
from stepshape.domain.buckets import Ladder
from stepshape.domain.warmup import BodyRows, warmup_plan
from stepshape.ports.compiler import Uncompiled

from ..attention_cases import batch, layer, reference, shapes

MIXED = [(1, 0), (1, 63), (40, 100), (1, 64), (1, 700), (70, 0), (1, 300)]


@pytest.fixture
def compiler(spyre_card: torch.device) -> TorchCompiler:
    torch.set_num_threads(1)
    raise_dynamo_limits()
    return TorchCompiler(CountingBackend(spyre.checking_backend()))


@pytest.mark.parametrize(
    ("form", "soft_cap", "window"),
    [
        (DecodeForm.FLAT, 0.0, None),
        (DecodeForm.FLAT, 3.0, 200),
        (DecodeForm.RECTANGULAR, 3.0, 200),
        (DecodeForm.OFF, 3.0, 200),
    ],
)
def test_eager_and_compiled_keep_the_cards_rules_and_agree_to_the_bit(
    spyre_card: torch.device, compiler: TorchCompiler, form: DecodeForm, soft_cap: float, window: int | None
) -> None:
    cases = batch(MIXED)
    ladders = shapes(decode=form).for_pool(cases.pool)
    outs = []
    for how in (Uncompiled(), compiler):
        one = layer(ladders, soft_cap=soft_cap, window=window, device=spyre_card, compiler=how)
        outs.append(one.run(cases, body=128))
        assert torch.equal(outs[-1], one.run(cases, body=128, poison=float("nan")))
        assert torch.equal(outs[-1], one.run(cases, body=128, poison=6e4))
    assert torch.equal(outs[0], outs[1])
    assert (outs[0][: cases.rows].float() - reference(cases, 0.125, soft_cap, window)).abs().max() < 4e-3


@pytest.mark.parametrize("form", [DecodeForm.FLAT, DecodeForm.OFF])
def test_the_order_of_a_compiled_batch_moves_no_bit(
    spyre_card: torch.device, compiler: TorchCompiler, form: DecodeForm
) -> None:
    """Only compiled did every sequence but the first read wrong pages, where index rows were slices of one table."""
    cases = batch([(1, 200), (1, 10), (33, 90), (1, 64), (20, 3)])
    one = layer(shapes(decode=form).for_pool(cases.pool), device=spyre_card, compiler=compiler)
    starts = np.cumsum([0, *cases.query_lens])
    rows = one.run(cases)
    for order in ([4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        moved = one.run(cases.ordered(order))
        expected = torch.cat([rows[starts[i] : starts[i + 1]] for i in order])
        assert torch.equal(moved, expected)


def test_a_step_goes_up_in_three_copies_whatever_the_layers_and_windows(spyre_card: torch.device) -> None:
    cases = batch(MIXED)
    one = layer(shapes().for_pool(cases.pool), window=70, device=spyre_card)
    one.tables(cases, 128)
    spyre.reset_counters()
    step = one.tables(cases, 128)
    assert spyre.counters().host_to_device == step.copies == 3
    k_pages, v_pages = (pages.to(spyre_card) for pages in cases.pages(torch.float16))
    query = torch.zeros(128, 6, 64, dtype=torch.float16).to(spyre_card)
    spyre.reset_counters()
    with torch.inference_mode():
        for _ in range(4):
            one.attention.attend(query, k_pages, v_pages, step)
    seen = spyre.counters()
    assert seen.host_to_device == seen.device_to_host == 0, "nothing is made again for a layer"


def test_after_the_warm_up_plan_no_step_compiles(spyre_card: torch.device, compiler: TorchCompiler) -> None:
    """Every variant once, then steps of all kinds: neither a graph nor an eager operator is compiled."""
    pool, windows, body = 60, (None, 90), Ladder((4, 48))
    ladders = shapes(
        max_model_len=300,
        max_num_seqs=4,
        max_num_batched_tokens=48,
        query=Ladder((1, 48)),
        blocks=Ladder((2, 5)),
        entries=Ladder((6, 11, 21)),
    ).for_pool(pool)
    layers = [
        layer(ladders, heads=2, window=window, windows=windows, body=body, device=spyre_card, compiler=compiler)
        for window in windows
    ]

    def serve(lens: list[tuple[int, int]], seed: int) -> None:
        cases = batch(lens, heads=2, kv_heads=1, pool=pool, seed=seed)
        rows = body.fit(cases.rows)
        assert rows is not None
        for one in layers:
            one.run(cases, body=rows)

    for step in warmup_plan(ladders, windows, body).steps:
        if isinstance(step.warms, BodyRows):
            serve([(step.warms.rows, 0)], 0)
        else:
            serve(list(zip(step.query_lens, step.context_lens, strict=True)), 0)
    assert compiler.backend.artifacts > 0
    spyre.reset_counters()
    compiler.backend.seal()
    random = np.random.default_rng(0)
    for seed in range(30):
        rows = [1 if random.random() < 0.5 else int(random.integers(1, 12)) for _ in range(int(random.integers(1, 5)))]
        serve([(count, int(random.integers(0, 301 - count))) for count in rows], seed)
    seen = spyre.counters()
    assert compiler.backend.late == 0
    assert seen.artifacts == {} and seen.eager_kernels == {}
