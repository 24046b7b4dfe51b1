"""The request of `/v1/completions`: to go on with texts or tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brim.engine.requests.grammar import Grammar
from brim.serve.problems import invalid
from brim.serve.requests import types as t
from brim.serve.requests.answer_format import FORMAT, AnswerForm
from brim.serve.requests.answer_request import AnswerRequest
from brim.serve.requests.sampling import ALTERNATIVES, MOST_TOKENS, TokenDetailBody, token_id

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
        raise invalid(path, f"token {wrong!r:.40} is out of vocabulary: not in 0 to {vocab - 1}")
    return tuple(found)


def _prompts_schema(model: t.ServedModel) -> t.Schema:
    tokens = {"type": "array", "items": token_id(model), "minItems": 1}
    one = [t.text().schema(model), tokens]
    return {"anyOf": [*one, {"type": "array", "items": {"anyOf": one}, "minItems": 1}]}


PROMPTS = t.JsonType((), _prompts, _prompts_schema, "a text, a list of token ids, or a list of these is needed")


def _kept_tokens(value: int, path: str, model: t.ServedModel) -> int:
    if value == 0:
        raise invalid(path, "0 leaves nothing of the prompt; keep at least 1")
    return t.integer(-1, MOST_TOKENS).convert(value, path, model)


_KEPT_TOKENS = t.JsonType(  # of a prompt; -1: as many as fit
    (int,),
    _kept_tokens,
    lambda model: {"type": "integer", "minimum": -1, "maximum": MOST_TOKENS, "not": {"const": 0}},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionBody(TokenDetailBody):
    prompt: Prompts = t.required(PROMPTS)
    echo: bool = t.optional(t.FLAG, default=False)
    logprobs: int | None = t.optional(ALTERNATIVES)
    max_tokens: int = t.optional(t.integer(0, MOST_TOKENS), default=DEFAULT_COMPLETION)
    add_special_tokens: bool = t.optional(t.FLAG, default=True)
    truncate_prompt_tokens: int | None = t.optional(_KEPT_TOKENS)
    truncation_side: str = t.optional(t.choice(("left", "right")), default="left")
    response_format: Grammar | None = t.optional(FORMAT)


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    wanted: AnswerRequest
    prompts: Prompts
    echo: bool
    scored_only: bool  # max_tokens is 0: nothing is generated, the prompt is scored
    add_special_tokens: bool = True
    kept: slice | None = None  # the tokens of each prompt that are left of it; None: all
    form: AnswerForm | None = None  # what the answer must look like

    @property
    def answers(self) -> int:
        return len(self.prompts) * self.wanted.params.n


def read_completion(found: Mapping[str, t.Json], model: t.ServedModel) -> CompletionRequest:
    body = CompletionBody.read_body(found, model)
    if body.max_tokens == 0 and not body.echo:
        raise invalid("max_tokens", "0 is for scoring a prompt, with echo; ask for at least 1")
    scored = [one for one in (body.logprobs if body.echo else None, body.prompt_logprobs) if one is not None]
    params = body.params(
        max_tokens=max(1, body.max_tokens),
        logprobs=body.logprobs,
        prompt_logprobs=max(scored, default=None),
        continues_prompt=True,
    )
    return CompletionRequest(
        body.answer(params),
        body.prompt,
        body.echo,
        scored_only=body.max_tokens == 0,
        add_special_tokens=body.add_special_tokens,
        kept=_kept(body, model),
        form=body.form("response_format", body.response_format),
    )


def _kept(body: CompletionBody, model: t.ServedModel) -> slice | None:
    asked = body.truncate_prompt_tokens
    if asked is None:
        return None
    most = max(1, model.longest - max(1, body.max_tokens)) if asked == -1 else asked
    return slice(-most, None) if body.truncation_side == "left" else slice(most)
