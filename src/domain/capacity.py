"""How many KV blocks a lane gets, and what fits in them (tenstorrent contract 7.4; field cases 33 and 34)."""

from __future__ import annotations

DEFAULT_TOKENS_ALL_USERS = 131_072
"""KV tokens a lane where the model class names no budget (contract 7.4)."""

SLIDING_GROUPS = 8
"""Sliding-window groups a hybrid class is given head-room for (contract 7.4)."""


def cdiv(amount: int, size: int) -> int:
    """``amount / size`` rounded up."""
    return -(-amount // size)


def extra_tokens(rows: int, block_size: int, lookahead: int = 0) -> int:
    """KV tokens on top of the users' own so that ``rows`` users fill the budget and none is preempted.

    A user's last block may be all but empty, and ``lookahead`` positions are reserved past its last token: a user of
    L tokens holds ``ceil((L + lookahead) / block_size)`` blocks, which is less than ``L + lookahead + block_size``
    tokens. Thus ``rows * (block_size + lookahead)``: 32 users, block 64, lookahead 9 give 2336 (field case 33). The
    rounding that is left over pays for vLLM's null block, which no request can have.
    """
    return rows * (block_size + lookahead)


def kv_blocks(
    *,
    tokens_all_users: int,
    rows: int,
    block_size: int,
    lookahead: int = 0,
    sliding_window: int | None = None,
) -> int:
    """Blocks of one lane's pool, the null block included.

    ``tokens_all_users`` is the model's KV budget for all users of ONE lane and ``rows`` the lane's rows, never the
    global count (contract 8.28). ``sliding_window`` is given only for classes that really emit sliding-window specs:
    each row then gets head-room for :data:`SLIDING_GROUPS` windows.
    """
    tokens = tokens_all_users + extra_tokens(rows, block_size, lookahead)
    if sliding_window is not None:
        tokens += sliding_window * rows * SLIDING_GROUPS
    return cdiv(tokens, block_size)


def largest_model_len(num_blocks: int, block_size: int) -> int:
    """Longest request that a pool of ``num_blocks`` can hold alone; block 0 is vLLM's null block."""
    return max(0, num_blocks - 1) * block_size


def blocks_per_row(max_model_len: int, block_size: int, num_blocks: int) -> int:
    """W, the width of every page table: constant for the engine's life, or a captured trace fails its shape check."""
    return min(cdiv(max_model_len, block_size), num_blocks)


def refuse_model_len(max_model_len: int, num_blocks: int, block_size: int) -> str | None:
    """A sentence if one request of ``max_model_len`` tokens does not fit a lane's pool, else None.

    Such a request would be preempted and parked for ever (field case 34), so the start fails with the largest that
    fits.
    """
    largest = largest_model_len(num_blocks, block_size)
    if max_model_len <= largest:
        return None
    if largest == 0:
        return (
            f"a KV pool of {num_blocks} blocks of {block_size} tokens holds no request, since one block is the null "
            "block; give the model a larger KV budget"
        )
    return (
        f"max_model_len={max_model_len} does not fit the KV pool of a lane ({num_blocks} blocks of {block_size} "
        "tokens, one of "
        f"them the null block); the largest that fits is {largest}, use --max-model-len {largest}"
    )
