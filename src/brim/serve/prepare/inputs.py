"""Texts as inputs of a model that embeds or scores: tokens, cut where that was asked for. Runs in a worker.

In: a text or a pair, and how they are written (`InputForm`). Out: token ids, and where the second text of a pair
begins. One that is too long is refused in words that name it and the limit; one that is far too long, before it is
tokenised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from brim.errors import InvalidRequest, PromptTooLong
from brim.model.tasks import PairFormat
from brim.serve.prepare.lengths import token_characters
from brim.serve.prepare.rolling import check_unicode

Pair = tuple[str, str]
WrittenInput = tuple[np.ndarray, int | None]  # token ids, and where a second text begins
QWEN3_PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
QWEN3_SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
QWEN3_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


@dataclass(frozen=True, slots=True)
class InputForm:
    """How texts become inputs, for one request."""

    longest: int  # tokens of an input
    field: str = "input"  # where the texts were written
    truncate: int | None = None  # cut to so many tokens; None: a longer one is refused
    special: bool = True  # tokens that the tokenizer adds
    prompt: str = ""  # written before each text
    lower_case: bool = False
    pairs: PairFormat = PairFormat.PAIR
    instruction: str = ""  # of a reranker that is told what to look for
    query_tokens: int | None = None  # the first text of a pair is cut to so many
    document_tokens: int | None = None  # and the second


def written_input(tokenizer: Any, text: str | Pair, number: int, form: InputForm) -> WrittenInput:
    """One of them; `number` is its place among those of the request."""
    if tokenizer is None:
        raise InvalidRequest(f"{form.field}: the model has no tokenizer; give token ids")
    named = f"{form.field}[{number}]"
    for one in (text,) if isinstance(text, str) else text:
        check_unicode(one, named)
    if isinstance(text, str):
        tokens, second = _text(tokenizer, text, named, form), None
    elif form.pairs is PairFormat.QWEN3_RERANKER:
        tokens, second = _qwen3(tokenizer, text, named, form), None
    else:
        tokens, second = _pair(tokenizer, text, named, form)
    if len(tokens) > form.longest:
        raise too_long(named, f"{len(tokens):,} tokens", form.longest)
    return np.asarray(tokens, np.int32), second


def too_long(named: str, what: str, longest: int) -> PromptTooLong:
    return PromptTooLong(
        f"{named}: it has {what}; this model takes {longest:,} tokens at most. Please reduce the length of the input "
        "prompt, or have it cut: truncate_prompt_tokens"
    )


def _text(tokenizer: Any, text: str, named: str, form: InputForm) -> Sequence[int]:
    whole = form.prompt + text
    if form.lower_case:
        whole = whole.lower()
    whole = _bounded(tokenizer, whole, named, form)
    options = {} if form.truncate is None else {"truncation": True, "max_length": form.truncate}
    found: list[int] = tokenizer(whole, add_special_tokens=form.special, **options)["input_ids"]
    return found


def _pair(tokenizer: Any, pair: Pair, named: str, form: InputForm) -> tuple[Sequence[int], int | None]:
    """As the tokenizer writes two texts; where they are cut, the longer one is."""
    first, second = _sides(tokenizer, pair, named, form)
    options = {} if form.truncate is None else {"truncation": "longest_first", "max_length": form.truncate}
    found = tokenizer(first, second, **options)
    kinds = found.get("token_type_ids", ())  # where the model's tokenizer tells the texts apart
    return found["input_ids"], kinds.index(1) if 1 in kinds else None


def _qwen3(tokenizer: Any, pair: Pair, named: str, form: InputForm) -> Sequence[int]:
    """By the template of the model's card, which cuts the pair and never what is around it."""
    query, document = _sides(tokenizer, pair, named, form)
    body = f"<Instruct>: {form.instruction or QWEN3_INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
    before, middle, after = (
        tokenizer(one, add_special_tokens=False)["input_ids"] for one in (QWEN3_PREFIX, body, QWEN3_SUFFIX)
    )
    if form.truncate is not None:
        middle = middle[: max(0, form.truncate - len(before) - len(after))]
    return [*before, *middle, *after]


def _sides(tokenizer: Any, pair: Pair, named: str, form: InputForm) -> Pair:
    """Both texts, each cut to what was asked for it."""
    first, second = (
        text if most is None else _cut(tokenizer, text, most)
        for text, most in zip(pair, (form.query_tokens, form.document_tokens), strict=True)
    )
    return _bounded(tokenizer, first, named, form), _bounded(tokenizer, second, named, form)


def _cut(tokenizer: Any, text: str, tokens: int) -> str:
    text = text[: tokens * token_characters(tokenizer)]
    found = tokenizer(text, add_special_tokens=False, truncation=True, max_length=tokens)["input_ids"]
    return str(tokenizer.decode(found, skip_special_tokens=True))


def _bounded(tokenizer: Any, text: str, named: str, form: InputForm) -> str:
    """Refuse, or shorten, a text of which even the longest tokens would be too many."""
    most = token_characters(tokenizer) * form.longest
    if len(text) <= most:
        return text
    if form.truncate is None:
        raise too_long(named, f"{len(text):,} characters", form.longest)
    return text[:most]
