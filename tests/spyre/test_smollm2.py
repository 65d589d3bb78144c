"""SmolLM2-135M on the emulated card as it rounds: heads of 64 lanes in 128, nine of them over three KV heads.

fp16 text is not comparable across orders of operations. What is: under teacher forcing the best token is that of fp32
nearly always, and where it is not the two were nearly tied.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ..spyre_engines import greedy, spyre_engine

TEXTS = (
    "The tide comes in twice a day, because the Moon pulls on the water of the oceans as the Earth turns beneath it.",
    "Paris is the capital of France, and the Seine runs through it from the south-east to the north-west.",
    "A prime number has exactly two divisors, one and itself; the first of them are 2, 3, 5, 7, 11 and 13.",
    "def add(a, b):\n    # Return the sum of two numbers.\n    return a + b\n\nprint(add(2, 3))\n",
    "In 1687 Isaac Newton published his Principia, in which he explained the motion of the planets by gravity.",
    "Bees make honey from the nectar of flowers. They store it in combs of wax, and eat it through the winter.",
    "Plants take in carbon dioxide and water, and with the light of the Sun they make sugar and give off oxygen.",
    "To bake bread you need flour, water, salt and yeast. Knead the dough, let it rise, and bake it until brown.",
    "The first computer program was written by Ada Lovelace, for a machine that was never built in her lifetime.",
    "Once upon a time there was a little girl who lived with her grandmother in a house at the edge of the forest.",
    "Water boils at one hundred degrees Celsius at sea level, and at a lower temperature on top of a mountain.",
    "HTTP stands for Hypertext Transfer Protocol. A browser sends a request, and the server sends a response.",
    "The cat sat on the mat, and the dog lay by the fire. Outside it was raining, and nobody wanted to go out.",
    "If all men are mortal, and Socrates is a man, then Socrates is mortal. This is called a syllogism.",
    "Sound travels through air at about three hundred and forty metres a second, and faster through water.",
    "Dear Sir or Madam, I am writing to ask whether the position that you advertised last week is still open.",
)
NEAR_TIE = 0.05
"""Nats between the two tokens, in fp32, where fp16 may prefer the other."""


def test_teacher_forcing_agrees_with_fp32(smollm2: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2)
    load: Any = AutoModelForCausalLM
    model = load.from_pretrained(smollm2, dtype=torch.float32).eval()
    prompts = [tokenizer(text).input_ids for text in TEXTS]
    with spyre_engine(smollm2, block_size=128, max_num_seqs=8) as engine:
        outs = engine.run(prompts, greedy(1, prompt_logprobs=1))
        assert engine.late == 0
    places = agreed = 0
    for prompt, out in zip(prompts, outs, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt])).logits[0]
        logprobs = torch.log_softmax(logits, -1)
        seen = [max(entry.items(), key=lambda item: item[1].logprob)[0] for entry in out.prompt_logprobs[1:]]
        seen.append(out.outputs[0].token_ids[0])
        for place, token in enumerate(seen):
            best = int(logprobs[place].argmax())
            places += 1
            agreed += token == best
            assert logprobs[place, best] - logprobs[place, token] < NEAR_TIE, (prompt, place)
    assert places > 350
    assert agreed / places >= 0.99


def test_json_that_a_schema_asks_for(smollm2: Path) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "rivers": {"type": "integer"}},
        "required": ["city", "rivers"],
        "additionalProperties": False,
    }
    asked = SamplingParams(
        temperature=0.0, max_tokens=48, structured_outputs=StructuredOutputsParams(json=json.dumps(schema))
    )
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2)
    chat = [{"role": "user", "content": "Name a city and how many rivers it has, as JSON."}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
    with spyre_engine(smollm2, block_size=128, max_num_seqs=2, skip_tokenizer_init=False) as engine:
        text = engine.run([prompt], asked)[0].outputs[0].text
    assert set(json.loads(text)) == {"city", "rivers"}
