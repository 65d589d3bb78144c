"""Host time and padding of a Spyre step, with kernels out of the way. ``make bench`` runs it.

Printed: milliseconds on the host for the plan and the tables of a step (all that is done before the first kernel, the
copies included), for several batches; the copies and the operators that cut the tables out; KV cells and body rows
computed over those needed on the length trace, for our ladders, for ladders planned from the trace, and for the public
plugin's; and how many variants warm-up has. On the emulated card, whose copies are real copies of memory.

Exits with status 1 where a figure is above what it has to be.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.length_trace import (  # noqa: E402
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    length_trace,
)
from stepshape.adapters.emulator.spyre import counters, load, reset_counters  # noqa: E402
from stepshape.adapters.torch_spyre.attention.steps import AttentionSteps  # noqa: E402
from stepshape.domain.attention_ladders import ENTRY_BUDGET, attention_shapes  # noqa: E402
from stepshape.domain.attention_plan import (  # noqa: E402
    AttentionShapes,
    DecodeForm,
    FlatDecode,
    OneSequence,
    RectangularDecode,
    attention_plan,
)
from stepshape.domain.bucket_planner import padded_total, plan_ladder  # noqa: E402
from stepshape.domain.buckets import Ladder, body_sizes  # noqa: E402
from stepshape.domain.padding import Cells, decode_cells  # noqa: E402
from stepshape.domain.simulator import Step, continuous_batching  # noqa: E402
from stepshape.domain.warmup import BodyRows, warmup_plan  # noqa: E402

ROUNDS = 60
GROUPS = 3
"""A neighbour's work only ever adds time: of so many medians the least is nearest to ours."""
CHUNK = 512
MOST_COPIES = 3
MOST_DECODE_MS = 2.0
MOST_MIXED_MS = 6.0
MOST_PADDING = 1.1
BODY_BUDGET = 6

console = Console(width=110)


def engine(max_model_len: int, sequences: int) -> tuple[AttentionShapes, AttentionSteps, int]:
    shapes, _ = attention_shapes(
        block_size=BLOCK_SIZE, max_model_len=max_model_len, max_num_seqs=sequences, max_num_batched_tokens=640
    )
    pages = sequences * shapes.longest + 1
    shapes = shapes.for_pool(pages)
    body = Ladder({*body_sizes(CHUNK, sequences).sizes, 640})
    rows = Ladder((sequences,))
    extra = {"ids": body, "positions": body, "rows": rows}
    return shapes, AttentionSteps(shapes, body=body, device=torch.device("spyre"), extra=extra), pages


