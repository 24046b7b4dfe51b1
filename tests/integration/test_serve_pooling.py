"""Embeddings, scores and reranking over HTTP: the official client, refusals, many inputs beside few, memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("openai")

import openai

from brim.batch_fit import fit_batches
from brim.engine.pooling.engine import PoolingEngine, PoolingSettings
from brim.engine.pooling.loading import PoolingSource
from brim.engine.pooling.requests import PoolingInput
from brim.probes.cpu import CpuProbe
from brim.serve.prepare.inputs import QWEN3_PREFIX, QWEN3_SUFFIX
from brim.serve.responses.pooling import finished, probability
from brim.units import MIB
from tests.integration import tiny_pooling as tiny
from tests.integration.served import BuiltPooling, Served, served, wait

TEXTS = ["the cat sat on the mat", "a dog", "deep quiet river bank star !"]
KEYS = ("first-key", "second-key")


def built(folder: Path, rows: int = 8, tokens: int = 256, **options: Any) -> BuiltPooling:
    probe = CpuProbe(64 * MIB, counts_serving=False)
    engine = PoolingEngine(
        PoolingSource(str(folder), **options), settings=PoolingSettings(rows, tokens), probe=probe, progress=False
    )
    return BuiltPooling(engine, probe, fit_batches(engine, probe=probe, canary_bytes=MIB))


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tiny.qwen3_embedding(
        tmp_path_factory.mktemp("models") / "Qwen3-Embedding-tiny", prompts={"query": "the query : ", "document": ""}
    )
    with served(built(folder), threads=True, api_keys=KEYS, max_queue=8) as found:
        yield found
        assert found.is_empty()


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(built(tiny.bert_reranker(tmp_path_factory.mktemp("models") / "m")), threads=True) as found:
        yield found
        assert found.is_empty()


def wanted(engine: PoolingEngine, texts: list[str]) -> np.ndarray:
    """By the same engine's model, each text alone."""
    tokens = [np.asarray(engine.tokenizer(text)["input_ids"], np.int32) for text in texts]
    return np.stack(
        [finished(engine.model.run([PoolingInput(one)])[0], None, engine.model.normalise) for one in tokens]
    )


# -- embeddings ----------------------------------------------------------------------------------------------------


def test_the_official_client_gets_embeddings(embedder: Served) -> None:
    with openai.OpenAI(base_url=f"{embedder.url}/v1", api_key=KEYS[0], max_retries=0) as client:
        plain = client.embeddings.create(model="tiny", input=TEXTS, encoding_format="float")
        coded = client.embeddings.create(model="tiny", input=TEXTS)  # base64, as the client asks by itself
    found = np.array([one.embedding for one in plain.data])
    np.testing.assert_allclose(found, wanted(embedder.engine, TEXTS), atol=1e-5)
    np.testing.assert_allclose([one.embedding for one in coded.data], found, atol=1e-7)
    assert [one.index for one in plain.data] == [0, 1, 2]
    count = sum(len(embedder.engine.tokenizer(text)["input_ids"]) for text in TEXTS)
    assert (plain.usage.prompt_tokens, plain.usage.total_tokens) == (count, count)


def test_token_ids_and_special_tokens(embedder: Served) -> None:
    ids = [embedder.engine.tokenizer(text)["input_ids"] for text in TEXTS]
    for given in (ids, ids[0]):
        answer = embedder.post("/v1/embeddings", {"input": given}).json()
        few = TEXTS if given is ids else TEXTS[:1]
        np.testing.assert_allclose(
            [one["embedding"] for one in answer["data"]], wanted(embedder.engine, few), atol=1e-5
        )
    bare = embedder.post("/v1/embeddings", {"input": TEXTS[0], "add_special_tokens": False}).json()
    assert bare["usage"]["prompt_tokens"] == len(ids[0]) - 1


def test_dimensions_are_cut_and_normalised_again(embedder: Served) -> None:
    (found,) = embedder.post("/v1/embeddings", {"input": TEXTS[0], "dimensions": 8}).json()["data"]
    cut = wanted(embedder.engine, TEXTS[:1])[0][:8]
    np.testing.assert_allclose(found["embedding"], cut / np.linalg.norm(cut), atol=1e-5)
    refused = embedder.post("/v1/embeddings", {"input": TEXTS[0], "dimensions": 33})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "dimensions")


def test_a_prompt_that_the_model_names(embedder: Served) -> None:
    (found,) = embedder.post("/v1/embeddings", {"input": "a dog", "prompt_name": "query"}).json()["data"]
    np.testing.assert_allclose(found["embedding"], wanted(embedder.engine, ["the query : a dog"])[0], atol=1e-5)
    refused = embedder.post("/v1/embeddings", {"input": "a dog", "prompt_name": "quarry"})
    assert "it has document, query" in refused.json()["error"]["message"]


