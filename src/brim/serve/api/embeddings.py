"""`/v1/embeddings`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from brim.engine.pooling.model import PoolingModel
from brim.model.tasks import ModelTask
from brim.serve.api.pooling import PoolingQuery
from brim.serve.lifecycle import PoolingServer
from brim.serve.prepare.inputs import InputForm
from brim.serve.problems import invalid
from brim.serve.requests.pooling import EmbeddingsBody
from brim.serve.requests.types import ServedModel
from brim.serve.responses.pooling import VectorCoding, embeddings_pieces, finished
from brim.serve.settings import ServeSettings

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class EmbeddingsEndpoint:
    settings: ServeSettings
    tasks: tuple[ModelTask, ...] = (ModelTask.EMBED,)

    def read(self, found: Mapping[str, Any], model: ServedModel, running: PoolingServer) -> PoolingQuery:
        body, served = EmbeddingsBody.read_body(found, model), running.engine.model
        _check_dimensions(body.dimensions, served)
        form = InputForm(
            longest=model.longest,
            truncate=body.truncate_prompt_tokens,
            special=body.add_special_tokens,
            prompt=_prompt(body.prompt_name, served),
            lower_case=served.lower_case,
        )
        wanted = body.use_activation if body.normalize is None else body.normalize
        normalise = wanted and (served.normalise or body.normalize is True)
        return PoolingQuery(body.input, form, partial(self._answer, body, normalise))

    def _answer(
        self, body: EmbeddingsBody, normalise: bool, vectors: Sequence[np.ndarray], tokens: int
    ) -> Iterator[bytes]:
        found = [finished(one, body.dimensions, normalise) for one in vectors]
        coding = VectorCoding(body.encoding_format == "base64", body.embed_dtype, body.endianness)
        return embeddings_pieces(self.settings.model_name, found, tokens, coding)


def _check_dimensions(wanted: int | None, served: PoolingModel) -> None:
    if wanted in (None, served.width):
        return
    if not served.matryoshka:
        raise invalid(
            "dimensions",
            f"this model's embeddings have {served.width}, and its files do not say that they may be cut (matryoshka); "
            "leave it out, or start the server with --matryoshka",
        )
    allowed = getattr(served.config, "matryoshka_dimensions", None) or range(1, served.width + 1)
    if wanted not in allowed:
        choices = (
            f"from 1 to {served.width}" if isinstance(allowed, range) else f"one of {', '.join(map(str, allowed))}"
        )
        raise invalid("dimensions", f"{wanted} is not {choices}")


def _prompt(name: str | None, served: PoolingModel) -> str:
    if name is None:
        return served.default_prompt
    if name not in served.prompts:
        known = f"it has {', '.join(sorted(served.prompts))}" if served.prompts else "it has none"
        raise invalid("prompt_name", f"the model's files have no prompt '{name:.60}'; {known}")
    return served.prompts[name]