def measured(context: int, sequences: int, chunk: int) -> tuple[float, int, int, int]:
    """(ms a step, copies, operators, blocks attended to) for decodes at ``context`` tokens, one of them replaced
    by a prefill chunk that ends there if ``chunk``."""
    _, steps, pages = engine(context + 256, sequences)
    body = Ladder({*body_sizes(CHUNK, sequences).sizes, 640})
    random = np.random.default_rng(0)
    table = random.integers(1, pages, (sequences, (context + 256) // BLOCK_SIZE), dtype=np.int32)
    query = [1] * (sequences - bool(chunk)) + [chunk] * bool(chunk)
    rows = sum(query)
    padded = body.fit(rows)
    assert padded is not None
    numbers, picked = np.zeros(padded, np.int64), np.zeros(sequences, np.int64)
    times = []
    for turn in range(ROUNDS):
        # Lengths grow as they do in serving, so that every array differs from the step before.
        contexts = [context - rows + turn if q == 1 else context - chunk for q in query]
        slots = random.integers(128, pages * BLOCK_SIZE, rows)
        reset_counters()
        begin = time.thread_time()  # of this thread alone: a busy machine is no cost of ours
        step = steps.build(
            query, contexts, table, slots, padded, {"ids": numbers, "positions": numbers, "rows": picked}
        )
        times.append(time.thread_time() - begin)
        seen = counters()
        assert seen.host_to_device == step.copies, "a copy went up that the step does not know of"
    blocks = sum(-(-(c + q) // BLOCK_SIZE) for c, q in zip(contexts, query, strict=True))
    return (
        1000 * float(np.median(np.reshape(times, (GROUPS, -1)), axis=1).min()),
        seen.host_to_device,
        seen.eager_calls,
        blocks,
    )


def host_table() -> list[str]:
    table = Table(
        title="Host ms a step for plan and tables (least of 3 medians; emulated copies; any number of layers)"
    )
    for name in ("sequences", "context", "decode", "copies", "operators", "512-token chunk and the rest", "copies"):
        table.add_column(name, justify="right")
    problems: list[str] = []
    growth: dict[int, tuple[float, int]] = {}
    for sequences in (1, 4, 16, 32):
        for context in (2048, 32_768):
            with console.status(f"{sequences} sequences, {context} tokens"):
                decode, copies, operators, blocks = measured(context, sequences, 0)
                mixed, mixed_copies, _, _ = measured(context, sequences, CHUNK)
            table.add_row(
                str(sequences),
                str(context),
                f"{decode:.2f}",
                str(copies),
                str(operators),
                f"{mixed:.2f}",
                str(mixed_copies),
            )
            if max(copies, mixed_copies) > MOST_COPIES:
                problems.append(f"{max(copies, mixed_copies)} copies a step at {sequences} sequences")
            if sequences == 16:
                growth[context] = decode, blocks
            if (sequences, context) == (16, 32_768):
                if decode > MOST_DECODE_MS:
                    problems.append(f"{decode:.2f} ms a decode step of 16 sequences at 32k, above {MOST_DECODE_MS}")
                if mixed > MOST_MIXED_MS:
                    problems.append(f"{mixed:.2f} ms a step of a chunk and 15 decodes at 32k, above {MOST_MIXED_MS}")
    console.print(table)
    (short, few), (long, many) = growth[2048], growth[32_768]
    console.print(f"16 sequences, 2k to 32k: {many / few:.1f}x the blocks, {long / short:.1f}x the time")
    if long / short >= many / few:
        problems.append("host time does not grow below linear in blocks")
    return problems


def trace_shapes(decode: DecodeForm) -> AttentionShapes:
    return attention_shapes(
        block_size=BLOCK_SIZE,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        decode=decode,
    )[0]


def padding_tables() -> list[str]:
    with console.status("the length trace"):
        steps = list(
            continuous_batching(
                length_trace(), max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS
            )
        )
        cells, totals = kv_cells(steps)
        rows = Counter(sum(step.query_lens) for step in steps)
    shapes = trace_shapes(DecodeForm.FLAT)
    planned = plan_ladder({total + 1: n for total, n in totals.items()}, ENTRY_BUDGET, top=shapes.entries.top)
    useful = sum(total * n for total, n in totals.items())
    best = Cells(useful, int(padded_total({total + 1: n for total, n in totals.items()}, planned)))
    table = Table(title=f"Decode KV blocks on the length trace ({len(steps):,} steps, 16 sequences, blocks of 128)")
    for name in ("form", "lengths", "computed over needed"):
        table.add_column(name, justify="right" if name != "form" else "left")
    flat, rectangle = cells[DecodeForm.FLAT], cells[DecodeForm.RECTANGULAR]
    table.add_row("flat, ladder from the limits", str(len(shapes.entries.sizes)), f"{flat.ratio:.3f}")
    table.add_row("flat, ladder planned from the trace", str(len(planned.sizes)), f"{best.ratio:.3f}")
    wide = trace_shapes(DecodeForm.RECTANGULAR)
    rectangles = len(wide.sequences.sizes) * len(wide.blocks.sizes)
    table.add_row("sequences x blocks, as the public plugin", str(rectangles), f"{rectangle.ratio:.3f}")
    console.print(table)

    public = body_sizes(MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS)
    body = plan_ladder(rows, BODY_BUDGET, top=MAX_NUM_BATCHED_TOKENS)
    needed = sum(length * n for length, n in rows.items())
    table = Table(title="Body rows on the length trace")
    for name in ("ladder", "sizes", "computed over needed"):
        table.add_column(name, justify="right" if name == "computed over needed" else "left")
    for name, ladder in (("public", public), ("planned from the trace", body)):
        table.add_row(name, ", ".join(map(str, ladder.sizes)), f"{padded_total(rows, ladder) / needed:.3f}")
    console.print(table)

    problems = []
    for what, ratio in (("limits", flat.ratio), ("trace", best.ratio)):
        if ratio > MOST_PADDING:
            problems.append(f"{ratio:.3f} KV blocks computed for one needed, ladder from the {what}")
    if len(shapes.entries.sizes) > ENTRY_BUDGET:
        problems.append(f"{len(shapes.entries.sizes)} lengths, above {ENTRY_BUDGET}")
    return problems


def kv_cells(steps: list[Step]) -> tuple[dict[DecodeForm, Cells], Counter[int]]:
    """Blocks by form, over every step with a decode, and how often each total occurs."""
    out = {}
    totals: Counter[int] = Counter()
    for form in (DecodeForm.FLAT, DecodeForm.RECTANGULAR):
        shapes = trace_shapes(form)
        useful = padded = 0
        for step in steps:
            lens = [(q, c) for q, c in zip(step.query_lens, step.context_lens, strict=True) if q == 1]
            if lens:
                found = decode_cells(attention_plan(shapes, [1] * len(lens), [c for _, c in lens]))
                useful, padded = useful + found.useful, padded + found.padded
                totals[found.useful] += form is DecodeForm.FLAT
        out[form] = Cells(useful, padded)
    return out, totals


def variants_table() -> None:
    table = Table(title="Variants that warm-up compiles (one kind of layer)")
    for name in ("max_model_len", "sequences", "tokens a step", "form", "body", "chunks", "decodes", "all"):
        table.add_column(name, justify="right")
    for model_len, sequences, tokens in ((2048, 4, 512), (8192, 16, 512), (32_768, 32, 512), (131_072, 32, 512)):
        for form in (DecodeForm.FLAT, DecodeForm.RECTANGULAR):
            shapes, _ = attention_shapes(
                block_size=BLOCK_SIZE,
                max_model_len=model_len,
                max_num_seqs=sequences,
                max_num_batched_tokens=tokens,
                decode=form,
            )
            variants = warmup_plan(shapes, (None,), body_sizes(tokens, sequences)).variants
            kinds = Counter(type(variant) for variant in variants)
            table.add_row(
                str(model_len),
                str(sequences),
                str(tokens),
                form.value,
                str(kinds[BodyRows]),
                str(kinds[OneSequence]),
                str(kinds[FlatDecode] + kinds[RectangularDecode]),
                str(len(variants)),
            )
    console.print(table)


def main() -> int:
    begin = time.monotonic()
    torch.set_num_threads(1)
    load()
    problems = host_table()
    problems += padding_tables()
    variants_table()
    for problem in problems:
        console.print(f"too much: {problem}", style="bold red")
    console.print(f"took {time.monotonic() - begin:.0f} s")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
