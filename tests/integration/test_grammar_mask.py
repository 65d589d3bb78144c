"""A grammar's mask is that of its own step, however many steps are in flight (field case 26)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from vllm.v1.core.sched.output import GrammarOutput

from stepshape.adapters.vllm.runner import grammar_mask

from ..checkpoints import tiny_llama
from ..engines import engine


def test_a_mask_is_kept_though_vllm_fills_its_buffer_again() -> None:
    buffer = np.zeros((1, 10), np.int32)
    mask = grammar_mask(GrammarOutput(["r1"], buffer, [0]))
    buffer[:] = -1
    assert mask is not None and not mask.bitmask.any()


def test_requests_that_arrive_one_a_step_keep_to_their_own_grammars(tmp_path: Path) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    letters = "abcdefgh"
    with engine(tiny_llama(tmp_path), lanes=4, rows=2) as under_test:
        said: dict[str, str] = {}
        for letter in letters:
            grammar = StructuredOutputsParams(regex=f"{letter}{{9}}")
            params = SamplingParams(temperature=0.7, max_tokens=20, structured_outputs=grammar)
            said[under_test.add([10, 20, 30], params)] = letter
            under_test.step()
        ended: dict[str, str] = {}
        while under_test.engine.has_unfinished_requests():
            for output in under_test.step():
                if output.finished:
                    ended[output.request_id] = output.outputs[0].text
    assert {said[request_id]: text for request_id, text in ended.items()} == {a: a * 9 for a in letters}
