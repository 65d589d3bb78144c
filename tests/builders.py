"""Short ways to build the core's values in tests: a test says what, not how."""

from __future__ import annotations

from collections.abc import Sequence

from stepshape.domain.merge import Planner
from stepshape.domain.phase import PhaseChoice
from stepshape.domain.sampling_path import SamplingRules
from stepshape.ports.capabilities import ModelCapabilities
from stepshape.ports.lane import Arrival, LaneSnapshot, LaneStep
from stepshape.ports.sampling import SampleOnDevice, SamplingTraits
from stepshape.ports.step import Phase, StepPlan

GREEDY = SamplingTraits(temperature=0.0)
ABLE = ModelCapabilities(
    supports_sample_on_device=True,
    supports_tokens_and_logits=True,
    supports_async_decode=True,
    supports_async_prefill=True,
    supports_device_seeds=True,
    max_device_top_k=32,
)
"""A model that can do everything the sampling path and the overlap ask about."""


def snapshot(waiting: int = 0, continuations: int = 0, decodes: int = 0, rows: int = 8) -> LaneSnapshot:
    return LaneSnapshot(waiting=waiting, continuations=continuations, decodes=decodes, rows=rows)


def arrival(
    request_id: str, prompt: int = 4, *, computed: int = 0, resumed: bool = False, traits: SamplingTraits = GREEDY
) -> Arrival[str]:
    return Arrival(
        request_id=request_id,
        token_ids=list(range(prompt)),
        prompt_length=prompt,
        blocks=([1],),
        computed=computed,
        resumed=resumed,
        traits=traits,
        params=f"params of {request_id}",
    )


def prefill_step(
    *arrivals: Arrival[str],
    continued: Sequence[tuple[str, int, int]] = (),
    chunk: int | None = None,
    finished: Sequence[str] = (),
    preempted: Sequence[str] = (),
) -> LaneStep[str]:
    """``continued``: (id, computed, scheduled) of requests that have a row. ``chunk``: tokens scheduled for each
    arrival (None: all of them)."""
    lengths = [len(a.token_ids) - a.computed for a in arrivals]
    counts = [min(n, chunk) if chunk is not None else n for n in lengths]
    return LaneStep(
        finished=finished,
        preempted=preempted,
        arrivals=arrivals,
        cached=[c[0] for c in continued],
        blocks=[None] * len(continued),
        computed=[c[1] for c in continued],
        scheduled=counts + [c[2] for c in continued],
        emits=[count == n for count, n in zip(counts, lengths, strict=True)] + [True] * len(continued),
    )


def decode_step(
    *decoding: tuple[str, int],
    grown: Sequence[str] = (),
    finished: Sequence[str] = (),
    preempted: Sequence[str] = (),
) -> LaneStep[str]:
    """``decoding``: (id, computed)."""
    return LaneStep(
        finished=finished,
        preempted=preempted,
        cached=[d[0] for d in decoding],
        blocks=[([9],) if d[0] in grown else None for d in decoding],
        computed=[d[1] for d in decoding],
    )


def sampling_rules(
    capabilities: ModelCapabilities = ABLE, mode: SampleOnDevice = SampleOnDevice.ALL, vocab_size: int = 1000
) -> SamplingRules:
    return SamplingRules(mode=mode, capabilities=capabilities, vocab_size=vocab_size)


def planner(
    lanes: int = 1,
    rows: int = 4,
    capabilities: ModelCapabilities = ABLE,
    mode: SampleOnDevice = SampleOnDevice.ALL,
    asynchronous: bool = True,
) -> Planner[str]:
    return Planner(
        lanes=lanes,
        rows_per_lane=rows,
        sampling=sampling_rules(capabilities, mode),
        capabilities=capabilities,
        asynchronous=asynchronous,
    )


def plan_prefill(planner: Planner[str], *steps: LaneStep[str]) -> StepPlan[str]:
    return planner.plan(PhaseChoice(Phase.PREFILL, "test"), steps)


def plan_decode(planner: Planner[str], *steps: LaneStep[str]) -> StepPlan[str]:
    return planner.plan(PhaseChoice(Phase.DECODE, "test"), steps)
