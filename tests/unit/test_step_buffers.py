"""The device-shaped arrays: in place, null past a row's live width, a late token never reaches the next request."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepshape.adapters.vllm.step_buffers import StepBuffers


def buffers() -> StepBuffers:
    return StepBuffers(capacity=4, max_len=32, widths=[8])


def ints(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def test_decode_inputs_of_live_rows_and_neutral_ones() -> None:
    b = buffers()
    b.admit(1, [10, 11, 12], ([5, 6],))
    b.load_decode(ints(1), ints(2))
    assert b.wire_tokens[:, 0].tolist() == [0, 12, 0, 0]
    assert b.wire_positions.tolist() == [-1, 2, -1, -1]
    assert b.wire_blocks[0].tolist() == [[0] * 8, [5, 6] + [0] * 6, [0] * 8, [0] * 8]


def test_an_occupied_row_that_does_not_decode_is_neutral_on_the_wire() -> None:
    """A half-prefilled row must not be decoded by accident (contract 9.3)."""
    b = buffers()
    b.admit(0, [1, 2, 3], ([4],))
    b.admit(2, [7], ([9],))
    b.load_decode(ints(2), ints(0))
    assert b.wire_positions.tolist() == [-1, -1, 0, -1]
    assert b.wire_blocks[0][0].tolist() == [0] * 8


def test_a_shorter_request_on_the_same_row_leaves_nothing_stale() -> None:
    """Contract 8.26: a stale id past the live width once wrote into another request's blocks."""
    b = buffers()
    b.admit(0, [1] * 30, ([2, 3, 4, 5, 6, 7, 8],))
    b.load_decode(ints(0), ints(29))
    b.release(0)
    b.admit(0, [1] * 3, ([9],))
    b.load_decode(ints(0), ints(2))
    assert b.wire_blocks[0][0].tolist() == [9] + [0] * 7
    assert b.prefill_blocks(0, ints(0)).tolist() == [[9] + [0] * 7]


def test_growth_changes_one_row_of_the_wire() -> None:
    b = buffers()
    b.admit(0, [1] * 4, ([2],))
    b.admit(3, [1] * 4, ([3],))
    b.load_decode(ints(0, 3), ints(3, 3))
    b.append_blocks(3, ([7],))
    assert b.wire_blocks[0][3].tolist()[:3] == [3, 0, 0]  # not before the plan commands it
    b.load_grown([3])
    assert b.wire_blocks[0][:, :3].tolist() == [[2, 0, 0], [0, 0, 0], [0, 0, 0], [3, 7, 0]]


def test_prefill_tokens_end_where_the_chunk_ends() -> None:
    b = buffers()
    b.admit(0, [1, 2, 3, 4, 5], ([2],))
    b.admit(1, [6, 7], ([3],))
    assert b.prefill_tokens(ints(0, 1), ints(4, 2)).tolist() == [[1, 2, 3, 4], [6, 7, 0, 0]]


def test_releases_are_counted_so_that_late_tokens_find_their_request() -> None:
    b = buffers()
    before = int(b.epoch[2])
    b.admit(2, [1], ([2],))
    b.release(2)
    assert int(b.epoch[2]) == before + 1


def test_what_does_not_fit_is_said() -> None:
    b = buffers()
    with pytest.raises(ValueError, match="33 tokens do not fit a row of 32"):
        b.admit(0, [1] * 33, ([1],))
    with pytest.raises(ValueError, match="row 0 would hold 9 blocks of 8"):
        b.append_blocks(0, (list(range(1, 10)),))


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 30), st.sampled_from(["admit", "grow", "release"])), max_size=30
    )
)
def test_the_wire_always_equals_a_fresh_build(operations: list[tuple[int, int, str]]) -> None:
    """Whatever happens to rows, a reload gives what an engine built now would give."""
    b = buffers()
    live: dict[int, tuple[list[int], list[int]]] = {}
    fresh_block = 1
    for row, length, what in operations:
        if what == "admit" and row not in live:
            blocks = list(range(fresh_block, fresh_block + -(-length // 4)))
            tokens = [fresh_block] * length
            b.admit(row, tokens, (blocks,))
            live[row] = (tokens, blocks)
        elif what == "grow" and row in live and len(live[row][1]) < 8:
            b.append_blocks(row, ([fresh_block],))
            live[row][1].append(fresh_block)
        elif what == "release" and row in live:
            b.release(row)
            del live[row]
        fresh_block += 10
        if not live:
            continue
        rows = ints(*live)
        b.load_decode(rows, ints(*(len(tokens) - 1 for tokens, _ in live.values())))
        for other in range(4):
            tokens, blocks = live.get(other, ([], []))
            assert b.wire_blocks[0][other].tolist() == blocks + [0] * (8 - len(blocks))
            assert int(b.wire_positions[other]) == len(tokens) - 1
            assert int(b.wire_tokens[other, 0]) == (tokens[-1] if tokens else 0)
