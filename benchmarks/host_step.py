"""Host time of a step, with no device in the way. ``make bench`` runs it.

Printed for several shapes: milliseconds of a steady decode step of the whole in-process engine (schedule, run, update),
beside vLLM's own scheduler with the same rows before a worker that only answers, measured in turns in the same run
(machines are noisy; a ratio of two medians taken side by side is not); what one prefill among decodes costs extra; what
one ``min_p`` request among 32 costs; and how busy a device of 10 ms a step is kept while requests queue.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.null_engines import Bench, TenMillisecondWorker, ours, vllm_alone  # noqa: E402

SHAPES = ((1, 32), (4, 8), (4, 32), (4, 64))
CONTEXTS = (256, 3000)
ROUNDS = 14
STEPS = 10
LONG = 1000  # tokens to generate: more than any measurement takes

console = Console(width=110)


class Timed:
    """Forwards everything, and sums the time of the named calls."""

    def __init__(self, target: Any, names: tuple[str, ...]) -> None:
        self._target = target
        self.seconds = 0.0
        for name in names:
            setattr(self, name, self._timed(getattr(target, name)))

    def _timed(self, call: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            begin = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - begin

        return run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


def split(bench: Bench, steps: int) -> tuple[float, float, float]:
    """Milliseconds a step in (schedule, run, update)."""
    scheduler, executor = bench.core.scheduler, bench.core.model_executor
    schedule = Timed(scheduler, ("schedule",))
    run = Timed(executor, ("execute_model", "sample_tokens"))
    update = Timed(schedule, ("update_from_output",))
    bench.core.scheduler, bench.core.model_executor = update, run  # type: ignore[assignment]
    try:
        bench.run_steps(steps)
    finally:
        bench.core.scheduler, bench.core.model_executor = scheduler, executor
    return tuple(1000 * t.seconds / steps for t in (schedule, run, update))  # type: ignore[return-value]


def fill(bench: Bench, context: int) -> None:
    for _ in range(bench.rows):
        bench.add(context, LONG)
    bench.settle()


def switch_cost(bench: Bench) -> float:
    """Milliseconds that one request leaving and another being prefilled among the decodes adds to seven decode steps:
    the prefill step itself, and what the first decode after it reloads. Median of many, against the steady steps just
    before."""
    extras = []
    for _ in range(25):
        steady = bench.run_steps(8)
        bench.drop(bench.live[len(bench.live) // 2])
        bench.add(64, LONG)
        extras.append(8 * bench.run_steps(8) - 7 * steady)
    return 1000 * statistics.median(extras)


def steady_table(folder: Path) -> None:
    table = Table(title="Steady decode, host ms a step (whole engine step; null device; async)")
    for name in ("rows", "context", "schedule", "run", "update", "step", "vLLM alone", "ratio", "one prefill, ms"):
        table.add_column(name, justify="right")
    alone: dict[int, Bench] = {}
    for lanes, rows in SHAPES:
        total = lanes * rows
        bench = ours(folder, lanes=lanes, rows=rows)
        reference = alone.get(total) or alone.setdefault(total, vllm_alone(folder, rows=total))
        for context in CONTEXTS:
            with console.status(f"{lanes}x{rows} rows, {context} tokens of context"):
                fill(bench, context)
                fill(reference, context)
                mine, theirs = [], []
                for _ in range(ROUNDS):
                    mine.append(bench.run_steps(STEPS))
                    theirs.append(reference.run_steps(STEPS))
                parts = split(bench, 30)
                step, base = statistics.median(mine), statistics.median(theirs)
                extra = switch_cost(bench)
                table.add_row(
                    f"{lanes}x{rows}",
                    str(context),
                    *(f"{p:.3f}" for p in parts),
                    f"{1000 * step:.3f}",
                    f"{1000 * base:.3f}",
                    f"{step / base:.2f}",
                    f"{extra:.2f}",
                )
                bench.empty()
                reference.empty()
        bench.close()
    for reference in alone.values():
        reference.close()
    console.print(table)


def min_p_line(folder: Path) -> None:
    bench = ours(folder, lanes=4, rows=8)
    for i in range(32):
        if i == 5:
            bench.add(256, LONG, temperature=1.0, min_p=0.1)
        else:
            bench.add(256, LONG)
    bench.settle()
    step = statistics.median(bench.run_steps(STEPS) for _ in range(4))
    bench.close()
    console.print(f"One min_p request among 32 rows, vocabulary 128256: {1000 * step:.2f} ms a step")


def busy_table(folder: Path) -> None:
    table = Table(title="Device-busy fraction, 10 ms a step, saturated (512-token prompts)")
    for name in ("rows", "outputs", "requests", "prefill steps", "decode steps", "busy"):
        table.add_column(name, justify="right")
    shapes = ((4, 8), (4, 32), (4, 64))
    for (lanes, rows), spread in [(shape, spread) for spread in (0, 64) for shape in shapes]:
        total = lanes * rows
        bench = ours(folder, lanes=lanes, rows=rows, worker=TenMillisecondWorker)
        mesh = bench.core.model_executor.driver_worker.worker._mesh
        requests = 3 * total
        lengths = random.Random(7)
        for _ in range(requests):
            bench.add(512, 128 + lengths.randint(-spread, spread))
        with console.status(f"saturated, {total} rows"):
            for _ in range(8):
                bench.step()
            mesh.restart_clock()
            while bench.core.scheduler.get_request_counts()[1]:
                bench.step()
        busy = mesh.busy_seconds / (mesh.ended - mesh.began)
        outputs = f"128 +- {spread}" if spread else "128"
        steps = (str(mesh.prefill_steps), str(mesh.decode_steps))
        table.add_row(f"{lanes}x{rows}", outputs, str(requests), *steps, f"{busy:.3f}")
        bench.live.clear()
        bench.core.scheduler.finish_requests(None, _aborted())
        bench.close()
    console.print(table)


def _aborted() -> Any:
    from vllm.v1.request import RequestStatus

    return RequestStatus.FINISHED_ABORTED


def main() -> None:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        steady_table(folder)
        min_p_line(folder)
        busy_table(folder)
    console.print(f"took {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
