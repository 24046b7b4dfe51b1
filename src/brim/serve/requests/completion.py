"""The request of `/v1/completions`: to go on with texts or tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brim.engine.requests.params import MAX_ALTERNATIVES
from brim.serve.problems import invalid
from brim.serve.requests import types as t
from brim.serve.requests.sampling import MOST_TOKENS, TOKENS, AnswerRequest, GenerationBody, token_id

DEFAULT_COMPLETION = 16  # tokens, as in OpenAI's API
Prompts = tuple[str | tuple[int, ...], ...]


def _prompts(found: t.Json, path: str, model: t.ServedModel) -> Prompts:
    """A text, tokens, or a list of these."""
    if isinstance(found, str):
        return (found,)
    if not isinstance(found, list) or not found:
        said = "a text, a list of token ids, or a list of these is needed"
        raise invalid(path, said, "missing_required_parameter")
    if _are_tokens(found):
        return (_tokens(found, path, model.vocab),)
    return tuple(_prompt(one, f"{path}[{place}]", model.vocab) for place, one in enumerate(found))


def _prompt(found: t.Json, path: str, vocab: int) -> str | tuple[int, ...]:
    if isinstance(found, str):
        return found
    if isinstance(found, list) and _are_tokens(found):
        return _tokens(found, path, vocab)
    raise invalid(path, "must be a string or a list of token ids", "invalid_type")


def _are_tokens(found: list[t.Json]) -> bool:
    return all(type(one) is int for one in found)


def _tokens(found: list[int], path: str, vocab: int) -> tuple[int, ...]:
    wrong = next((token for token in found if not 0 <= token < vocab), None)
    if wrong is not None:
        raise invalid(path, f"token {wrong!r:.40} is out of vocabulary (0 to {vocab - 1})")
    return tuple(found)


def _prompts_schema(model: t.ServedModel) -> t.Schema:
    tokens = {"type": "array", "items": token_id(model), "minItems": 1}
    one = [t.text().schema(model), tokens]
    return {"anyOf": [*one, {"type": "array", "items": {"anyOf": one}, "minItems": 1}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionBody(GenerationBody):
    prompt: Prompts = t.required(
        t.JsonType((), _prompts, _prompts_schema, "a text, a list of token ids, or a list of these is needed")
    )
    echo: bool = t.optional(t.FLAG, default=False)
    logprobs: int | None = t.optional(t.integer(0, MAX_ALTERNATIVES))
    max_tokens: int = t.optional(t.integer(0, MOST_TOKENS), default=DEFAULT_COMPLETION)
    best_of: int | None = t.optional(TOKENS)


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    wanted: AnswerRequest
    prompts: Prompts
    echo: bool
    scored_only: bool  # max_tokens is 0: nothing is generated, the prompt is scored

    @property
    def answers(self) -> int:
        return len(self.prompts) * self.wanted.params.n


def read_completion(found: Mapping[str, t.Json], model: t.ServedModel) -> CompletionRequest:
    body = CompletionBody.read_body(found, model)
    if body.max_tokens == 0 and not body.echo:
        raise invalid("max_tokens", "0 is for scoring a prompt, with echo; ask for at least 1")
    params = body.params(
        max_tokens=max(1, body.max_tokens),
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
        continues_prompt=True,
    )
    if body.best_of not in (None, params.n):
        raise invalid("best_of", f"it is supported only where it equals n, {params.n}", "unsupported_value")
    return CompletionRequest(body.answer(params), body.prompt, body.echo, scored_only=body.max_tokens == 0)
