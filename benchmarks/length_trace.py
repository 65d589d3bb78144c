"""The length trace that padding is measured on: 2,000 requests, all waiting at the start."""

from __future__ import annotations

import numpy as np

REQUESTS = 2000
MAX_NUM_SEQS = 16
MAX_NUM_BATCHED_TOKENS = 512
BLOCK_SIZE = 128
MAX_MODEL_LEN = 10_240
"""Holds the longest prompt and the longest output together."""


def length_trace() -> list[tuple[int, int]]:
    """(prompt tokens, output tokens): lognormal with medians 256 and 128 and sigmas 1.2 and 1.0, clipped to 8192 and
    2048, from one generator seeded with 7, prompts drawn first."""
    random = np.random.default_rng(7)
    prompts = np.clip(random.lognormal(np.log(256), 1.2, REQUESTS), 1, 8192).astype(int)
    outputs = np.clip(random.lognormal(np.log(128), 1.0, REQUESTS), 1, 2048).astype(int)
    return list(zip(prompts.tolist(), outputs.tolist(), strict=True))
