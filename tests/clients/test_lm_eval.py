"""lm-eval over HTTP: log-likelihoods as transformers computes them on the same weights, and generated answers."""

from __future__ import annotations

from functools import cache
from typing import Any

import lm_eval
import pytest
import torch
from datasets import Dataset
from lm_eval.api.task import ConfigurableTask
from transformers import AutoModelForCausalLM, AutoTokenizer

from brim.model.packaged import packaged_folder
from tests.clients.serving import ADA, ADA_ANSWER, KEY, MODEL

CHOICES = [" five", " six", " a much longer answer, which no one would give."]
QUESTIONS = ["One two three four", "My name is Ada. My favourite number is", "2 + 3 ="]


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def task(name: str, rows: list[dict[str, Any]], **config: Any) -> ConfigurableTask:
    """A task of lm-eval over rows that are given here."""
    made: dict[str, Any] = {"task": name, "test_split": "test", "doc_to_text": "{{question}}", **config}
    return ConfigurableTask(config={**made, "custom_dataset": lambda **_: {"test": Dataset.from_list(rows)}})


def evaluate(model: str, url: str, asked: ConfigurableTask, **options: Any) -> list[Any]:
    """The samples of a run, in the order of the rows."""
    arguments = {"model": MODEL, "base_url": url, "max_retries": 1, "timeout": 60, **options.pop("arguments", {})}
    found = lm_eval.simple_evaluate(
        model=model, model_args=arguments, tasks=[asked], bootstrap_iters=0, verbosity="ERROR", **options
    )
    assert found is not None
    return sorted(found["samples"][asked.config.task], key=lambda sample: sample["doc_id"])


@cache
def loaded() -> tuple[Any, Any]:
    """The tokenizer and the model of the reference."""
    folder = packaged_folder(MODEL)
    assert folder is not None
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return AutoTokenizer.from_pretrained(folder), model.eval()


@torch.inference_mode()
def reference(text: str, continuation: str) -> tuple[float, bool]:
    """The log-likelihood of a continuation by transformers, and whether it is what greedy decoding would write."""
    tokenizer, model = loaded()
    ids, before = tokenizer(text + continuation)["input_ids"], len(tokenizer(text)["input_ids"])
    scores = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    rows, tokens = scores[before - 1 : -1], torch.tensor(ids[before:])
    return float(rows.gather(1, tokens[:, None]).sum()), bool((rows.argmax(-1) == tokens).all())


@pytest.mark.parametrize("arguments", [{"tokenized_requests": True}, {"tokenized_requests": False}, {"batch_size": 4}])
def test_log_likelihoods_are_those_of_transformers(url: str, arguments: dict[str, Any]) -> None:
    rows = [{"question": question, "answer": 0} for question in QUESTIONS]
    asked = task(
        "sums", rows, output_type="multiple_choice", doc_to_choice=CHOICES, doc_to_target="answer", target_delimiter=""
    )
    arguments = {"tokenizer": str(packaged_folder(MODEL)), "tokenizer_backend": "huggingface", **arguments}
    samples = evaluate("local-completions", f"{url}/v1/completions", asked, arguments=arguments)
    for question, sample in zip(QUESTIONS, samples, strict=True):
        for choice, answer in zip(CHOICES, sample["filtered_resps"], strict=True):
            wanted, greedy = reference(question, choice)
            assert float(answer[0]) == pytest.approx(wanted, abs=1e-3), (question, choice)
            assert (answer[1] in (True, "True")) == greedy


def test_generated_answers(url: str) -> None:
    generation = {"until": ["\n"], "max_gen_toks": 24, "temperature": 0}
    asked = task(
        "names",
        [{"question": ADA, "answer": ADA_ANSWER}],
        output_type="generate_until",
        doc_to_target="answer",
        generation_kwargs=generation,
        metric_list=[{"metric": "exact_match"}],
    )
    samples = evaluate("local-chat-completions", f"{url}/v1/chat/completions", asked, apply_chat_template=True)
    assert samples[0]["filtered_resps"] == [ADA_ANSWER]
    assert samples[0]["exact_match"] == 1
