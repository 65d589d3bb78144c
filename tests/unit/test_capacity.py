from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepshape.domain.capacity import (
    blocks_per_row,
    cdiv,
    extra_tokens,
    kv_blocks,
    largest_model_len,
    refuse_model_len,
)


def test_field_case_33_the_last_user_is_not_preempted() -> None:
    """32 users of 2k in and 2k out in 128k tokens of KV, block 64, lookahead 9: 2336 tokens on top."""
    assert extra_tokens(rows=32, block_size=64, lookahead=9) == 2336
    blocks = kv_blocks(tokens_all_users=131_072, rows=32, block_size=64, lookahead=9)
    assert blocks == cdiv(131_072 + 2336, 64) == 2085
    assert 32 * cdiv(4096 + 9, 64) <= blocks - 1


def test_the_contracts_default_budget_gives_one_extra_block_a_user() -> None:
    assert kv_blocks(tokens_all_users=131_072, rows=32, block_size=64) == 2048 + 32


def test_hybrid_classes_get_head_room_for_eight_windows_a_row() -> None:
    plain = kv_blocks(tokens_all_users=65_536, rows=4, block_size=64)
    hybrid = kv_blocks(tokens_all_users=65_536, rows=4, block_size=64, sliding_window=1024)
    assert hybrid - plain == 1024 * 4 * 8 // 64


@given(
    lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=64),
    block_size=st.sampled_from([1, 16, 32, 64, 128]),
    lookahead=st.integers(0, 16),
    spare=st.integers(0, 100),
)
def test_users_that_fill_the_budget_always_fit(lengths: list[int], block_size: int, lookahead: int, spare: int) -> None:
    """Whatever the lengths, and with the null block taken away."""
    blocks = kv_blocks(
        tokens_all_users=sum(lengths) + spare, rows=len(lengths), block_size=block_size, lookahead=lookahead
    )
    assert sum(cdiv(length + lookahead, block_size) for length in lengths) <= blocks - 1


@given(num_blocks=st.integers(1, 1000), block_size=st.sampled_from([16, 64]), length=st.integers(1, 70_000))
def test_what_is_refused_does_not_fit_and_what_is_not_does(num_blocks: int, block_size: int, length: int) -> None:
    largest = largest_model_len(num_blocks, block_size)
    refused = refuse_model_len(length, num_blocks, block_size)
    assert (refused is None) == (cdiv(length, block_size) <= num_blocks - 1) == (length <= largest)


def test_field_case_34_the_refusal_names_the_largest_that_fits() -> None:
    assert refuse_model_len(4096, num_blocks=33, block_size=64) == (
        "max_model_len=4096 does not fit the KV pool of a lane (33 blocks of 64 tokens, one of them the null block); "
        "the largest that fits is 2048, use --max-model-len 2048"
    )
    assert refuse_model_len(2048, num_blocks=33, block_size=64) is None
    only = refuse_model_len(16, num_blocks=1, block_size=64)
    assert only is not None
    assert only.startswith("a KV pool of 1 blocks of 64 tokens holds no request")


def test_page_tables_are_as_wide_as_the_longest_request_or_the_pool() -> None:
    assert blocks_per_row(1024, 64, 2000) == 16
    assert blocks_per_row(1025, 64, 2000) == 17
    assert blocks_per_row(131_072, 64, 100) == 100
