"""SmolLM2-135M without rounding: greedy text is that of ``transformers``, token for token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..engines import greedy_reference
from ..spyre_engines import greedy, spyre_engine

QUESTIONS = ("Why do the tides come twice a day?", "What is a prime number?", "Write one line about rain.")


def test_greedy_text_is_that_of_transformers(smollm2: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        for question in QUESTIONS
    ]
    with spyre_engine(smollm2, block_size=128) as engine:
        got = engine.tokens(prompts, greedy(40))
        assert engine.late == 0
    assert got == [greedy_reference(smollm2, prompt, 40) for prompt in prompts]
