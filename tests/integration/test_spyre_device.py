"""The emulated card as a device of torch: memory, rounding, random numbers, streams and events, storages."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import pytest
import torch

from stepshape.adapters.emulator import spyre

HALF = torch.float16


def test_fresh_memory_is_poison_unless_told_otherwise(spyre_card: torch.device) -> None:
    for dtype in (HALF, torch.bfloat16, torch.float32):
        assert torch.empty(4, 64, dtype=dtype, device=spyre_card).cpu().isnan().all()
        assert torch.empty_strided((4, 64), (64, 1), dtype=dtype, device=spyre_card).cpu().isnan().all()
    assert (torch.empty(64, dtype=torch.int32, device=spyre_card).cpu() == -1).all()
    spyre.set_fill(0)
    assert (torch.empty(4, 64, dtype=HALF, device=spyre_card).cpu() == 0).all()
    with pytest.raises(ValueError, match="256 is no byte"):
        spyre.set_fill(256)


def test_memory_is_aligned_to_a_stick_whoever_made_it(spyre_card: torch.device) -> None:
    made = [torch.empty(size, dtype=HALF, device=spyre_card) for size in (1, 3, 64, 1000)]
    results = [tensor + 1 for tensor in made] + [torch.ones(7).to(spyre_card)]
    assert all(tensor.data_ptr() % 128 == 0 for tensor in (*made, *results))


@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16])
def test_results_are_float32_results_rounded_to_the_dtype(spyre_card: torch.device, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    left, right = torch.randn(8, 256, dtype=dtype), torch.randn(256, 64, dtype=dtype)
    there = left.to(spyre_card) @ right.to(spyre_card)
    assert there.dtype is dtype and there.device.type == "spyre"
    assert torch.equal(there.cpu(), (left.float() @ right.float()).to(dtype))
    softmax = torch.softmax(left.to(spyre_card), dim=-1)
    assert torch.equal(softmax.cpu(), torch.softmax(left.float(), dim=-1).to(dtype))
    thirds = left.to(spyre_card)
    thirds.div_(3)
    assert torch.equal(thirds.cpu(), (left.float() / 3).to(dtype))


def test_attention_is_one_operator_with_and_without_a_graph(spyre_card: torch.device) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 64, 64, dtype=HALF) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float())
    there = q.to(spyre_card), k.to(spyre_card), v.to(spyre_card)
    eager = torch.nn.functional.scaled_dot_product_attention(*there)
    assert torch.equal(eager.cpu(), expected.to(HALF))
    attend = torch.compile(
        torch.nn.functional.scaled_dot_product_attention, backend=spyre.checking_backend(), dynamic=False
    )
    with torch.inference_mode():
        assert torch.equal(attend(*there).cpu(), eager.cpu())


def test_each_operator_rounds_once(spyre_card: torch.device) -> None:
    one = torch.ones(64, dtype=HALF, device=spyre_card)
    small = torch.full((64,), 2.0**-11, dtype=HALF, device=spyre_card)
    assert torch.equal(((one + small) + small).cpu(), torch.ones(64, dtype=HALF))  # each sum is a tie, to even
    assert (one.mul(70000).cpu() == float("inf")).all()


def test_without_rounding_the_card_is_float32_throughout(spyre_card: torch.device) -> None:
    spyre.set_rounding(False)
    third = torch.ones(64, dtype=HALF, device=spyre_card) / 3
    assert third.dtype is HALF
    assert torch.equal(third.to("cpu", torch.float32), torch.full((64,), 1 / 3))
    assert torch.equal(third.cpu(), torch.full((64,), 1 / 3, dtype=HALF))


def test_views_share_memory_and_rounding_keeps_to_them(spyre_card: torch.device) -> None:
    host = torch.randn(6, 256, dtype=HALF)
    there = host.to(spyre_card)
    there[2:4, 64:128].mul_(3)
    there.view(3, 2, 256)[0, 1].fill_(7)
    expected = host.clone()
    expected[2:4, 64:128] = (expected[2:4, 64:128].float() * 3).to(HALF)
    expected[1] = 7
    assert torch.equal(there.cpu(), expected)
    assert torch.equal(there.t().cpu(), expected.t())


def test_host_and_card_agree_on_promotion(spyre_card: torch.device) -> None:
    half, number = torch.full((64,), 0.5, dtype=HALF), torch.tensor(1.5)
    for there, here in (
        (half.to(spyre_card) * number, half * number),
        (half.to(spyre_card) * 2.5, half * 2.5),
        (half.to(spyre_card).sum(), half.float().sum().to(HALF)),
        ((half.to(spyre_card) > 0.25).sum(), (half > 0.25).sum()),
        (torch.arange(3, device=spyre_card) * 2, torch.arange(3) * 2),
    ):
        assert there.dtype is here.dtype
        assert there.tolist() == here.tolist()


@pytest.mark.parametrize(
    "bounds", [(5,), (2, 9), (2, 9, 3), (9, 2, -2), (0.0, 1.0, 0.25), (3, 3)], ids=lambda bounds: str(bounds)
)
def test_arange(spyre_card: torch.device, bounds: tuple[float, ...]) -> None:
    there, here = torch.arange(*bounds, device=spyre_card), torch.arange(*bounds)
    assert there.dtype is here.dtype and torch.equal(there.cpu(), here)
    assert torch.equal(torch.arange(*bounds, dtype=HALF, device=spyre_card).cpu(), here.to(HALF))
    out = torch.empty(0, dtype=torch.int64, device=spyre_card)
    assert torch.arange(4, out=out).cpu().tolist() == out.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [HALF, torch.float32])
def test_index_copy_writes_rows_from_strided_sources(spyre_card: torch.device, dtype: torch.dtype) -> None:
    source = torch.randn(4, 3, 128, dtype=dtype)[:, :2, :64]
    rows = torch.tensor([5, 0, 3, 7])
    here = torch.zeros(9, 2, 64, dtype=dtype).index_copy_(0, rows, source)
    there = torch.zeros(9, 2, 64, dtype=dtype, device=spyre_card)
    wide = torch.randn(4, 3, 128, dtype=dtype).to(spyre_card)
    wide[:, :2, :64].copy_(source.to(spyre_card))
    there.index_copy_(0, rows.to(spyre_card), wide[:, :2, :64])
    assert torch.equal(there.cpu(), here)
    there.index_copy_(2, torch.tensor([1]).to(spyre_card), torch.ones(9, 2, 1, dtype=dtype, device=spyre_card))
    assert (there.cpu()[..., 1] == 1).all() and torch.equal(there.cpu()[..., 2:], here[..., 2:])
    with pytest.raises(IndexError, match="row 9 of 9"):
        there.index_copy_(0, torch.tensor([9]).to(spyre_card), torch.ones(1, 2, 64, dtype=dtype, device=spyre_card))


def test_generators_are_the_cards_own_and_seeded(spyre_card: torch.device) -> None:
    torch.manual_seed(7)
    host = torch.randn(4)
    first = torch.randn(64, dtype=HALF, device=spyre_card)
    torch.manual_seed(7)
    assert torch.equal(torch.randn(64, dtype=HALF, device=spyre_card).cpu(), first.cpu())
    assert torch.equal(torch.randn(4), host)  # the card's draws do not move the host's generator
    own = torch.Generator(device="spyre").manual_seed(3)
    assert own.device.type == "spyre" and own.initial_seed() == 3
    state = own.get_state()
    drawn = torch.rand(64, device=spyre_card, generator=own)
    assert not torch.equal(torch.rand(64, device=spyre_card, generator=own).cpu(), drawn.cpu())
    own.set_state(state)
    assert torch.equal(torch.rand(64, device=spyre_card, generator=own).cpu(), drawn.cpu())
    saved = torch.get_device_module("spyre").get_rng_state()
    torch.rand(4, device=spyre_card)
    torch.get_device_module("spyre").set_rng_state(saved)
    with torch.random.fork_rng(devices=[0], device_type="spyre"):
        inside = torch.rand(4, device=spyre_card)
    assert torch.equal(torch.rand(4, device=spyre_card).cpu(), inside.cpu())


def test_accelerator_interface(spyre_card: torch.device) -> None:
    assert torch.accelerator.is_available() and torch.accelerator.current_accelerator() == spyre_card
    assert torch.accelerator.device_count() == 1 and torch.accelerator.current_device_index() == 0
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()
    halves = {torch.float16, torch.bfloat16}
    wanted = halves | {torch.float32, torch.int32, torch.int64, torch.bool}
    assert torch.accelerator.get_device_capability()["supported_dtypes"] == wanted
    torch.ones(64, device=spyre_card).record_stream(torch.accelerator.current_stream())
    with pytest.raises(RuntimeError, match="spyre:1 is not there"):
        torch.accelerator.set_device_index(1)


def test_memory_is_counted_as_a_real_card_would_use_it(spyre_card: torch.device) -> None:
    before, (free, total) = torch.accelerator.memory_allocated(), torch.accelerator.get_memory_info()
    tensor = torch.empty(1024, 1024, dtype=HALF, device=spyre_card)
    assert torch.accelerator.memory_allocated() - before == 2 << 20
    assert torch.accelerator.get_memory_info() == (free - (2 << 20), total)
    assert torch.accelerator.max_memory_allocated() >= before + (2 << 20)
    del tensor
    assert torch.accelerator.memory_allocated() == before


def test_streams_and_events(spyre_card: torch.device) -> None:
    usual = torch.accelerator.current_stream()
    stream = torch.Stream(device="spyre")
    assert stream != usual and stream.query()
    with stream:
        assert torch.accelerator.current_stream() == stream
    assert torch.accelerator.current_stream() == usual
    start, end = (torch.Event(device="spyre", enable_timing=True) for _ in range(2))
    start.record()
    stream.wait_event(start)
    torch.ones(64, device=spyre_card)
    end.record(stream)
    end.synchronize()
    stream.synchronize()
    assert start.query() and end.query() and start.elapsed_time(end) >= 0


def test_storages_can_be_copied_saved_and_resized(spyre_card: torch.device) -> None:
    for dtype in (HALF, torch.bfloat16, torch.float32, torch.int64):
        host = torch.arange(200).reshape(2, 100).to(dtype) / (3 if dtype.is_floating_point else 1)
        host = host.to(dtype)
        there = host.to(spyre_card)
        twin = copy.deepcopy(there)
        there.zero_()
        assert torch.equal(twin.cpu(), host)
        file = io.BytesIO()
        torch.save({"tensor": twin, "view": twin[1]}, file)
        file.seek(0)
        loaded = torch.load(file, map_location="spyre")
        assert loaded["tensor"].device.type == "spyre" and torch.equal(loaded["tensor"].cpu(), host)
        assert torch.equal(loaded["view"].cpu(), host[1])
    grown = torch.ones(2, 64, dtype=HALF, device=spyre_card).resize_(3, 64)
    assert (grown.cpu()[:2] == 1).all() and grown.cpu()[2].isnan().all()


def test_memory_is_not_reinterpreted(spyre_card: torch.device) -> None:
    with pytest.raises(RuntimeError, match="cannot reinterpret memory"):
        torch.ones(64, dtype=HALF, device=spyre_card).view(torch.int32).cpu()


def test_an_empty_out_is_sized_by_the_kernel(spyre_card: torch.device) -> None:
    out = torch.empty(0, dtype=HALF, device=spyre_card)
    torch.add(torch.ones(64, dtype=HALF, device=spyre_card), 1, out=out)
    assert out.cpu().tolist() == [2.0] * 64


def test_text_of_a_tensor_needs_no_operator_of_the_card(spyre_card: torch.device) -> None:
    shown = repr(torch.full((2,), 0.5, dtype=HALF, device=spyre_card))
    assert shown == "tensor([0.5000, 0.5000], device='spyre:0', dtype=torch.float16)"
    with pytest.raises(RuntimeError, match="uncovered-operator"):
        torch.ones(2, dtype=HALF, device=spyre_card).masked_select(torch.ones(2, device=spyre_card) > 0)


def test_copies_are_counted_both_ways(spyre_card: torch.device) -> None:
    there = torch.ones(4, 64, dtype=HALF).to(spyre_card)
    there.copy_(torch.zeros(4, 64, dtype=HALF))
    there[0].cpu()
    there.sum().item()
    counted = spyre.counters()
    assert (counted.host_to_device, counted.host_to_device_bytes) == (2, 1024)
    assert (counted.device_to_host, counted.device_to_host_bytes) == (2, 130)
    assert counted.copies == 4


def test_the_example_of_the_documentation_runs(spyre_card: torch.device, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "spyre-emulator.md").read_text(encoding="utf-8")
    exec(page.partition("```python\n")[2].partition("```")[0], {})
    assert "2., 2., 2." in capsys.readouterr().out


def test_a_module_moves_with_its_parameters(spyre_card: torch.device) -> None:
    layer = torch.nn.Linear(64, 64, dtype=HALF)
    here = layer(torch.ones(3, 64, dtype=HALF))
    with torch.inference_mode():
        there = layer.to(spyre_card)(torch.ones(3, 64, dtype=HALF, device=spyre_card))
    assert isinstance(layer.weight, torch.nn.Parameter) and layer.weight.device.type == "spyre"
    assert torch.allclose(there.cpu(), here, atol=2e-3)
