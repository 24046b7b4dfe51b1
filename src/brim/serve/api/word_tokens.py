"""Texts of a request besides its prompt, as tokens: words that an answer may not have, and what it is predicted to be.

They are cut into tokens where prompts are, beside the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from brim.engine.requests.params import SamplingParams
from brim.engine.settings import LOOKUP
from brim.errors import InvalidRequest
from brim.serve.lifecycle import RunningServer
from brim.serve.problems import invalid
from brim.serve.requests.answer_request import AnswerRequest

_TOKEN_CHARACTERS = 8  # of a prediction, for each token that a request may have; the rest is not looked at


@dataclass(frozen=True, slots=True)
class TextsAsTokens:
    params: SamplingParams  # with the words that are banned
    prediction: tuple[int, ...] = ()


async def token_texts(wanted: AnswerRequest, params: SamplingParams, running: RunningServer) -> TextsAsTokens:
    """What is asked of the engine with these texts, besides `params`."""
    if wanted.bad_words:
        params = await _with_bans(params, wanted.bad_words, running)
    engine = running.engine
    if not wanted.prediction or engine.settings.speculate != LOOKUP:
        return TextsAsTokens(params)
    text = wanted.prediction[: _TOKEN_CHARACTERS * engine.longest_request]
    try:
        (tokens,) = await running.tokenising.texts([text], special=False)
    except InvalidRequest as error:
        raise invalid("prediction", str(error)) from None
    return TextsAsTokens(params, tokens[: engine.longest_request])


async def _with_bans(params: SamplingParams, bad_words: Sequence[str], running: RunningServer) -> SamplingParams:
    words = [word.lstrip() or word for word in bad_words]
    try:
        spelled = await running.tokenising.texts([*words, *(f" {word}" for word in words)], special=False)
        return replace(params, banned_sequences=banned(spelled[: len(words)], spelled[len(words) :]))
    except InvalidRequest as error:
        raise invalid("bad_words", str(error)) from None


def banned(words: Sequence[tuple[int, ...]], spaced: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Words as tokens, and the same behind a space where that is spelled otherwise, as in vLLM.

    Where a space is a token of its own, or makes none, the word is found without it.
    """
    found: dict[tuple[int, ...], None] = {}
    for word, behind in zip(words, spaced, strict=True):
        if word:
            found[word] = None
        if behind and (not word or (len(behind) == len(word) and behind[0] != word[0])):
            found[behind] = None
    return tuple(found)