def test_without_normalisation(embedder: Served) -> None:
    (raw,) = embedder.post("/v1/embeddings", {"input": "a dog", "use_activation": False}).json()["data"]
    assert abs(np.linalg.norm(raw["embedding"]) - 1) > 0.1
    np.testing.assert_allclose(
        raw["embedding"] / np.linalg.norm(raw["embedding"]), wanted(embedder.engine, ["a dog"])[0], atol=1e-5
    )


def test_what_is_too_long_is_refused_by_name_or_cut(embedder: Served) -> None:
    refused = embedder.post("/v1/embeddings", {"input": ["a", "the " * 100]})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (400, "input[1]", "context_length_exceeded")
    assert "101 tokens; this model takes 96" in error["message"]
    cut = embedder.post("/v1/embeddings", {"input": "the " * 100, "truncate_prompt_tokens": 10}).json()
    assert cut["usage"]["prompt_tokens"] == 10
    most = embedder.post("/v1/embeddings", {"input": "the " * 100_000, "truncate_prompt_tokens": -1}).json()
    assert most["usage"]["prompt_tokens"] == 96
    ids = embedder.post("/v1/embeddings", {"input": [7] * 200, "truncate_prompt_tokens": 12}).json()
    assert ids["usage"]["prompt_tokens"] == 12
    too_many = embedder.post("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 97})
    assert "Please request a smaller truncation size." in too_many.json()["error"]["message"]


def test_half_of_a_pair_is_refused_by_the_input_that_has_it(embedder: Served) -> None:
    body = b'{"input": ["a", "\\ud800"]}'
    refused = embedder.post("/v1/embeddings", content=body, headers={"content-type": "application/json"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input[1]")


def test_too_many_tokens_in_all_are_refused(embedder: Served) -> None:
    refused = embedder.post("/v1/embeddings", {"input": [[7] * 200] * 2000, "truncate_prompt_tokens": -1})
    if refused.status_code == 200:  # 96 of each are below the bound
        assert refused.json()["usage"]["prompt_tokens"] == 192_000
    again = embedder.post("/v1/embeddings", {"input": [[7]] * 2049})
    assert "at most 2048" in again.json()["error"]["message"]


# -- scores --------------------------------------------------------------------------------------------------------


def test_a_model_that_embeds_scores_by_similarity(embedder: Served) -> None:
    vectors = wanted(embedder.engine, TEXTS)
    for path in ("/v1/score", "/score"):
        answer = embedder.post(path, {"text_1": TEXTS[0], "text_2": TEXTS}).json()
        assert [one["score"] for one in answer["data"]] == pytest.approx((vectors @ vectors[0]).tolist(), abs=1e-5)
    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        answer = embedder.post(path, {"query": TEXTS[0], "documents": TEXTS, "top_n": 1}).json()
        assert [(one["index"], one["document"]["text"]) for one in answer["results"]] == [(0, TEXTS[0])]


def test_a_model_that_scores_pairs(reranker: Served) -> None:
    engine = reranker.engine
    logits = []
    for text in TEXTS:
        found = engine.tokenizer("a cat", text, return_token_type_ids=True)
        one = PoolingInput(np.asarray(found["input_ids"], np.int32), found["token_type_ids"].index(1))
        logits.append(float(engine.model.run([one])[0][0]))
    answer = reranker.post("/v1/score", {"queries": "a cat", "documents": TEXTS}).json()
    assert [one["score"] for one in answer["data"]] == pytest.approx([probability(one) for one in logits], abs=1e-5)
    raw = reranker.post("/v1/rerank", {"query": "a cat", "documents": TEXTS, "use_activation": False}).json()
    assert [one["relevance_score"] for one in raw["results"]] == pytest.approx(sorted(logits, reverse=True), abs=1e-5)
    assert raw["usage"]["prompt_tokens"] == sum(len(engine.tokenizer("a cat", text)["input_ids"]) for text in TEXTS)


@pytest.mark.parametrize("make", [tiny.bert_reranker, tiny.xlm_roberta_reranker])
def test_scores_are_those_of_sentence_transformers(make: Callable[[Path], Path], tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = make(tmp_path / "m")
    with served(built(folder), threads=True) as found:
        answer = found.post("/v1/score", {"text_1": "a cat", "text_2": TEXTS}).json()
    wanted = library.CrossEncoder(str(folder), device="cpu").predict([("a cat", text) for text in TEXTS])
    assert [one["score"] for one in answer["data"]] == pytest.approx(wanted.tolist(), abs=1e-5)


def test_pairs_that_are_too_long(reranker: Served) -> None:
    long = {"query": "a cat", "documents": ["a dog", "star " * 90]}
    refused = reranker.post("/v1/rerank", long)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "documents[1]")
    assert "Please reduce the length of the input prompt" in refused.text
    assert reranker.post("/v1/rerank", long | {"truncate_prompt_tokens": 64}).status_code == 200
    cut = reranker.post("/v1/rerank", {"query": "a cat", "documents": ["star " * 90], "max_tokens_per_doc": 10})
    assert cut.json()["usage"]["prompt_tokens"] == 15


def test_a_reranker_that_is_asked_yes_or_no_has_its_template(tmp_path: Path) -> None:
    folder = tiny.qwen3_reranker(tmp_path / "Qwen3-Reranker-tiny")
    with served(built(folder, tokens=1024), threads=True) as found:
        tokenizer, model = found.engine.tokenizer, found.engine.model
        body = "<Instruct>: star\n<Query>: a cat\n<Document>: a dog"
        ids = [
            one
            for text in (QWEN3_PREFIX, body, QWEN3_SUFFIX)
            for one in tokenizer(text, add_special_tokens=False)["input_ids"]
        ]
        logit = float(model.run([PoolingInput(np.asarray(ids, np.int32))])[0][0])
        answer = found.post("/v1/score", {"text_1": "a cat", "text_2": "a dog", "instruction": "star"}).json()
        assert answer["data"][0]["score"] == pytest.approx(probability(logit), abs=1e-5)
        assert answer["usage"]["prompt_tokens"] == len(ids)


# -- the server ----------------------------------------------------------------------------------------------------


def test_other_endpoints_say_what_is_served(embedder: Served, reranker: Served) -> None:
    chat = embedder.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})
    assert (chat.status_code, chat.json()["error"]["code"]) == (404, "other_task")
    assert "embeds texts: use /v1/embeddings" in chat.json()["error"]["message"]
    counted = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
    count = embedder.post("/v1/messages/count_tokens", counted)
    assert (count.status_code, count.json()["type"]) == (404, "error")
    assert "embeds texts" in count.json()["error"]["message"]
    embeddings = reranker.post("/v1/embeddings", {"input": "a"})
    assert embeddings.status_code == 404
    assert "scores pairs of texts: use /v1/score" in embeddings.json()["error"]["message"]


def test_what_is_known_of_the_server(embedder: Served) -> None:
    embedder.post("/v1/embeddings", {"input": TEXTS})
    (model,) = embedder.get("/v1/models").json()["data"]
    assert model["max_model_len"] == 96
    report = embedder.get("/v1/memory").json()
    assert report["fit"]["batch_tokens"] == 256
    assert sum(part["bytes"] for part in report["card"]["parts"]) == report["card"]["total_bytes"] == 64 * MIB
    assert {part["name"] for part in report["card"]["parts"]} == {"weights", "activation", "canary", "free"}
    metrics = embedder.get("/metrics").text
    assert 'brim_requests_total{path="/v1/embeddings",status="200"}' in metrics
    assert "brim_weight_bytes" in metrics
    assert embedder.get("/health").json() == {"status": "ready"}
    assert embedder.post("/tokenize", {"prompt": "a cat"}).json()["count"] == 3
    paths = embedder.get("/openapi.json").json()["paths"]
    assert "/v1/embeddings" in paths
    assert "/v1/chat/completions" not in paths


def test_two_thousand_inputs_of_one_client_do_not_keep_another_waiting(embedder: Served) -> None:
    many = {"input": [f"{tiny.WORDS[place % 14]} cat sat on the mat " * 4 for place in range(2048)]}
    with ThreadPoolExecutor(2) as pool, embedder.client() as other:
        other.headers["Authorization"] = f"Bearer {KEYS[1]}"
        began = time.monotonic()
        huge = pool.submit(embedder.post, "/v1/embeddings", many)
        wait(lambda: embedder.engine.figures.waiting > 1000)
        took = []
        while not huge.done() and len(took) < 20:
            start = time.monotonic()
            assert other.post("/v1/embeddings", json={"input": "a dog"}).status_code == 200
            took.append(time.monotonic() - start)
        answer = huge.result().json()
        whole = time.monotonic() - began
    assert len(answer["data"]) == 2048
    assert len(took) > 3
    assert sorted(took)[len(took) // 2] < whole / 5


def test_an_input_that_cannot_run_fails_its_request_alone(tmp_path: Path) -> None:
    with served(built(tiny.bert(tmp_path / "m")), threads=True) as found:
        found.engine.fail_long_inputs(30)
        with ThreadPoolExecutor(4) as pool:
            texts = ["the " * 40 if place == 2 else "a dog sat" for place in range(4)]
            answers = list(pool.map(lambda text: found.post("/v1/embeddings", {"input": ["a cat", text]}), texts))
        assert [one.status_code for one in answers] == [200, 200, 500, 200]
        error = answers[2].json()["error"]
        assert error["code"] == "request_failed"
        assert "input[1]: 42 of the 42 tokens" in error["message"]
        assert found.get("/health").json()["status"] == "degraded"
        assert found.is_empty()


def test_a_client_that_leaves_is_not_computed_for(embedder: Served) -> None:
    import httpx

    many = {"input": ["the cat sat on the mat " * 4] * 2048}
    with embedder.client() as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/embeddings", json=many, timeout=httpx.Timeout(60, read=0.3))
    assert embedder.is_empty()
