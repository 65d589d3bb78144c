"""Every limit of the card broken by name, eager and compiled; and its neighbours that are allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from stepshape.adapters.emulator import spyre
from stepshape.adapters.emulator.spyre.checks import Call, judge
from stepshape.adapters.emulator.spyre.coverage import Verdict
from stepshape.adapters.torch_spyre.limits import probe, probe_all
from stepshape.domain.spyre_limits import Limit, LimitBroken
from stepshape.plugins.command_line.main import main

HALF = torch.float16
CARD = "spyre"


def ones(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype, device=CARD)


def rows(*numbers: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype).to(CARD)


def compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    torch._dynamo.reset()
    with torch.inference_mode():
        return torch.compile(function, backend=spyre.checking_backend(), dynamic=False, fullgraph=True)(*arguments)


@pytest.mark.parametrize("limit", list(Limit), ids=lambda limit: limit.text.name)
def test_each_probe_shows_its_limit_by_name(spyre_card: torch.device, limit: Limit) -> None:
    outcome = probe(limit, device=spyre_card, backend=spyre.checking_backend(), collective=spyre.check_collective)
    assert outcome.holds is True
    if limit is not Limit.UNWRITTEN_MEMORY:
        assert limit.text.name in outcome.said and limit.text.mend in outcome.said


def test_the_probes_of_a_card_without_limits_run_through() -> None:
    host = {outcome.limit: outcome.holds for outcome in probe_all(device=torch.device("cpu"), backend="eager")}
    assert host[Limit.EAGER_CAST] is False and host[Limit.COMPILED_ONLY] is False
    assert host[Limit.INT_OFFSET] is False and host[Limit.FP32_MATMUL] is False
    assert host[Limit.COLLECTIVE_WIDTH] is None


def test_the_command_probes_the_emulated_card(
    spyre_card: torch.device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("STEPSHAPE_TT_DEVICE", raising=False)
    monkeypatch.setenv("STEPSHAPE_SPYRE_DEVICE", "emulated")
    assert main(["spyre", "limits", "--probe"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(Limit) and all("holds" in line for line in printed)


EAGER_BREAKS: list[tuple[Limit, Callable[[], Any]]] = [
    (Limit.MIXED_DEVICES, lambda: torch.cat([ones(2, 64), torch.ones(2, 64, dtype=HALF)])),
    (Limit.MIXED_DEVICES, lambda: ones(4, 64)[torch.tensor([1, 2])]),
    (Limit.DTYPE, lambda: torch.ones(4, dtype=torch.float64).to(CARD)),
    (Limit.DTYPE, lambda: torch.zeros(4, dtype=torch.int8, device=CARD)),
    (Limit.EAGER_CAST, lambda: ones(4, 64).to("cpu", torch.float32)),
    (Limit.EAGER_CAST, lambda: rows(1, 2).long()),
    (Limit.INT_OFFSET, lambda: ones(8, 64).index_select(0, rows(1, 2, 3, 4)[1:3])),
    (Limit.INT_OFFSET, lambda: rows(1, 2, 3)[1:] + 1),
    (Limit.STICK_OFFSET, lambda: torch.ones(4, 64).to(CARD)[:, 16:48] * 2),
    (Limit.EAGER_INDEX, lambda: ones(8, 64).index_copy_(0, rows(1, 2), ones(2, 64))),
    (Limit.FP32_MATMUL, lambda: torch.ones(2, 4, 64).to(CARD) @ torch.ones(2, 64, 64).to(CARD)),
    (Limit.MATMUL_STICKS, lambda: torch.addmm(ones(64), ones(4, 32), ones(32, 64))),
    (Limit.MATMUL_STICKS, lambda: torch.bmm(ones(2, 4, 64), ones(2, 64, 80))),
    (Limit.LM_HEAD_WIDTH, lambda: torch.nn.functional.linear(ones(1, 64), ones(32000, 64))),
    (Limit.GATHER_WHOLE, lambda: torch.nn.functional.embedding(rows(0, 1, 2, dtype=torch.int64), ones(3, 64))),
    (Limit.GATHER_WHOLE, lambda: ones(4, 128)[:, torch.arange(128, device=CARD)]),
    (Limit.UNCOVERED_OPERATOR, lambda: ones(4, 64).cummax(0)),
    (Limit.COMPILED_ONLY, lambda: ones(4, 64).t().contiguous()),
    (Limit.COMPILED_ONLY, lambda: torch.nn.functional.gelu(ones(4, 64))),
    (Limit.BOOL_TRANSFER, lambda: (ones(64) > 0).cpu()),
    (Limit.DIM0_SLICE, lambda: ones(4, 2, 2, 2, 64)[:3]),
]


@pytest.mark.parametrize(
    ("limit", "call"), EAGER_BREAKS, ids=[f"{a.text.name}-{i}" for i, (a, _) in enumerate(EAGER_BREAKS)]
)
def test_an_eager_call_breaks_it(spyre_card: torch.device, limit: Limit, call: Callable[[], Any]) -> None:
    for _ in range(2):  # what was refused once is refused again
        with pytest.raises(LimitBroken) as broken:
            call()
        assert broken.value.limit is limit


GRAPH_BREAKS: list[tuple[Limit, Callable[..., Any], Callable[[], tuple[Any, ...]]]] = [
    (Limit.MIXED_DEVICES, lambda a, b: a + b.to(CARD), lambda: (ones(64), torch.ones(64, dtype=HALF))),
    (Limit.MIXED_DEVICES, lambda a: a + a.cpu().to(CARD), lambda: (ones(64),)),
    (Limit.STICK_OFFSET, lambda a: a * 2, lambda: (ones(4, 256)[:, 32:160],)),
    (Limit.STICK_OFFSET, lambda a: a[:, 32:96] * 2, lambda: (ones(4, 128),)),
    (Limit.FP32_MATMUL, lambda a, b: (a.float() @ b.float()).half(), lambda: (ones(4, 64), ones(64, 64))),
    (Limit.MATMUL_STICKS, lambda a, b: a @ b, lambda: (ones(4, 96), ones(96, 64))),
    (Limit.LM_HEAD_WIDTH, lambda a, b: a @ b, lambda: (ones(1, 64), ones(64, 32064))),
    (Limit.GATHER_WHOLE, lambda a, b: a.index_select(0, b) + 1, lambda: (ones(2, 64), rows(0, 1))),
    (Limit.GATHER_WHOLE, torch.nn.functional.embedding, lambda: (rows(0, 1, dtype=torch.int64), ones(2, 64))),
    (Limit.UNCOVERED_OPERATOR, lambda a: a.cummax(0)[0], lambda: (ones(4, 64),)),
    (Limit.BOOL_TRANSFER, lambda a, b: torch.where(b, a, 0.0), lambda: (ones(64), ones(64) > 0)),
    (Limit.DIM0_SLICE, lambda a: a.view(4, 2, 2, 2, 64)[1:3] + 1, lambda: (ones(4, 512),)),
    (Limit.BATCHED_MATMUL_DIMS, lambda a, b: a @ b, lambda: (ones(2, 2, 2, 4, 64), ones(2, 2, 2, 64, 64))),
    (Limit.GATHER_SPAN, lambda a, b: a.index_select(0, b), lambda: (ones(1, 1024).expand(1 << 20, 1024), rows(0))),
]


@pytest.mark.parametrize(
    ("limit", "function", "arguments"), GRAPH_BREAKS, ids=[f"{a[0].text.name}-{i}" for i, a in enumerate(GRAPH_BREAKS)]
)
def test_a_graph_breaks_it(
    spyre_card: torch.device, limit: Limit, function: Callable[..., Any], arguments: Callable[[], tuple[Any, ...]]
) -> None:
    with pytest.raises(Exception, match=f"(?s){limit.text.name}: .*{limit.text.mend[:20]}"):
        compiled(function, *arguments())


def test_a_sliced_index_table_breaks_int_offset_whenever_it_comes(spyre_card: torch.device) -> None:
    """The fault that shipped: dynamo keeps the artifact for a table with another offset, the card reads row 0."""
    torch._dynamo.reset()
    gather = torch.compile(
        lambda pages, table: pages.index_select(0, table), backend=spyre.checking_backend(), dynamic=False
    )
    pages, tables = ones(8, 64), torch.zeros(3, 4, dtype=torch.int32).to(CARD)
    with torch.inference_mode():
        gather(pages, tables[0])
        with pytest.raises(LimitBroken, match="int-offset") as broken:
            gather(pages, tables[1])
    assert broken.value.limit is Limit.INT_OFFSET


def test_neighbours_of_the_limits_are_allowed(spyre_card: torch.device) -> None:
    half = ones(4, 256)
    assert (half * torch.tensor(2.0)).sum().item() == 2048
    assert (half[:, 64:192] * 2).shape == (4, 128)
    assert (half[1:3] * 2).shape == (2, 256)
    assert torch.matmul(ones(3, 2, 4, 64), ones(3, 1, 64, 128)).shape == (3, 2, 4, 128)
    assert (ones(1, 64) @ ones(64, 2048 * 16)).shape == (1, 32768)
    assert ones(8, 64).index_select(0, rows(1, 2)).shape == (2, 64)
    assert ones(4, 128)[:, rows(1, 2, 3, 4, dtype=torch.int64)].shape == (4, 4)
    assert torch.where(half > 0, half, 0.0).sum().item() == 1024
    assert ones(8, 64).index_copy_(0, rows(1, dtype=torch.int64), ones(1, 64)).shape == (8, 64)
    assert ones(4, 2, 2, 2, 64)[0].shape == (2, 2, 2, 64)
    spyre.check_collective("all_reduce", ones(4, 64), 2, 2)


def test_what_is_compiled_only_runs_in_a_graph(spyre_card: torch.device) -> None:
    def norm(x: torch.Tensor, slots: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        y = x.float()
        y = (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
        cache.index_copy_(0, slots, y)
        return torch.nn.functional.gelu(y.t().contiguous())

    cache = torch.zeros(8, 64, dtype=HALF, device=CARD)
    out = compiled(norm, ones(3, 64), rows(2, 0, 5), cache)
    assert out.shape == (64, 3)
    assert cache.cpu().sum(1).tolist() == [64.0, 0, 64, 0, 0, 64, 0, 0]


def test_an_opaque_operator_is_judged_as_eager_inside_a_graph(spyre_card: torch.device) -> None:
    @torch.library.custom_op("stepshape_test::cast_inside", mutates_args=())
    def cast_inside(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float32)

    @cast_inside.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(x.shape, dtype=torch.float32, device=x.device)

    with pytest.raises(LimitBroken, match="eager-cast"):
        compiled(lambda x: cast_inside(x) + 1, ones(64))


def test_a_collective_inside_a_graph_is_held_to_sticks(spyre_card: torch.device) -> None:
    name = "_c10d_functional::all_reduce"
    assert judge(Call(name, [ones(4, 128), "sum", "0"], eager=False)) is Verdict.FREE
    with pytest.raises(LimitBroken, match="collective-width"):
        judge(Call(name, [ones(4, 96), "sum", "0"], eager=False))


def test_fallbacks_are_counted_a_call(spyre_card: torch.device) -> None:
    spyre.reset_counters()
    for _ in range(3):
        torch.arange(8, device=CARD)
    ones(64).argmax()
    ones(8, 64).index_copy_(0, rows(1, dtype=torch.int64), ones(1, 64))
    fallbacks = spyre.counters().fallbacks
    assert fallbacks == {"arange": 3, "argmax": 1, "index_copy": 1}


def test_eager_artifacts_are_counted_by_operator_and_shape(spyre_card: torch.device) -> None:
    a, b = ones(4, 64), ones(8, 64)
    spyre.reset_counters(compiled=True)
    for _ in range(3):
        a.mul(2)
        b.mul(2)
    b[4:].mul(2)  # another offset, another artifact
    counted = spyre.counters()
    assert counted.eager_kernels == {("mul", "float16[4, 64]"): 2, ("mul", "float16[8, 64]"): 1}
    assert counted.eager_calls == 7 and counted.compiles == 3
    spyre.reset_counters()
    a.mul(2)
    assert spyre.counters().compiles == 0  # reset counts are no new artifacts
