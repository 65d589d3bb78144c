from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepshape.adapters.ttnn.reference_weights import ALPHABET, VOCAB, ReferenceWeights, heads

WEIGHTS = ReferenceWeights(0)
TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=80)


@given(TOKENS)
def test_logits_are_whole_distinct_and_exact_in_bfloat16(tokens: list[int]) -> None:
    logits = WEIGHTS.logits(tokens)
    assert len(set(logits)) == VOCAB
    assert min(logits) >= 0
    assert max(logits) <= 255


@given(TOKENS)
def test_every_head_is_heard(tokens: list[int]) -> None:
    position = len(tokens) - 1
    for head in heads(position):
        assert 0 <= head <= position
        changed = list(tokens)
        changed[head] = (tokens[head] + 1) % VOCAB
        assert WEIGHTS.logits(changed) != WEIGHTS.logits(tokens)


def test_the_text_is_of_the_seed_and_long_without_a_loop() -> None:
    text = WEIGHTS.continuation([1, 2, 3], 128)
    assert text == ReferenceWeights(0).continuation([1, 2, 3], 128)
    assert text != ReferenceWeights(1).continuation([1, 2, 3], 128)
    assert all(text[:i] * 2 != text[-2 * i :] for i in range(1, 17))
    assert len(set(text)) > 24


def test_a_continuation_may_be_taken_in_pieces() -> None:
    whole = WEIGHTS.continuation([5], 20)
    first = WEIGHTS.continuation([5], 7)
    assert whole == first + WEIGHTS.continuation([5, *first], 13)


@pytest.mark.parametrize("text", ["Hello World. 42"])
def test_the_alphabet_has_a_character_a_token(text: str) -> None:
    assert len(set(ALPHABET)) == VOCAB
    assert all(character in ALPHABET for character in text)
