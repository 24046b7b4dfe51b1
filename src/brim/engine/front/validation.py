"""Where requests come in: checked, turned into tokens, or refused with the reason.

Nothing of a refused request stays behind, and what runs after validation need not check again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from brim.engine.media.allowed import AllowedMedia
from brim.engine.media.prepare import GivenMedia, Preparer, Prompt
from brim.engine.requests.control_tokens import ChatText
from brim.engine.requests.lengths import check_prompt_length
from brim.engine.requests.params import SamplingParams
from brim.engine.requests.request import MediaSpan, Request
from brim.engine.weights.load import LoadedModel
from brim.errors import InvalidRequest, UnsupportedModel, first_line
from brim.guard.shares import EVERYBODY, ClientShare

MOST_PRIORITY = 1000


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request as it is given, from the client to the validator; nothing of it is checked yet."""

    prompt: Prompt
    params: SamplingParams
    media: GivenMedia = field(default_factory=GivenMedia)
    deadline_seconds: float | None = None
    request_id: str | None = None  # None: the engine names it
    session: str | None = None  # the conversation that it belongs to
    salt: bytes = b""  # only requests of the same find each other's prefixes
    priority: int = 0
    share: ClientShare = EVERYBODY
    prediction: tuple[int, ...] = ()  # tokens that the answer may have; it is the same without them, only slower

    @property
    def answers(self) -> int:
        return self.params.n


@dataclass(frozen=True, slots=True, eq=False)
class RequestValidator:
    """What a request is checked against."""

    loaded: LoadedModel
    tokenizer: Any
    max_length: int
    max_batch_tokens: int
    seeds: Random
    clock: Callable[[], float]
    media: Preparer | None
    allowed: AllowedMedia

    def validate(self, given: GenerationRequest, request_id: str, longest: int) -> tuple[Request, ...]:
        """One request for each answer that was asked for. `longest` is what the pool holds of one request."""
        params, seconds, session, share = given.params, given.deadline_seconds, given.session, given.share
        params.check(self.loaded.vocab)
        if params.stop and self.tokenizer is None:
            raise InvalidRequest("stop: stop strings need a tokenizer; use stop_token_ids, or give the engine one")
        if seconds is not None and not (isinstance(seconds, (int, float)) and seconds > 0):
            raise InvalidRequest(f"deadline_seconds {seconds!r}: a positive number of seconds is needed")
        if type(given.priority) is not int or abs(given.priority) > MOST_PRIORITY:
            raise InvalidRequest(
                f"priority is {given.priority!r}; it must be an integer in {-MOST_PRIORITY}..{MOST_PRIORITY}"
            )
        if not (session is None or isinstance(session, str)):
            raise InvalidRequest(f"session is {session!r}; must be a string, the name of a conversation")
        if not (isinstance(share, ClientShare) and 0 < share.weight < float("inf")):
            raise InvalidRequest(f"share is {share!r}; it must be a Share with a weight above 0")
        if not isinstance(given.salt, bytes):
            raise InvalidRequest(f"salt is {given.salt!r}; it must be bytes")
        tokens, prepared, spans, marks = self._tokens(given.prompt, given.media)
        self.check_length(len(tokens), longest)
        self._check_tokens(tokens)
        self._check_spans(spans)
        stop_ids = frozenset(() if params.ignore_eos else self.loaded.eos_ids) | frozenset(params.stop_token_ids)
        if params.min_tokens and params.allowed_token_ids is not None and stop_ids.issuperset(params.allowed_token_ids):
            raise InvalidRequest(
                f"allowed_token_ids: all of them end the answer, and min_tokens {params.min_tokens} lets none be drawn "
                "at first; allow others too, or leave min_tokens out"
            )
        first = Request(
            id=request_id,
            prompt=tokens,
            params=params,
            seed=params.seed if params.seed is not None else self.seeds.getrandbits(63),
            max_tokens=min(params.max_tokens, longest - len(tokens)),
            stop_ids=stop_ids,
            deadline=None if seconds is None else self.clock() + seconds,
            media=prepared,
            spans=spans,
            marks=marks,
            session=session,
            salt=given.salt,
            priority=given.priority,
            share=share,
            prediction=given.prediction,
        )
        others = (replace(first, index=number, seed=first.seed + number) for number in range(1, params.n))
        return (first, *others)

    def _tokens(
        self, prompt: Prompt, media: GivenMedia
    ) -> tuple[tuple[int, ...], Any, tuple[MediaSpan, ...], tuple[tuple[int, bytes], ...]]:
        if media:
            if self.media is None:
                raise InvalidRequest(f"{media.kinds[0]}: this model takes text only")
            return self.media.prepare(prompt, media, self.allowed)
        if isinstance(prompt, ChatText):
            raise InvalidRequest("prompt: a conversation without media is given as its tokens")
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise InvalidRequest("prompt: the model has no tokenizer; give token ids")
            return tuple(self.tokenizer(prompt)["input_ids"]), None, (), ()
        ids: object = prompt
        if isinstance(ids, bytes) or not isinstance(ids, Sequence):
            raise InvalidRequest(f"prompt: must be a string or a list of token ids, not {type(ids).__name__}")
        return tuple(ids), None, (), ()

    def check_length(self, tokens: int, longest: int, **said: str) -> None:
        check_prompt_length(tokens, context=self.max_length, longest=longest, **said)

    def _check_tokens(self, tokens: tuple[int, ...]) -> None:
        if not tokens:
            raise InvalidRequest("prompt: it is empty; at least one token is needed")
        vocab = self.loaded.vocab
        for place, token in enumerate(tokens):
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab:
                raise InvalidRequest(
                    f"prompt: token {token!r} at index {place} is out of vocabulary (0 to {vocab - 1})"
                )

    def _check_spans(self, spans: tuple[MediaSpan, ...]) -> None:
        for span in spans:
            if span.together and span.end - span.start > self.max_batch_tokens:
                raise InvalidRequest(
                    f"images: one takes {span.end - span.start} tokens that must be computed together, more than "
                    f"max_batch_tokens {self.max_batch_tokens}; raise it, or send a smaller image"
                )


def find_tokenizer(folder: Path | None) -> Any:
    """The tokenizer beside a model, None where there is none."""
    if folder is None or not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder))
    except (OSError, ValueError, ImportError) as error:
        raise UnsupportedModel(f"the tokenizer in {folder} cannot be loaded: {first_line(error)}") from error
