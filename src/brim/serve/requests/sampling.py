"""What all requests for answers have in common: how they are sampled, streamed and bounded in time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from brim.engine.front.validation import MOST_PRIORITY
from brim.engine.requests.grammar import Grammar
from brim.engine.requests.params import (
    FLOAT_RANGES,
    FLOAT_RANGES_ABOVE,
    INT_RANGES,
    MAX_ALLOWED_IDS,
    MAX_ALTERNATIVES,
    MAX_BIAS,
    MAX_IDS,
    MAX_STOP_LENGTH,
    MAX_STOPS,
    SamplingParams,
)
from brim.errors import InvalidRequest
from brim.serve.problems import invalid, problem_of
from brim.serve.requests import types as t
from brim.serve.requests.answer_format import (
    CHOICES,
    REGEX,
    RULES,
    SCHEMA_OR_TEXT,
    AnswerForm,
    StructuredOutputs,
    given_forms,
    one_form,
)
from brim.serve.requests.answer_request import AnswerRequest
from brim.surrogates import half_pair_at

MOST_TOKENS = 2**31 - 1
TOKENS = t.integer(1, MOST_TOKENS)
ALTERNATIVES = t.integer(0, MAX_ALTERNATIVES)
MOST_PAIRS, KEY_LENGTH, VALUE_LENGTH = 16, 64, 512  # of `metadata`, as in OpenAI's API
MOST_WORDS, WORD_LENGTH = 256, 64  # of `bad_words`, and characters of one
_OWN_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
HARMLESS = (  # about the caller's account, or hints: they change nothing about an answer
    "user",
    "guided_decoding_backend",
    "prompt_cache_retention",
    "session_id",
    "spaces_between_special_tokens",
    "store",
    "safety_identifier",
    "prompt_cache_key",
    "service_tier",
)
NOT_YET = (  # null is taken
    "audio",
    "custom_logit_processor",
    "function_call",
    "functions",
    "lora_path",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "prompt_embeds",
    "repetition_detection",
    "stop_regex",
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
    schema = _range(name)
    if name not in INT_RANGES:
        return t.optional(t.plain(schema))
    return t.optional(t.JsonType((), lambda value, path, model: t.as_integer(value), lambda model: schema))


_STOP: t.Schema = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
_STOP_LIST: t.Schema = {"type": "array", "items": _STOP, "maxItems": MAX_STOPS}


def _biases(bias: Mapping[str, Any], path: str, model: t.ServedModel) -> tuple[tuple[int, Any], ...]:
    wrong = [f"{token!r:.40}" for token in bias if not token.isdecimal() or len(token) > 10]
    if wrong:
        raise invalid(path, f"{', '.join(wrong[:4])} {'is not a token id' if len(wrong) == 1 else 'are not token ids'}")
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


def _ids(most: int, least: int = 0) -> t.JsonType[tuple[int, ...]]:
    """Token ids, which `SamplingParams` checks."""
    return t.JsonType(
        (list,),
        lambda value, path, model: tuple(map(t.as_integer, value)),
        lambda model: {"type": "array", "items": token_id(model), "minItems": least, "maxItems": most},
    )


def _own_id(value: str, path: str, model: t.ServedModel) -> str:
    if not _OWN_ID.fullmatch(value):
        raise invalid(path, f"{value!r:.60} is no id; send at most 128 letters, digits and ._:- in ASCII")
    return value


def _one(value: float, path: str, model: t.ServedModel) -> float:
    if value != 1:
        raise invalid(path, "it is for beam search, which is not supported; leave it out", "unsupported_value")
    return 1.0


_REQUEST_ID = t.JsonType((str,), _own_id, lambda model: {"type": "string", "pattern": f"^{_OWN_ID.pattern}$"})
_NO_BEAMS = "beam search is not supported: answers are sampled, each by itself"
_WORDS = t.listed(t.text(most=WORD_LENGTH), most=lambda model: MOST_WORDS)


@dataclass(frozen=True, slots=True)
class StreamOptions(t.JsonObject):
    include_usage: bool = t.optional(t.FLAG, default=False)  # a last event with the counts
    continuous_usage_stats: bool = t.optional(t.FLAG, default=False)  # and the counts so far in every event
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
    stop_token_ids: tuple[int, ...] | None = t.optional(_ids(MAX_IDS))
    include_stop_str_in_output: bool = t.optional(t.FLAG, default=False)
    no_stop_trim: bool = t.optional(t.FLAG, default=False)  # SGLang's name for the same
    skip_special_tokens: bool | None = t.optional(t.FLAG)
    allowed_token_ids: tuple[int, ...] | None = t.optional(_ids(MAX_ALLOWED_IDS, least=1))
    bad_words: tuple[str, ...] = t.optional(_WORDS, default=())
    logit_bias: tuple[tuple[int, float], ...] | None = t.optional(t.JsonType((dict,), _biases, _biases_schema))
    structured_outputs: StructuredOutputs | None = t.optional(t.record(StructuredOutputs))
    guided_json: Mapping[str, Any] | None = t.optional(SCHEMA_OR_TEXT)
    guided_regex: Grammar | None = t.optional(REGEX)
    guided_choice: Grammar | None = t.optional(CHOICES)
    guided_grammar: Grammar | None = t.optional(RULES)
    guided_whitespace_pattern: str | None = t.optional(t.TEXT)
    json_schema: Mapping[str, Any] | None = t.optional(SCHEMA_OR_TEXT)
    regex: Grammar | None = t.optional(REGEX)
    ebnf: Grammar | None = t.optional(RULES)
    request_id: str | None = t.optional(_REQUEST_ID)
    cache_salt: str | None = t.optional(t.text(most=1024))
    best_of: int | None = t.optional(TOKENS)
    use_beam_search: bool = t.optional(t.only(False, _NO_BEAMS), default=False)
    length_penalty: float = t.optional(t.JsonType((int, float), _one, lambda model: {"const": 1}), default=1.0)
    early_stopping: bool = t.optional(t.only(False, _NO_BEAMS), default=False)
    logits_processors: t.Json = t.optional(t.only([], "code of a client does not run here"))
    vllm_xargs: None = t.optional(t.without_effect("it is for extensions of vLLM"))
    kv_transfer_params: None = t.optional(t.without_effect("no other server takes part in an answer"))
    IGNORED: ClassVar[tuple[str, ...]] = HARMLESS
    UNSUPPORTED: ClassVar[tuple[str, ...]] = NOT_YET

    def params(self, **computed: Any) -> SamplingParams:
        """How answers are sampled, with what the endpoint has read in its own way (`max_tokens`, `logprobs`)."""
        names = {one.name for one in fields(GenerationBody)} & {one.name for one in fields(SamplingParams)}
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        given["include_stop"] = self.include_stop_str_in_output or self.no_stop_trim
        try:
            params = SamplingParams(**given | computed)
        except InvalidRequest as error:
            raise problem_of(error) from None
        if self.best_of not in (None, 1, params.n):
            said = f"the best of {self.best_of} answers is not chosen here; it may be n, {params.n}, or 1"
            raise invalid("best_of", said, "unsupported_value")
        return params

    def form(self, field: str = "", own: Grammar | None = None) -> AnswerForm | None:
        """What the answer must look like; `own` is what the endpoint has read of it in its own `field`."""
        spaces = self.guided_whitespace_pattern
        schemas = {"guided_json": self.guided_json, "json_schema": self.json_schema}
        found: dict[str, Grammar | None] = {
            field: own,
            **{name: None if one is None else Grammar.json_schema(one, spaces) for name, one in schemas.items()},
            **{name: getattr(self, name) for name in ("guided_regex", "guided_choice", "guided_grammar")},
            "regex": self.regex,
            "ebnf": self.ebnf,
        }
        outputs = self.structured_outputs
        return one_form([*given_forms(found), *([] if outputs is None else outputs.forms("structured_outputs"))])

    def answer(self, params: SamplingParams, **asked: Any) -> AnswerRequest:
        """`asked` is what only some endpoints know of."""
        options = self.stream_options
        if options is not None and not self.stream:
            raise invalid("stream_options", "it is for streamed answers; set stream to true, or leave it out")
        usage = options is not None and options.include_usage
        return AnswerRequest(
            self.model,
            params,
            self.stream,
            **{
                "include_usage": usage,
                "deadline_seconds": self.deadline_seconds,
                "priority": self.priority,
                "continuous_usage": usage and options is not None and options.continuous_usage_stats,
                "request_id": self.request_id,
                "cache_salt": self.cache_salt,
                "bad_words": self.bad_words,
                **asked,
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDetailBody(GenerationBody):
    """Fields of the endpoints whose answers may say more of their tokens, as vLLM's do."""

    prompt_logprobs: int | None = t.optional(ALTERNATIVES)
    logprob_token_ids: tuple[int, ...] = t.optional(_ids(MAX_ALTERNATIVES), default=())
    return_token_ids: bool = t.optional(t.FLAG, default=False)
    return_tokens_as_token_ids: bool = t.optional(t.FLAG, default=False)

    def params(self, **computed: Any) -> SamplingParams:
        if self.logprob_token_ids and computed.get("logprobs") is None:
            raise invalid("logprob_token_ids", "it needs logprobs; ask for them, or leave it out")
        return GenerationBody.params(self, logprob_token_ids=self.logprob_token_ids, **computed)

    def answer(self, params: SamplingParams, **asked: Any) -> AnswerRequest:
        details = {
            "token_ids": self.return_token_ids,
            "tokens_as_ids": self.return_tokens_as_token_ids,
            "prompt_scores": self.prompt_logprobs,
        }
        return GenerationBody.answer(self, params, **details, **asked)
