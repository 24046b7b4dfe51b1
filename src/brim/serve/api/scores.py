"""`/v1/score` and `/v1/rerank`: by a model that scores pairs, or by the similarity of two embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from brim.engine.pooling.model import PoolingModel
from brim.model.tasks import ModelTask
from brim.serve.api.pooling import PoolingQuery
from brim.serve.http.reply import dumped
from brim.serve.lifecycle import PoolingServer
from brim.serve.prepare.inputs import InputForm
from brim.serve.problems import invalid
from brim.serve.requests.pooling import PairsBody, RerankBody, ScoreBody, score_sides
from brim.serve.requests.types import ServedModel
from brim.serve.responses.pooling import cosine, probability, rerank_answer, score_answer
from brim.serve.settings import ServeSettings

if TYPE_CHECKING:
    import numpy as np

_TASKS = (ModelTask.SCORE, ModelTask.EMBED)
Written = Callable[[Sequence[float], int], dict[str, Any]]  # scores and tokens as an answer


@dataclass(frozen=True, slots=True)
class ScoreEndpoint:
    settings: ServeSettings
    tasks: tuple[ModelTask, ...] = _TASKS

    def read(self, found: Mapping[str, Any], model: ServedModel, running: PoolingServer) -> PoolingQuery:
        body = ScoreBody.read_body(found, model)
        field, first, second = score_sides(body)
        name = self.settings.model_name
        return _query(body, field, first, second, model, running.engine.model, lambda *made: score_answer(name, *made))


@dataclass(frozen=True, slots=True)
class RerankEndpoint:
    settings: ServeSettings
    tasks: tuple[ModelTask, ...] = _TASKS

    def read(self, found: Mapping[str, Any], model: ServedModel, running: PoolingServer) -> PoolingQuery:
        body = RerankBody.read_body(found, model)
        shown = body.documents if body.return_documents else None
        queries = (body.query,) * len(body.documents)

        def written(scores: Sequence[float], tokens: int) -> dict[str, Any]:
            return rerank_answer(self.settings.model_name, scores, tokens, shown, body.top_n)

        return _query(body, "documents", queries, body.documents, model, running.engine.model, written)


def _query(
    body: PairsBody,
    field: str,
    first: Sequence[str],
    second: Sequence[str],
    model: ServedModel,
    served: PoolingModel,
    written: Written,
) -> PoolingQuery:
    form = InputForm(
        longest=model.longest,
        field=field,
        truncate=body.truncate_prompt_tokens,
        prompt=served.default_prompt,
        lower_case=served.lower_case,
        pairs=served.pairs,
        instruction=body.instruction or "",
        query_tokens=body.max_tokens_per_query or None,
        document_tokens=body.max_tokens_per_doc or None,
    )
    if served.task is ModelTask.EMBED:
        _check_embedded(body)
        texts = tuple(dict.fromkeys((*first, *second)))  # each once
        places = {text: place for place, text in enumerate(texts)}
        pairs = [(places[one], places[other]) for one, other in zip(first, second, strict=True)]

        def similar(vectors: Sequence[np.ndarray], tokens: int) -> Iterator[bytes]:
            yield dumped(written([cosine(vectors[one], vectors[other]) for one, other in pairs], tokens))

        return PoolingQuery(texts, form, similar)

    def scored(vectors: Sequence[np.ndarray], tokens: int) -> Iterator[bytes]:
        logits = [float(one[0]) for one in vectors]
        sigmoid = served.sigmoid and body.use_activation
        yield dumped(written([probability(one) if sigmoid else one for one in logits], tokens))

    return PoolingQuery(tuple(zip(first, second, strict=True)), form, scored)


def _check_embedded(body: PairsBody) -> None:
    """What only a model that reads both texts at once can do."""
    for name in ("instruction", "max_tokens_per_doc", "max_tokens_per_query"):
        if getattr(body, name):
            raise invalid(
                name, "the model that is served embeds each text by itself; leave it out", "unsupported_value"
            )
