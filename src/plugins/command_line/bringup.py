"""``stepshape bringup``: open the mesh, run the reference model on it, compare every token, close."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import types

from ...adapters.ttnn.reference_weights import VOCAB, ReferenceWeights
from ...domain.topology import TopologyError, parse_mesh, visible_devices
from ...domain.tt_options import OptionsError, TraceMode, TTOptions, read_tt_options
from ...ports.capabilities import read_capabilities
from ..tenstorrent.chips import count_chips
from .doctor import NO_DEVICE, why_no_device

SEED = 0
UNTRACED = """; run it with --tt '{"trace_mode": "none"}' to see whether traces are the cause"""


def bringup(options: argparse.Namespace) -> int:
    """Return 0, 1 where something failed or a token was wrong, 2 where there is no device."""
    reason = why_no_device()
    if reason is not None:
        print(f"stepshape: no Tenstorrent device: {reason}", file=sys.stderr)
        return NO_DEVICE
    try:
        settings = read_tt_options({"tt": json.loads(options.tt)})
        chips = visible_devices(os.environ.get("TT_VISIBLE_DEVICES"), count_chips())
        mesh = parse_mesh(os.environ.get("MESH_DEVICE"), chips)
    except TopologyError as error:
        print(f"stepshape: no Tenstorrent device to use: {error}", file=sys.stderr)
        return NO_DEVICE
    except (OptionsError, ValueError) as error:
        print(f"stepshape: --tt: {error}", file=sys.stderr)
        return 1
    return _run(mesh, settings, lanes=options.lanes, rows=options.rows, tokens=options.tokens)


def _run(mesh_shape: tuple[int, int], options: TTOptions, *, lanes: int, rows: int, tokens: int) -> int:
    # Here: these import ttnn and torch, which a command without a device does not need.
    from ...adapters.ttnn.mesh import MeshCloseError, MeshOpenError, MeshSettings, open_mesh
    from ...adapters.ttnn.model_contract import ContractGenerator
    from ...adapters.ttnn.reasons import first_line
    from ...adapters.ttnn.reference_model import ReferenceForCausalLM, ReferenceModelError
    from ...adapters.ttnn.reference_run import Layout, generate, prompts_for, start

    capabilities = read_capabilities(ReferenceForCausalLM.model_capabilities, ReferenceForCausalLM.__name__)
    traced = options.trace_mode is not TraceMode.NONE
    layout = Layout(lanes=lanes, rows_per_lane=rows, max_len=tokens + 128)
    try:
        mesh = open_mesh(
            MeshSettings(
                shape=mesh_shape,
                fabric_config=options.fabric_config,
                fabric_reliability_mode=options.fabric_reliability_mode,
                model_fabric=capabilities.fabric_config,
                dispatch_core_axis=options.dispatch_core_axis,
                trace_region_size=options.trace_region_size if traced else 0,
                worker_l1_size=options.worker_l1_size or 0,
                l1_small_size=options.l1_small_size or 0,
                num_command_queues=capabilities.num_command_queues,
            )
        )
    except (MeshOpenError, ValueError) as error:
        print(f"stepshape: {error}", file=sys.stderr)
        return 1
    good = True
    try:
        begun = time.perf_counter()
        model = ReferenceForCausalLM.initialize_vllm_model(
            types.SimpleNamespace(vocab_size=VOCAB, stepshape_seed=SEED),
            mesh.handle,
            layout.capacity,
            max_seq_len=layout.max_len,
            tt_data_parallel=lanes,
        )
        generator = ContractGenerator(model, mesh, capabilities, trace_prefill=traced, trace_decode=traced)
        start(generator, layout, traced=traced)
        kind = "traced" if traced else "not traced"
        print(
            f"{mesh_shape[0]}x{mesh_shape[1]} mesh, {lanes} x {rows} rows, {kind}: warm after "
            f"{time.perf_counter() - begun:.1f} s",
            flush=True,
        )
        weights, prompts = ReferenceWeights(SEED), prompts_for(layout, tokens)
        expected = [weights.continuation(prompt, tokens) for prompt in prompts]
        for name, overlapped in (("sync", False), ("async", True)):
            run = generate(generator, layout, prompts, tokens, overlapped=overlapped, clock=time.perf_counter)
            steps = sorted(run.step_seconds)
            wrong = first_difference(run.tokens, expected)
            print(
                f"{name:5} {tokens} tokens a row: prefill {run.prefill_seconds * 1e3:.1f} ms, a step "
                f"{statistics.median(steps) * 1e3:.2f} ms (slowest {steps[-1] * 1e3:.2f} ms), "
                f"{wrong or 'every token as expected'}",
                flush=True,
            )
            good = good and wrong is None
    except ReferenceModelError as error:
        print(f"stepshape: {error}", file=sys.stderr)
        good = False
    except Exception as error:  # whatever the device or ttnn says: finding out is what this command is for
        print(f"stepshape: the mesh opened, then: {first_line(error)}{UNTRACED if traced else ''}", file=sys.stderr)
        good = False
    finally:
        try:
            mesh.close()
        except MeshCloseError as error:
            print(f"stepshape: {error}", file=sys.stderr)
            good = False
        else:
            print("closed", flush=True)
    return 0 if good else 1


def first_difference(got: list[list[int]], expected: list[list[int]]) -> str | None:
    """Where the first wrong token stands; None: nowhere."""
    for row, (said, wanted) in enumerate(zip(got, expected, strict=True)):
        for place, (token, right) in enumerate(zip(said, wanted, strict=True)):
            if token != right:
                return f"WRONG from token {place} of row {row} on: {token} in place of {right}"
    return None
