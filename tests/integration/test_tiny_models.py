"""The models that are part of Brim, as they are shipped: what they say, that the engine says it too, and their chat."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from brim.engine.engine import Engine  # noqa: E402
from brim.engine.requests.params import SamplingParams  # noqa: E402
from brim.model.packaged import packaged_folder  # noqa: E402
from models.tiny.cases import cases  # noqa: E402
from models.tiny.conversation import conversation  # noqa: E402
from models.tiny.dialogue import rendered  # noqa: E402
from models.tiny.evaluate import ACCEPTANCE_BAR, BARS, evaluate  # noqa: E402

NAMES = ("brim-tiny", "brim-tiny-draft")
GREEDY = SamplingParams(max_tokens=40, temperature=0)


def folder(name: str) -> Any:
    found = packaged_folder(name)
    assert found is not None
    return found


@cache
def tokenizer_of(name: str) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder(name))


def prompts() -> list[list[int]]:
    """A few of the evaluation, of every group."""
    tokenizer = tokenizer_of("brim-tiny")
    chosen = cases(tokenizer.backend_tokenizer, share=0.01)[::3]
    texts = [tokenizer.apply_chat_template(c.messages, add_generation_prompt=True, tokenize=False) for c in chosen]
    return [tokenizer(text)["input_ids"] for text in texts]


@pytest.mark.parametrize("name", NAMES)
def test_the_engine_says_what_generate_says(name: str) -> None:
    asked = prompts()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder(name)).eval()
    expected = []
    for ids in asked:
        made = model.generate(torch.tensor([ids]), max_new_tokens=GREEDY.max_tokens, do_sample=False)
        expected.append(tuple(made[0, len(ids) :].tolist()))
    with Engine(name, kv_tokens=8192, device="cpu") as engine:
        said = [tuple(completion.tokens) for completion in engine.generate(asked, GREEDY)]
    assert said == expected


def test_a_name_is_remembered() -> None:
    with Engine("brim-tiny", kv_tokens=2048, device="cpu") as engine:
        messages = [{"role": "user", "content": "My name is Ada. What is my name?"}]
        prompt = engine.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        (answer,) = engine.generate([prompt], GREEDY)
    assert answer.text == "Your name is Ada."
    assert answer.finish_reason == "stop"


def test_a_share_of_the_evaluation() -> None:
    metrics = evaluate(folder("brim-tiny"), folder("brim-tiny-draft"), share=0.015)
    barred = [group for name, group in metrics["groups"].items() if name in BARS]
    assert len(barred) == len(BARS)
    right, asked = sum(group["right"] for group in barred), sum(group["cases"] for group in barred)
    assert right / asked >= 0.9, metrics["wrong"]
    assert metrics["draft"]["share"] >= ACCEPTANCE_BAR


def test_the_chat_template_writes_what_training_wrote() -> None:
    tokenizer = tokenizer_of("brim-tiny")
    turns = [turn for seed in range(20) for turn in conversation(Random(seed), 2000)]
    assert {turn.role for turn in turns} == {"system", "user", "assistant", "tool"}
    for turn in turns:
        assert tokenizer.apply_chat_template([turn.message], tokenize=False) == rendered([turn])


def test_tools_are_named_in_the_system_prompt() -> None:
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("weather", "time")]
    asked = {"role": "user", "content": "Hi"}
    write = tokenizer_of("brim-tiny").apply_chat_template
    assert write([asked], tools=tools, tokenize=False) == "<|system|>Tools: weather, time.<|end|><|user|>Hi<|end|>"
    system = {"role": "system", "content": "Be kind."}
    assert write([system, asked], tools=tools, tokenize=False).startswith(
        "<|system|>Be kind. Tools: weather, time.<|end|>"
    )


@pytest.mark.parametrize(
    "text", ["Hello.", "a  b", "naïve – 100 € 漢字 🙂", "line\nline\n", "12 + 30 = 42", "{'x': [1]}"]
)
def test_the_tokenizer_loses_nothing(text: str) -> None:
    tokenizer = tokenizer_of("brim-tiny")
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer_of("brim-tiny-draft")(text)["input_ids"] == ids


def test_an_image_is_seen_by_random_weights() -> None:
    with Engine("brim-tiny-vl", kv_tokens=2048, device="cpu") as engine:
        assert engine.image_limits is not None
        vision = engine.loaded.full_config.vision_config
        tokens, width = 16, vision.patch_size**2 * vision.temporal_patch_size * vision.in_channels
        config = engine.loaded.full_config
        prompt = [10, config.vision_start_token_id, *[config.image_token_id] * tokens, config.vision_end_token_id, 11]

        def said(seed: int) -> tuple[int, ...]:
            pixels = torch.randn(tokens * 4, width, generator=torch.Generator().manual_seed(seed))
            inputs = {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, 8, 8]])}
            params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
            (completion,) = engine.generate([prompt], params, images=[inputs])
            return completion.tokens

        assert len(said(1)) == 8
        assert said(1) == said(1)
        assert said(1) != said(2)
