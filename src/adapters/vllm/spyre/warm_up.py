"""Runs every shape that can be served once before the first request, through the code that serves it.

What a shape is, and that the list is whole, is the core's (``domain/warmup``): a body shape takes the model's forward
pass and every row count of the lm head, an attention shape takes one layer of each kind.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from vllm.forward_context import set_forward_context

from ....domain.warmup import BodyRows, WarmupStep
from .runner import RunningStep, SpyreModelRunner

PAGE = 1
"""Any page does, but for the null page: no padded entry may point at it, so warm-up does not either."""


@torch.inference_mode()
def warm_up(runner: SpyreModelRunner) -> float:
    """Seconds it took. Under ``inference_mode``, as serving is: graphs compiled outside it are not found in it."""
    started = time.monotonic()
    steps = runner.attention.warm_up_steps()
    if not runner.spyre.options.record_attention:
        steps = [step for step in steps if isinstance(step.warms, BodyRows)]
    with runner.kit.progress("Spyre: warming up", len(steps), "variants") as advance:
        for step in steps:
            _run(runner, step)
            advance(_named(step))
    runner.warm = True
    runner.kit.seal()
    seconds = time.monotonic() - started
    runner.kit.telemetry.warmed_up(len(steps), seconds)
    return seconds


def _run(runner: SpyreModelRunner, step: WarmupStep) -> None:
    query, context = list(step.query_lens), list(step.context_lens)
    if isinstance(step.warms, BodyRows):
        # A body of that many rows is one step of as many decodes as there may be, and the rest in the last prompt.
        query, context = _filled(step.warms.rows, runner.max_num_reqs, runner.max_model_len)
    width = runner.input_batch.block_table[0].get_numpy_array().shape[1]
    table = np.full((len(query), width), PAGE, np.int32)
    positions = np.concatenate([np.arange(c, c + q) for q, c in zip(query, context, strict=True)])
    built = runner.build_step(query, context, table, np.zeros(len(positions), np.int64), positions)
    if isinstance(step.warms, BodyRows):
        _body(runner, built)
    else:
        runner.run_kinds(built, step.window)


def _filled(rows: int, sequences: int, longest: int) -> tuple[list[int], list[int]]:
    """Query lengths of a step of ``rows`` rows, none above ``longest``, and no context."""
    lengths: list[int] = []
    while rows and len(lengths) < sequences:
        lengths.append(min(rows, longest))
        rows -= lengths[-1]
    return lengths, [0] * len(lengths)


def _body(runner: SpyreModelRunner, built: RunningStep) -> None:
    layers: dict[str, Any] = dict.fromkeys(runner.layer_names, built)
    with set_forward_context(layers, runner.vllm_config, num_tokens=len(built.rows), slot_mapping={}):
        hidden = runner.forward_step(built)
    for rows in runner.row_ladder.sizes:
        if rows <= len(hidden):
            runner.model.compute_logits(hidden[np.s_[:rows]])


def _named(step: WarmupStep) -> str:
    return str(step.warms)
