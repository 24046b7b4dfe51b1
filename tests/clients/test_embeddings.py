"""Embeddings through `openai`, langchain and litellm: the same vectors, whatever the client asks for on the wire."""

from __future__ import annotations

from collections.abc import Iterator

import litellm
import numpy as np
import openai
import pytest
from langchain_openai import OpenAIEmbeddings
from pydantic import SecretStr

from tests.clients.serving import KEY, serving
from tests.integration import tiny_pooling

NAME = "tiny-embedding"
TEXTS = ["the cat sat on the mat", "a deep river", "the quiet star"]


@pytest.fixture(scope="module")
def embedding_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of a tiny encoder; its weights are random."""
    folder = tiny_pooling.bert(tmp_path_factory.mktemp("bert") / NAME)
    with serving(f"{folder} --dtype fp32", tmp_path_factory.mktemp("embedding")) as found:
        yield found


@pytest.fixture
def client(embedding_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{embedding_url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


@pytest.fixture
def expected(client: openai.OpenAI) -> np.ndarray:
    found = client.embeddings.create(model=NAME, input=TEXTS, encoding_format="float")
    return np.array([entry.embedding for entry in found.data])


def test_openai(client: openai.OpenAI, expected: np.ndarray) -> None:
    whole = client.embeddings.create(model=NAME, input=TEXTS)  # base64, unless it is told otherwise
    assert [entry.index for entry in whole.data] == [0, 1, 2]
    assert np.allclose([entry.embedding for entry in whole.data], expected, atol=1e-6)
    assert np.allclose(np.linalg.norm(expected, axis=1), 1, atol=1e-5)
    assert whole.usage.prompt_tokens == whole.usage.total_tokens > len(TEXTS)
    alone = client.embeddings.create(model=NAME, input=TEXTS[1])
    assert np.allclose(alone.data[0].embedding, expected[1], atol=1e-5)
    with pytest.raises(openai.BadRequestError):
        client.embeddings.create(model=NAME, input="")


def test_langchain(embedding_url: str, expected: np.ndarray) -> None:
    found = OpenAIEmbeddings(
        model=NAME,
        base_url=f"{embedding_url}/v1",
        api_key=SecretStr(KEY),
        check_embedding_ctx_length=False,  # it would count tokens of OpenAI's, whose files it downloads
    )
    assert np.allclose(found.embed_documents(TEXTS), expected, atol=1e-5)
    assert np.allclose(found.embed_query(TEXTS[0]), expected[0], atol=1e-5)


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_litellm(embedding_url: str, expected: np.ndarray, provider: str) -> None:
    where = {"api_base": f"{embedding_url}/v1", "api_key": KEY}
    found = litellm.embedding(model=f"{provider}/{NAME}", input=TEXTS, encoding_format="float", **where)
    assert np.allclose([entry["embedding"] for entry in found.data], expected, atol=1e-5)
