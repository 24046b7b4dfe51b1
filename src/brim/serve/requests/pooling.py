"""The requests of `/v1/embeddings`, `/v1/score` and `/v1/rerank`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from brim.serve.problems import invalid
from brim.serve.requests import types as t
from brim.serve.requests.completion import PROMPTS, Prompts

MOST_INPUTS = 2048  # of a request, as in OpenAI's API
MOST_INPUT_TOKENS = 300_000  # of all inputs of a request, as there
MOST_DIMENSIONS = 1 << 16
_HARMLESS = ("user", "priority", "request_id", "mm_processor_kwargs", "cache_salt")
_CUT = t.JsonType(
    (int,),
    lambda value, path, model: _cut(value, path, model),
    lambda model: {"type": "integer", "minimum": -1, "maximum": model.longest},
)


def _cut(value: int, path: str, model: t.ServedModel) -> int | None:
    """Tokens that an input is cut to: -1 is as many as the model takes."""
    if value == -1:
        return model.longest
    if not 1 <= value <= model.longest:
        raise invalid(
            path,
            f"{value} is not -1 or from 1 to {model.longest}, the most that this model takes. Please request a smaller "
            "truncation size.",
        )
    return value


def _inputs(found: t.Json, path: str, model: t.ServedModel) -> Prompts:
    if isinstance(found, list) and len(found) > MOST_INPUTS and not all(type(one) is int for one in found):
        raise invalid(path, f"it has {len(found)} inputs; at most {MOST_INPUTS} may be given")
    inputs = PROMPTS.convert(found, path, model)
    for place, one in enumerate(inputs):
        if not one:
            raise invalid(path if len(inputs) == 1 else f"{path}[{place}]", "it is empty")
    return inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingBody(t.JsonObject):
    """The fields of all of them."""

    model: str | None = t.optional(t.MODEL_NAME)
    truncate_prompt_tokens: int | None = t.optional(_CUT)
    use_activation: bool = t.optional(t.FLAG, default=True)  # length 1 for embeddings, probabilities for scores
    IGNORED: ClassVar[tuple[str, ...]] = _HARMLESS


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsBody(PoolingBody):
    input: Prompts = t.required(
        t.JsonType((), _inputs, PROMPTS.schema, "a text, a list of token ids, or a list of these is needed")
    )
    encoding_format: str = t.optional(t.choice(("float", "base64")), default="float")
    embed_dtype: str = t.optional(t.choice(("float32", "float16", "bfloat16")), default="float32")  # of base64
    endianness: str = t.optional(t.choice(("native", "little", "big")), default="native")  # of base64
    dimensions: int | None = t.optional(t.integer(1, MOST_DIMENSIONS))
    add_special_tokens: bool = t.optional(t.FLAG, default=True)
    prompt_name: str | None = t.optional(t.text(200))  # a prompt that the model's files name, such as `query`
    normalize: bool | None = t.optional(t.FLAG)


@dataclass(frozen=True, slots=True)
class _DocumentText(t.JsonObject):
    text: str = t.required(t.TEXT)
    IGNORED = ("type",)

    @property
    def value(self) -> str:
        return self.text


_DOCUMENT = t.either(t.TEXT, t.record(_DocumentText))
_DOCUMENTS = t.listed(_DOCUMENT, least=1, most=lambda model: MOST_INPUTS)


def _some(found: t.Json, path: str, model: t.ServedModel) -> tuple[str, ...]:
    return (found,) if isinstance(found, str) else _DOCUMENTS.convert(found, path, model)


_TEXTS = t.JsonType(
    (str, list), _some, lambda model: {"anyOf": [{"type": "string"}, _DOCUMENTS.schema(model)]}, "it is missing"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsBody(PoolingBody):
    """The fields of those that score."""

    instruction: str | None = t.optional(t.TEXT)  # what to look for, where the model is told
    max_tokens_per_doc: int | None = t.optional(t.integer(0, MOST_INPUT_TOKENS))
    max_tokens_per_query: int | None = t.optional(t.integer(0, MOST_INPUT_TOKENS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreBody(PairsBody):
    """Texts on two sides, under any of the names that clients know."""

    text_1: tuple[str, ...] | None = t.optional(_TEXTS)
    text_2: tuple[str, ...] | None = t.optional(_TEXTS)
    queries: tuple[str, ...] | None = t.optional(_TEXTS)
    documents: tuple[str, ...] | None = t.optional(_TEXTS)
    data_1: tuple[str, ...] | None = t.optional(_TEXTS)
    data_2: tuple[str, ...] | None = t.optional(_TEXTS)
    items: tuple[str, ...] | None = t.optional(_TEXTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankBody(PairsBody):
    query: str = t.required(_DOCUMENT)
    documents: tuple[str, ...] = t.required(_DOCUMENTS)
    top_n: int | None = t.optional(t.integer(0, MOST_INPUTS))
    return_documents: bool = t.optional(t.FLAG, default=True)


_SIDES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))


def score_sides(body: ScoreBody) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """(field of the second side, texts of the first, of the second): one against all, or each with its own."""
    given = [name for pair in _SIDES for name in pair if getattr(body, name) is not None]
    sides = next((pair for pair in _SIDES if set(pair) == set(given)), None)
    if sides is None:
        raise invalid("text_1", "text_1 and text_2 are needed, or queries and documents", "missing_required_parameter")
    first, second = getattr(body, sides[0]), getattr(body, sides[1])
    if len(first) not in (1, len(second)):
        raise invalid(sides[0], f"it has {len(first)} texts; one is needed, or as many as {sides[1]}, {len(second)}")
    return sides[1], first if len(first) > 1 else first * len(second), second
