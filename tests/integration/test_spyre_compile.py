"""torch.compile on the emulated card: artifacts counted, numbers those of eager, one backend object a name."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

from stepshape.adapters.emulator import spyre

HALF = torch.float16


class Block(nn.Module):
    """A decoder block's shape: the first gets no residual, the others do."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(64, 128, dtype=HALF) * 0.1)
        self.down = nn.Parameter(torch.randn(128, 64, dtype=HALF) * 0.1)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        residual = x if residual is None else x + residual
        y = residual * torch.rsqrt((residual * residual).mean(-1, keepdim=True) + 1e-5)
        return torch.nn.functional.silu(y @ self.up) @ self.down, residual


def run(blocks: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    """``x`` on the host: what is made outside inference mode has other dispatch keys, and dynamo guards those."""
    residual = None
    with torch.inference_mode():
        x = x.to("spyre")
        for block in blocks:
            x, residual = block(x, residual)
    return x.cpu()


def test_six_identical_blocks_cost_two_artifacts_a_bucket_and_change_no_bit(spyre_card: torch.device) -> None:
    torch.manual_seed(0)
    blocks = nn.ModuleList([Block() for _ in range(6)]).to(spyre_card)
    inputs = [torch.randn(bucket, 64, dtype=HALF) for bucket in (4, 8, 16)]
    eager = [run(blocks, x) for x in inputs]
    backend = spyre.checking_backend()
    for block in blocks:
        block.compile(backend=backend, dynamic=False, fullgraph=True)
    for expected, x in zip(eager, inputs, strict=True):
        assert torch.equal(run(blocks, x), expected)
    artifacts = spyre.counters().artifacts
    assert sum(artifacts.values()) == 6
    by_rows = Counter(shape.partition(", ")[0] for _, shape in artifacts for _ in range(artifacts[_, shape]))
    assert by_rows == {"float16[4": 2, "float16[8": 2, "float16[16": 2}
    assert {kernel for kernel, _ in artifacts} == {"test_spyre_compile.forward"}
    for x in inputs:
        run(blocks, x)
    assert spyre.counters().artifacts == artifacts


def test_a_backend_is_one_object_a_name_and_kernels_count_by_theirs(spyre_card: torch.device) -> None:
    backend = spyre.checking_backend("stepshape_spyre_test")
    assert spyre.checking_backend("stepshape_spyre_test") is backend
    assert spyre.checking_backend() is not backend
    assert backend.for_kernel("decode") is backend.for_kernel("decode")
    double = torch.compile(lambda x: x * 2, backend=backend.for_kernel("decode"), dynamic=False)
    triple = torch.compile(lambda x: x * 3, backend="stepshape_spyre_test", dynamic=False)
    x = torch.ones(4, 64, dtype=HALF, device=spyre_card)
    assert double(x).sum().item() == 512 and triple(x).sum().item() == 768
    counted = spyre.counters().artifacts
    assert counted == {("decode", "float16[4, 64]"): 1, ("test_spyre_compile.<lambda>", "float16[4, 64]"): 1}


def test_a_graph_counts_as_one_artifact_and_not_by_its_operators(spyre_card: torch.device) -> None:
    function = torch.compile(lambda x: (x * 2 + 1).sum(-1), backend=spyre.checking_backend(), dynamic=False)
    x = torch.ones(4, 64, dtype=HALF, device=spyre_card)
    spyre.reset_counters()
    function(x)
    function(x)
    counted = spyre.counters()
    assert counted.eager_kernels == {} and counted.eager_calls == 0 and counted.compiles == 1


def test_a_float_input_costs_an_artifact_for_each_offset(spyre_card: torch.device) -> None:
    function = torch.compile(lambda x: x * 2, backend=spyre.checking_backend(), dynamic=False)
    x = torch.ones(4, 4, 64, dtype=HALF, device=spyre_card)
    for row in (0, 1, 2, 1):
        function(x[row])
    assert spyre.counters().compiles - len(spyre.counters().eager_kernels) == 3


def test_the_graph_as_written_runs_once_and_the_functionalised_one_never(spyre_card: torch.device) -> None:
    calls = 0

    @torch.library.custom_op("stepshape_test::count", mutates_args=())
    def count(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return x + 1

    @count.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    x = torch.zeros(4, 64, dtype=HALF, device=spyre_card)
    function = torch.compile(lambda x: count(x) * 2, backend=spyre.checking_backend(), dynamic=False, fullgraph=True)
    for expected in (1, 2):
        assert function(x).sum().item() == 512
        assert calls == expected


def test_memory_allocated_inside_a_graph_is_poison_too(spyre_card: torch.device) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(4, 64, dtype=x.dtype, device=x.device)
        out[:2] = x
        return out

    out = torch.compile(forward, backend=spyre.checking_backend(), dynamic=False, fullgraph=True)(
        torch.ones(2, 64, dtype=HALF, device=spyre_card)
    )
    assert (out.cpu()[:2] == 1).all() and out.cpu()[2:].isnan().all()


def test_operators_of_the_host_count_when_a_graph_is_compiled(spyre_card: torch.device) -> None:
    torch.compile(lambda x: x.sin() + 1, backend=spyre.checking_backend(), dynamic=False)(
        torch.ones(64, dtype=HALF, device=spyre_card)
    )
    assert spyre.counters().fallbacks == {"sin": 1}
