"""What all requests for answers have in common: how they are sampled, streamed and bounded in time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from brim.engine.front.validation import MOST_PRIORITY
from brim.engine.requests.params import (
    FLOAT_RANGES,
    FLOAT_RANGES_ABOVE,
    INT_RANGES,
    MAX_BIAS,
    MAX_IDS,
    MAX_STOP_LENGTH,
    MAX_STOPS,
    SamplingParams,
)
from brim.errors import InvalidRequest
from brim.serve.problems import invalid, problem_of
from brim.serve.requests import types as t
from brim.surrogates import half_pair_at

MOST_TOKENS = 2**31 - 1
TOKENS = t.integer(1, MOST_TOKENS)
MOST_PAIRS, KEY_LENGTH, VALUE_LENGTH = 16, 64, 512  # of `metadata`, as in OpenAI's API
HARMLESS = (  # about the caller's account, or hints: they change nothing about an answer
    "user",
    "store",
    "safety_identifier",
    "prompt_cache_key",
    "service_tier",
)
NOT_YET = (
    "audio",
    "function_call",
    "functions",
    "guided_json",
    "prediction",
    "structured_outputs",
    "suffix",
    "web_search_options",
)


def token_id(model: t.ServedModel) -> t.Schema:
    return {"type": "integer", "minimum": 0, "maximum": model.vocab - 1}


def _range(name: str) -> t.Schema:
    if name in INT_RANGES:
        low, high = INT_RANGES[name]
        return {"type": "integer", "minimum": low, "maximum": high}
    if name in FLOAT_RANGES:
        least, most = FLOAT_RANGES[name]
        return {"type": "number", "minimum": least, "maximum": most}
    least, most = FLOAT_RANGES_ABOVE[name]
    return {"type": "number", "exclusiveMinimum": least, "maximum": most}


def sampled(name: str) -> Any:
    """A parameter that `SamplingParams` checks, by the range that the schema states."""
    return t.optional(t.plain(_range(name)))


_STOP: t.Schema = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
_STOP_LIST: t.Schema = {"type": "array", "items": _STOP, "maxItems": MAX_STOPS}


def _biases(bias: Mapping[str, Any], path: str, model: t.ServedModel) -> tuple[tuple[int, Any], ...]:
    wrong = next((token for token in bias if not token.isdecimal() or len(token) > 10), None)
    if wrong is not None:
        raise invalid(path, f"{wrong!r:.40} is not a token id")
    return tuple((int(token), value) for token, value in bias.items())


def _biases_schema(model: t.ServedModel) -> t.Schema:
    return {
        "type": "object",
        "propertyNames": {"pattern": decimals_below(model.vocab)},
        "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
        "maxProperties": MAX_IDS,
    }


def decimals_below(limit: int) -> str:
    """A regular expression for the decimal numbers from 0 to `limit` - 1, leading zeros aside."""
    digits = str(limit - 1)
    shorter = [f"[1-9][0-9]{{{length - 1}}}" for length in range(1, len(digits))]
    longest = []
    for place, digit in enumerate(digits):
        low = int(place == 0)
        if int(digit) > low:
            rest = len(digits) - place - 1
            longest.append(f"{digits[:place]}[{low}-{int(digit) - 1}][0-9]{{{rest}}}")
    return f"^(0|{'|'.join([*shorter, *longest, digits])})$"


def _metadata(pairs: Mapping[str, Any], path: str, model: t.ServedModel) -> dict[str, str]:
    """A client's own notes on a request, which an answer of `/v1/responses` repeats."""
    if len(pairs) > MOST_PAIRS:
        raise invalid(path, f"it has {len(pairs)} pairs; at most {MOST_PAIRS} may be given")
    for key, value in pairs.items():
        for found, said, longest in ((key, "key", KEY_LENGTH), (value, f"value of {key!r}", VALUE_LENGTH)):
            if not isinstance(found, str):
                raise invalid(path, f"a {said:.100} must be a string", "invalid_type")
            if len(found) > longest:
                raise invalid(path, f"a {said:.100} has {len(found)} characters; at most {longest} are kept")
            if half_pair_at(found) is not None:
                raise invalid(path, f"a {said:.100} has half of a surrogate pair; send text")
    return dict(pairs)


