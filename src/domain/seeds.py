"""Seeded streams that follow the request: the n-th token's randomness depends on (request seed, n) alone."""
from __future__ import annotations

_MASK = (1 << 64) - 1


def token_seed(seed: int, n: int) -> int:
    """Seed of a request's ``n``-th generated token (n >= 0), in [0, 2**63).

    No stream is kept, so none can be advanced by a step the request sat out, lost by a preemption, or shared with a
    neighbour. The mix is splitmix64's finalizer (Steele, Lea, Flood 2014) over the seed and n golden-ratio steps.
    """
    x = (seed * 0xD1342543DE82EF95 + (n + 1) * 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return (x ^ (x >> 31)) >> 1
