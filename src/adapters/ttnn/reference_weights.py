"""The reference model on paper: its weights as integers, and a pure-Python twin that gives the expected tokens.

The model is a small language model without any kernel that rounds. A token has a vector with a single one. Three
earlier positions vote for the next token, each by the token that stands there; the current token ranks all tokens;
the next one has the most votes, and among equals the highest rank:

    logits[v] = 64 * sum(VOTES[tokens[j]][v] for j in heads(p)) + RANKS[tokens[p]][v]

Every number on the way is a whole one up to 255, which bfloat16 holds exactly, and no two logits of a row are equal:
whatever order a device adds in and whatever fidelity it multiplies with, the text is the same. The three positions
reach back to a third of the context, so that a wrong page changes the text.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

VOCAB = 64
HEADS = 3
VOTE = 64
"""What a vote weighs: more than the span of the ranks."""

ALPHABET = " .abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
"""Token id to character, for the tokenizer of the example."""


def heads(position: int) -> tuple[int, int, int]:
    """The positions that vote at ``position``; one that comes twice votes twice."""
    return max(position - 1, 0), position // 2, position // 3


class ReferenceWeights:
    """``ranks`` [VOCAB][VOCAB]: each row a permutation of 0 to 63. ``votes`` [VOCAB][VOCAB]: 0 or 1."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.ranks = [draw.sample(range(VOCAB), VOCAB) for _ in range(VOCAB)]
        self.votes = [[draw.randrange(2) for _ in range(VOCAB)] for _ in range(VOCAB)]

    def logits(self, tokens: Sequence[int]) -> list[int]:
        """[VOCAB] after ``tokens``, of which there is at least one."""
        last = len(tokens) - 1
        ranks = self.ranks[tokens[last]]
        voters = [self.votes[tokens[head]] for head in heads(last)]
        return [VOTE * sum(votes[v] for votes in voters) + ranks[v] for v in range(VOCAB)]

    def continuation(self, prompt: Sequence[int], count: int) -> list[int]:
        """The ``count`` tokens that follow ``prompt``, greedily."""
        tokens = list(prompt)
        for _ in range(count):
            logits = self.logits(tokens)
            tokens.append(max(range(VOCAB), key=logits.__getitem__))
        return tokens[len(prompt) :]
