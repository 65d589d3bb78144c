"""One number for "these tokens, in these positions": how the emulator knows whose KV a block holds.

The KV of position p depends on tokens 0..p, and on nothing else. So each cache position remembers the
fingerprint of the tokens it was computed from, and each slot remembers the fingerprints of its request:
a read is right exactly where the two agree. A block handed to another request, written by a padded row, or
taken from a prefix cache by mistake shows at its first read.

The fingerprint of t[0..p] is the sum of (t[i] + 1) * B**i modulo 2**64; 0 stands for "never written".
"""
from __future__ import annotations

import numpy as np
import numpy.typing as npt

Prints = npt.NDArray[np.uint64]
UNWRITTEN = np.uint64(0)
_BASE = 0x9E3779B97F4A7C15


class Fingerprints:
    """Powers of the base, made once for ``length`` positions."""

    def __init__(self, length: int) -> None:
        self._powers: Prints = np.full(max(length, 1), _BASE, np.uint64)
        self._powers[0] = 1
        np.multiply.accumulate(self._powers, out=self._powers)

    def of(self, tokens: npt.NDArray[np.int64]) -> Prints:
        """uint64 [n]: the fingerprint of every prefix of ``tokens`` (int64 [n])."""
        terms = (tokens.astype(np.uint64) + np.uint64(1)) * self._powers[: len(tokens)]
        return np.add.accumulate(terms, dtype=np.uint64)

    def extended(self, before: Prints, tokens: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> Prints:
        """uint64 [n]: ``before`` (prefixes of length ``positions``) each with one more token."""
        grown: Prints = before + (tokens.astype(np.uint64) + np.uint64(1)) * self._powers[positions]
        return grown
