from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepshape.adapters.emulator.mesh.fingerprints import Fingerprints
from stepshape.adapters.emulator.mesh.kv_cache import LayerHeads, PagedKVCache
from stepshape.adapters.emulator.mesh.rules import Rule, RuleBroken

HEADS = LayerHeads(kv_heads=2, key_size=3, value_size=5)


def cache() -> PagedKVCache:
    return PagedKVCache(lanes=2, num_blocks=6, block_size=4, layers=[HEADS, HEADS], dtype=torch.float32)


def test_what_is_written_is_gathered_in_position_order() -> None:
    kv = cache()
    # Six positions of lane 1 on blocks 5 and 2.
    pages = kv.pages(1, np.array([5, 2], np.int32))
    positions = np.arange(6)
    places = torch.from_numpy(pages[positions // 4] * 4 + positions % 4)
    key, value = torch.randn(6, 2, 3), torch.randn(6, 2, 5)
    kv.write(0, places, key, value)
    keys, values = kv.gather(0, torch.from_numpy(pages)[None])
    assert keys.shape == (1, 8, 2, 3)
    assert torch.equal(keys[0, :6], key)
    assert torch.equal(values[0, :6], value)
    # Another layer, and the same blocks of another lane, are untouched.
    assert not kv.gather(1, torch.from_numpy(pages))[0].any()
    assert not kv.gather(0, torch.from_numpy(kv.pages(0, np.array([5, 2], np.int32))))[0].any()


def test_a_large_pool_costs_address_space_only() -> None:
    before = _resident_bytes()
    PagedKVCache(
        lanes=4,
        num_blocks=8192,
        block_size=16,
        layers=[LayerHeads(kv_heads=3, key_size=64, value_size=64)] * 4,
        dtype=torch.float32,
    )
    assert _resident_bytes() - before < 100 * 2**20  # of 3 GiB


def _resident_bytes() -> int:
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        return int(statm.read().split()[1]) * 4096


def test_layers_may_share_a_buffer_of_one_shape_only() -> None:
    shared = PagedKVCache(
        lanes=1, num_blocks=3, block_size=4, layers=[HEADS, HEADS], dtype=torch.bfloat16, buffers=[7, 7]
    )
    shared.write(0, torch.tensor([4]), torch.ones(1, 2, 3), torch.ones(1, 2, 5))
    assert shared.gather(1, torch.tensor([1]))[0].any()
    other = LayerHeads(kv_heads=1, key_size=3, value_size=5)
    with pytest.raises(RuleBroken) as caught:
        PagedKVCache(lanes=1, num_blocks=3, block_size=4, layers=[HEADS, other], dtype=torch.float32, buffers=[7, 7])
    assert caught.value.rule is Rule.KV_SHAPE
    with pytest.raises(RuleBroken, match="float8"):
        PagedKVCache(lanes=1, num_blocks=3, block_size=4, layers=[HEADS], dtype=torch.float8_e4m3fn)


def test_the_ledger_tells_unwritten_from_anothers() -> None:
    kv, fingerprints = cache(), Fingerprints(16)
    mine = fingerprints.of(np.array([3, 1, 4, 1, 5, 9]))
    theirs = fingerprints.of(np.array([3, 1, 4, 2, 5, 9]))
    pages = kv.pages(0, np.array([1, 2], np.int32))
    positions = np.arange(6)
    kv.record(pages[positions // 4], positions, mine)
    kv.verify(pages, 0, 6, mine, "slot 0")
    kv.verify(pages, 5, 5, theirs, "nothing to check")
    with pytest.raises(RuleBroken, match="slot 1, position 3, block 1 holds the KV of other tokens") as stale:
        kv.verify(pages, 0, 6, theirs, "slot 1")
    assert stale.value.rule is Rule.STALE_BLOCK
    longer = fingerprints.of(np.array([3, 1, 4, 1, 5, 9, 2]))
    with pytest.raises(RuleBroken, match="position 6") as unwritten:
        kv.verify(pages, 0, 7, longer, "slot 0")
    assert unwritten.value.rule is Rule.UNWRITTEN_READ
    # A window that begins later does not look at what lies before it.
    kv.ledger[int(pages[0]), 0] = 0
    kv.verify(pages, 1, 6, mine, "slot 0")


@given(st.lists(st.integers(0, 2**20), min_size=1, max_size=40), st.data())
@settings(max_examples=40)
def test_fingerprints_grow_token_by_token_and_tell_prefixes_apart(tokens: list[int], data: st.DataObject) -> None:
    fingerprints = Fingerprints(64)
    whole = fingerprints.of(np.array(tokens))
    at = data.draw(st.integers(0, len(tokens) - 1))
    before = whole[at - 1 : at] if at else np.zeros(1, np.uint64)
    grown = fingerprints.extended(before, np.array(tokens[at : at + 1]), np.array([at]))
    assert grown[0] == whole[at]
    changed = [*tokens]
    changed[at] += 1
    other = fingerprints.of(np.array(changed))
    assert (other[:at] == whole[:at]).all()
    assert (other[at:] != whole[at:]).all()
    assert (whole != 0).all()
