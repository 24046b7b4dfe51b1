"""Bodies of /v1/embeddings, /v1/score and /v1/rerank, and their answers."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from brim.serve.problems import Problem
from brim.serve.requests.pooling import MOST_INPUTS, EmbeddingsBody, RerankBody, ScoreBody, score_sides
from brim.serve.requests.types import ServedModel
from brim.serve.responses.pooling import VectorCoding, embeddings_pieces, finished, probability, rerank_answer

MODEL = ServedModel("tiny", vocab=100, longest=64)


def refused(body: type, found: dict[str, Any]) -> Problem:
    with pytest.raises(Problem) as problem:
        body.read_body(found, MODEL)
    assert problem.value.status == 400
    return problem.value


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_inputs_in_all_their_forms(given: Any, read: Any) -> None:
    assert EmbeddingsBody.read_body({"input": given, "user": "u"}, MODEL).input == read


@pytest.mark.parametrize(
    ("found", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": []}, "input"),
        ({"input": [[100]]}, "input[0]"),
        ({"input": ["a"] * (MOST_INPUTS + 1)}, "input"),
        ({"input": "a", "encoding_format": "bytes"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "truncate_prompt_tokens": 65}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "inputs": "b"}, "inputs"),
    ],
)
def test_what_is_wrong_is_named(found: dict[str, Any], param: str) -> None:
    assert refused(EmbeddingsBody, found).param == param


def test_minus_one_cuts_to_what_the_model_takes() -> None:
    assert EmbeddingsBody.read_body({"input": "a", "truncate_prompt_tokens": -1}, MODEL).truncate_prompt_tokens == 64


@pytest.mark.parametrize(
    "names", [("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2"), ("queries", "items")]
)
def test_two_sides_under_all_their_names(names: tuple[str, str]) -> None:
    one = ScoreBody.read_body({names[0]: "q", names[1]: ["a", {"text": "b"}]}, MODEL)
    assert score_sides(one) == (names[1], ("q", "q"), ("a", "b"))


def test_sides_of_other_lengths_are_refused() -> None:
    with pytest.raises(Problem, match="2 texts; one is needed, or as many as text_2, 3"):
        score_sides(ScoreBody.read_body({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, MODEL))
    with pytest.raises(Problem, match="text_1 and text_2 are needed"):
        score_sides(ScoreBody.read_body({"text_1": "a", "documents": "b"}, MODEL))


def test_documents_of_a_rerank_may_be_objects() -> None:
    assert RerankBody.read_body({"query": "q", "documents": ["a", {"text": "b"}]}, MODEL).documents == ("a", "b")
    assert refused(RerankBody, {"query": "q", "documents": []}).param == "documents"


def test_embeddings_are_cut_and_normalised_again() -> None:
    vector = np.array([3.0, 4.0, 12.0], np.float32)
    assert finished(vector, 2, normalise=True).tolist() == pytest.approx([0.6, 0.8])
    assert finished(vector, None, normalise=False).tolist() == [3.0, 4.0, 12.0]


def test_an_answer_in_pieces_is_json() -> None:
    vectors = [np.array([0.5, -1.0], np.float32), np.array([2.0, 0.25], np.float32)]
    whole = json.loads(b"".join(embeddings_pieces("tiny", vectors, 7, VectorCoding())))
    assert [one["embedding"] for one in whole["data"]] == [[0.5, -1.0], [2.0, 0.25]]
    assert (whole["object"], whole["model"], whole["usage"]["prompt_tokens"]) == ("list", "tiny", 7)


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_embeddings_in_base64(dtype: str, order: str) -> None:
    torch = pytest.importorskip("torch")
    vector = np.random.default_rng(0).normal(size=16).astype(np.float32)
    stored = base64.b64decode(VectorCoding(True, dtype, order).written(vector))
    size = len(stored) // 16
    numbers = np.frombuffer(stored, f"{'<' if order == 'little' else '>'}u{size}").astype(f"u{size}").copy()
    kind = getattr(torch, dtype)
    found = torch.from_numpy(numbers.view(f"i{size}")).view(kind)
    assert torch.equal(found, torch.from_numpy(vector).to(kind))


def test_the_best_documents_come_first() -> None:
    found = rerank_answer("tiny", [0.1, 0.9, 0.5], 3, ["a", "b", "c"], top=2)
    assert [(one["index"], one["document"]["text"]) for one in found["results"]] == [(1, "b"), (2, "c")]
    assert "document" not in rerank_answer("tiny", [0.1], 3, None, None)["results"][0]


def test_probabilities_do_not_overflow() -> None:
    assert [probability(one) for one in (-1e4, 0.0, 1e4)] == pytest.approx([0.0, 0.5, 1.0])
