"""SmolLM2 as we convert it, held against the GGUF loader of ``transformers``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from string import digits
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepshape.adapters.checkpoints.smollm2 import packaged_gguf

from ..engines import engine, greedy_reference

TEXT = (
    "The tide comes in twice a day. As the Moon goes around the Earth, its gravity pulls on the water of the oceans, "
    "and the water rises on the side that faces the Moon. On the far side it rises too, because the Earth itself is "
    "pulled away from the water there. In 1687 Isaac Newton explained this in his Principia."
)
TEXTS = [
    TEXT,
    "Hello, world!  Two spaces, a tab\tand a line\n\n  end.",
    "In 2026, 1234567 + 3.14159 = 1234570.14159; 三 and 12 a.m.",
    "def f(x):\n    return {'ü': x**2}  # naïve café, 東京, 🙂🙃",
    "<|im_start|>user\nWhat's it? They'll, we've, I'm<|im_end|>\n<empty_output><repo_name>x",
    "",
    " ",
]


@pytest.fixture(scope="module")
def ours(smollm2: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2)


@pytest.fixture(scope="module")
def theirs() -> Any:
    gguf = packaged_gguf()
    return AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)


def test_every_weight_and_logit_is_that_of_the_gguf(smollm2: Path, ours: Any) -> None:
    gguf = packaged_gguf()
    mine = AutoModelForCausalLM.from_pretrained(smollm2)
    reference = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    assert mine.dtype == torch.float32
    weights, expected = mine.state_dict(), reference.state_dict()
    assert weights.keys() == expected.keys()
    assert [name for name, weight in weights.items() if not torch.equal(weight, expected[name])] == []
    ids = torch.tensor([ours(TEXT).input_ids])
    with torch.no_grad():
        here, there = mine(ids, labels=ids), reference(ids, labels=ids)
    torch.testing.assert_close(here.logits, there.logits, rtol=0.0, atol=1e-4)
    # A model whose rotary rows are in the wrong order still talks, nats worse than the 2.3 that this text costs.
    assert here.loss.item() < 2.8
    assert mine.generation_config.eos_token_id == ours.eos_token_id == 2


def test_text_is_cut_into_the_same_tokens_and_put_together_again(ours: Any, theirs: Any) -> None:
    for text in TEXTS:
        ids = ours(text).input_ids
        assert ids == theirs(text).input_ids
        assert ours.decode(ids) == text
    assert ours.vocab_size == theirs.vocab_size == len(ours) == 49152
    assert ours.all_special_tokens == theirs.all_special_tokens


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs", "Nd", "Nl", "No"], include_characters=digits), max_size=60))
def test_any_text_is_cut_into_the_same_tokens(ours: Any, theirs: Any, text: str) -> None:
    ids = ours(text).input_ids
    assert ids == theirs(text).input_ids
    # Not `== text`: the vocabulary lacks a few bytes, so that a rare letter is lost with either.
    assert ours.decode(ids) == theirs.decode(ids)


def test_every_digit_stands_alone(ours: Any) -> None:
    # The pre-tokenizer that the file names; the loader of transformers overlooks it, which shows beyond ASCII.
    cut = ours.backend_tokenizer.pre_tokenizer.pre_tokenize_str
    assert [piece for piece, _ in cut("a 12½")] == ["a", "Ġ", "1", "2", "Â½"]


@pytest.mark.parametrize("ask", [True, False])
def test_a_chat_is_rendered_the_same(ours: Any, theirs: Any, ask: bool) -> None:
    chat = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "?"},
    ]
    rendered = ours.apply_chat_template(chat, tokenize=False, add_generation_prompt=ask)
    assert rendered == theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=ask)
    assert rendered.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert rendered.endswith("<|im_start|>assistant\n") is ask


CHATS = ("What is the capital of France?", "Count to ten.", "Why is the sky blue?", "Name three colours.")


@pytest.mark.parametrize(
    "cell",
    [
        {"lanes": 1, "asynchronous": False, "on_device": False},
        {"lanes": 4, "asynchronous": True, "on_device": True},
        {"lanes": 4, "asynchronous": True, "on_device": True, "budget": 48},
    ],
    ids=["1lane-sync-host", "4lanes-async-device", "4lanes-async-chunks"],
)
def test_greedy_text_is_transformers_own(smollm2: Path, ours: Any, cell: dict[str, Any]) -> None:
    from vllm import SamplingParams

    prompts = [
        ours(ours.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True))
        for text in CHATS
    ]
    ids = [prompt.input_ids for prompt in prompts]
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    # The dtype as a launch that names none has it.
    with engine(smollm2, rows=2, max_len=256, dtype="auto", **cell) as under_test:
        texts = under_test.tokens(ids, params)
        lanes = under_test.counts.tokens_by_lane
    assert texts == [greedy_reference(smollm2, prompt, 16) for prompt in ids]
    assert len(lanes) == cell["lanes"] and all(lanes)


def command(folder: Path, *blocked: str) -> subprocess.CompletedProcess[str]:
    """Run ``stepshape model smollm2 folder`` where the ``blocked`` packages are not installed."""
    code = (
        "import sys, importlib.abc\n"
        "class Absent(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in sys.argv[2:]: raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from stepshape.plugins.command_line.main import main\n"
        "sys.exit(main(['model', 'smollm2', sys.argv[1]]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(folder), *blocked], capture_output=True, text=True, check=False
    )


def test_the_command_knows_a_folder_that_is_done(smollm2: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in smollm2.iterdir()}
    result = command(smollm2)
    assert (result.returncode, result.stdout) == (0, f"{smollm2} holds SmolLM2-135M-Instruct already\n")
    assert {path: path.stat().st_mtime_ns for path in smollm2.iterdir()} == before


def test_the_command_refuses_with_a_cause_and_a_mend(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = command(tmp_path / "file")
    assert (result.returncode, result.stderr.strip()) == (
        1,
        f"stepshape: {tmp_path / 'file'} is a file; name a folder.",
    )
    result = command(tmp_path / "new", "gguf")
    assert result.returncode == 1
    assert result.stderr.strip() == "stepshape: the package gguf is missing; run: pip install 'stepshape[models]'"
    assert not (tmp_path / "new").exists()