_METADATA: t.Schema = {
    "type": "object",
    "maxProperties": MOST_PAIRS,
    "propertyNames": {"maxLength": KEY_LENGTH},
    "additionalProperties": {"type": "string", "maxLength": VALUE_LENGTH},
}
_STOPS = t.JsonType(
    (str, list),
    lambda value, path, model: (value,) if type(value) is str else tuple(value),
    lambda model: {"anyOf": [_STOP, _STOP_LIST]},
)
STOP_LIST: t.JsonType[tuple[str, ...]] = t.JsonType(
    (list,), lambda value, path, model: tuple(value), lambda model: _STOP_LIST
)
_IDS = t.JsonType(
    (list,),
    lambda value, path, model: tuple(value),
    lambda model: {"type": "array", "items": token_id(model), "maxItems": MAX_IDS},
)


@dataclass(frozen=True, slots=True)
class StreamOptions(t.JsonObject):
    include_usage: bool = t.optional(t.FLAG, default=False)  # a last event with the counts
    IGNORED = ("include_obfuscation",)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationBody(t.JsonObject):
    """The fields of all endpoints that generate: OpenAI's, and Brim's own."""

    model: str | None = t.optional(t.MODEL_NAME)
    stream: bool = t.optional(t.FLAG, default=False)
    stream_options: StreamOptions | None = t.optional(t.record(StreamOptions))
    deadline_seconds: float | None = t.optional(t.number(above=0))
    priority: int = t.optional(t.integer(-MOST_PRIORITY, MOST_PRIORITY), default=0)
    metadata: Mapping[str, str] | None = t.optional(t.JsonType((dict,), _metadata, lambda model: _METADATA))
    temperature: float | None = sampled("temperature")
    top_p: float | None = sampled("top_p")
    top_k: int | None = sampled("top_k")
    min_p: float | None = sampled("min_p")
    presence_penalty: float | None = sampled("presence_penalty")
    frequency_penalty: float | None = sampled("frequency_penalty")
    repetition_penalty: float | None = sampled("repetition_penalty")
    seed: int | None = sampled("seed")
    n: int | None = sampled("n")
    min_tokens: int | None = sampled("min_tokens")
    ignore_eos: bool | None = t.optional(t.plain({"type": "boolean"}))
    stop: tuple[str, ...] | None = t.optional(_STOPS)
    stop_token_ids: tuple[int, ...] | None = t.optional(_IDS)
    logit_bias: tuple[tuple[int, float], ...] | None = t.optional(t.JsonType((dict,), _biases, _biases_schema))
    IGNORED: ClassVar[tuple[str, ...]] = HARMLESS
    UNSUPPORTED: ClassVar[tuple[str, ...]] = NOT_YET

    def params(self, **computed: Any) -> SamplingParams:
        """How answers are sampled, with what the endpoint has read in its own way (`max_tokens`, `logprobs`)."""
        names = {one.name for one in fields(GenerationBody)} & {one.name for one in fields(SamplingParams)}
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        try:
            return SamplingParams(**given | computed)
        except InvalidRequest as error:
            raise problem_of(error) from None

    def answer(self, params: SamplingParams) -> AnswerRequest:
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "it is for streamed answers; set stream to true, or leave it out")
        usage = self.stream_options is not None and self.stream_options.include_usage
        return AnswerRequest(self.model, params, self.stream, usage, self.deadline_seconds, self.priority)


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """What is asked of the engine and of the stream, whatever the endpoint."""

    model: str | None
    params: SamplingParams
    stream: bool
    include_usage: bool
    deadline_seconds: float | None
    priority: int = 0


def sooner(wanted: AnswerRequest, header: str | None) -> AnswerRequest:
    """With the deadline of the header `X-Deadline-Seconds`, where that is sooner."""
    if header is None:
        return wanted
    try:
        seconds = float(header)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise invalid("X-Deadline-Seconds", f"{header!r:.40} is not a positive number of seconds")
    return replace(wanted, deadline_seconds=min(seconds, wanted.deadline_seconds or seconds))
