"""The endpoints of a model that embeds or scores: their bodies and answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brim.model.tasks import ModelTask
from brim.serve.openapi.responses import COUNT, NUMBER, TEXT, either, given, listed, optional
from brim.serve.requests.pooling import EmbeddingsBody, RerankBody, ScoreBody
from brim.serve.requests.types import Schema, ServedModel

_COUNTS = {"prompt_tokens": COUNT, "total_tokens": COUNT}
_HEAD = {"id": TEXT, "object": {"const": "list"}, "created": COUNT, "model": TEXT}
EMBEDDINGS = given(
    {
        **_HEAD,
        "data": listed(
            given({"object": {"const": "embedding"}, "index": COUNT, "embedding": either(listed(NUMBER), TEXT)})
        ),
        "usage": given({**_COUNTS, "completion_tokens": COUNT, "prompt_tokens_details": optional({"type": "object"})}),
    }
)
SCORES = given(
    {
        **_HEAD,
        "data": listed(given({"object": {"const": "score"}, "index": COUNT, "score": NUMBER})),
        "usage": given(_COUNTS),
    }
)
RERANKED = given(
    {
        "id": TEXT,
        "model": TEXT,
        "results": listed(given({"index": COUNT, "relevance_score": NUMBER}, {"document": given({"text": TEXT})})),
        "usage": given(_COUNTS),
    }
)
Described = Callable[[str, Schema, Schema], Any]  # what it is, the body, the answer


def pooling_paths(model: ServedModel, described: Described) -> dict[str, Any]:
    score = described("How alike two texts are", ScoreBody.openapi(model), SCORES)
    rerank = described("Documents, the best for a query first", RerankBody.openapi(model), RERANKED)
    found = {
        **{key: {"post": score} for key in ("/v1/score", "/score")},
        **{key: {"post": rerank} for key in ("/v1/rerank", "/rerank", "/v2/rerank")},
    }
    if model.task is ModelTask.EMBED:
        embed = described("Embeddings of texts", EmbeddingsBody.openapi(model), EMBEDDINGS)
        found["/v1/embeddings"] = {"post": embed}
    return found
