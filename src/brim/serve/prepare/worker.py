"""Prompts, made in other processes: the engine's thread and the event loop share an interpreter with nothing slow.

`Tokenising` is all that the endpoints know of it. It has three lanes, each with processes and a queue of its own: a
short text waits for no long one, and no text for an image.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from brim.errors import BrimError, InvalidRequest, PromptTooLong
from brim.serve.prepare.cores import long_text_processes, media_processes
from brim.serve.prepare.inputs import InputForm, Pair, WrittenInput
from brim.serve.prepare.jobs import ChatJob, Prepared, SeenImage, TokenizerSource
from brim.serve.prepare.lanes import Lane
from brim.serve.prepare.lengths import QUICK_WEIGHT, is_quick, weight_of
from brim.serve.prepare.processes import processes
from brim.serve.prepare.remote.fetching import Fetching
from brim.serve.prepare.seen import SeenImages, keys_of, with_pixels
from brim.serve.settings import DEFAULT_MEDIA_CACHE

_COUNTED_AT_ONCE = 1  # a prompt that is to be answered waits for one that is only counted, at most
_TEXT_QUEUE = 1024  # the gate lets in fewer; those that only count are not asked there
_MEDIA_QUEUE = 32  # for each process
_TEXT_SECONDS, _MEDIA_SECONDS = 30.0, 20.0  # of CPU time
_LONG_NICENESS, _MEDIA_NICENESS = 5, 10
_LEAST_CHARACTERS = 4  # of a token, on average: whether a model takes texts that are long


class Tokenising:
    """Makes prompts; processes start when they are first needed."""

    def __init__(
        self,
        source: TokenizerSource,
        new_pool: Callable[[], Executor] | None = None,
        fetching: Fetching | None = None,
        media_workers: int = 0,  # 0: by the cores and the memory of the machine
        media_cache_bytes: int = DEFAULT_MEDIA_CACHE,
    ) -> None:
        self._source = source
        self._fetching = fetching or Fetching()
        self._seen = SeenImages(media_cache_bytes)
        most = media_workers or media_processes()
        text = partial(Lane, "texts", load=partial(_load, source), queue=_TEXT_QUEUE, seconds=_TEXT_SECONDS)
        media = partial(Lane, "images and audio", load=partial(_load_media, source), seconds=_MEDIA_SECONDS)
        self._quick = text(new_process=new_pool or processes, most=1)
        self._long = text(new_process=new_pool or partial(processes, 1, _LONG_NICENESS), most=long_text_processes())
        self._media = media(
            new_process=new_pool or partial(processes, 1, _MEDIA_NICENESS), most=most, queue=_MEDIA_QUEUE * most
        )
        self._counting = {lane: asyncio.Semaphore(_COUNTED_AT_ONCE) for lane in self._lanes}

    async def chat(self, job: ChatJob, *, only_counted: bool = False) -> Prepared:
        self._expect(job.threshold)
        dialogue = await self._fetching.fetched(job.dialogue, job.limits)
        job = replace(job, dialogue=dialogue, counted=only_counted)
        if dialogue.media and self._source.media is not None:
            async with self._turn(self._media, only_counted):
                return await self._with_media(job)
        lane = self._text_lane(dialogue)
        async with self._turn(lane, only_counted):
            return await lane.run(_chat, self._source, job, {})

    async def _with_media(self, job: ChatJob) -> Prepared:
        """Images that were seen before are not sent to a worker, and those that it sees are kept."""
        keys = await asyncio.to_thread(keys_of, job.dialogue, job.salt)
        found = self._seen.find(job.dialogue, keys)
        told = {key: one.told for key, one in found.known.items()}
        prepared = await self._media.run(_chat, self._source, replace(job, dialogue=found.dialogue), told)
        images = [found.known.get(uri, one) for uri, one in prepared.seen]
        for (uri, _), image in zip(prepared.seen, images, strict=True):
            self._seen.keep(keys.get(uri, uri), image)
        return await asyncio.to_thread(with_pixels, prepared, images)

    async def texts(
        self, texts: Sequence[str], *, special: bool = True, longest: int | None = None, only_counted: bool = False
    ) -> list[tuple[int, ...]]:
        """Tokens of texts; those that cannot have fewer than `longest` are refused before they are read."""
        self._expect(longest or 0)
        found = []
        for some in [texts] if is_quick(texts) else [[text] for text in texts]:  # others may have a turn in between
            lane = self._text_lane(some)
            async with self._turn(lane, only_counted):
                found += await lane.run(_texts, self._source, list(some), special, longest, only_counted)
        return found

    async def decoded(self, tokens: Sequence[int]) -> str:
        return str(await self._about_tokens("decoded", tokens))

    async def token_texts(self, tokens: Sequence[int]) -> list[str]:
        found: list[str] = await self._about_tokens("token_texts", tokens)
        return found

    async def with_special(self, tokens: Sequence[int]) -> tuple[int, ...]:
        found: tuple[int, ...] = await self._about_tokens("with_special", tokens)
        return found

    async def tokenizer_info(self) -> dict[str, Any]:
        found: dict[str, Any] = await self._about_tokens("tokenizer_info")
        return found

    async def _about_tokens(self, question: str, *tokens: Sequence[int]) -> Any:
        """Nobody will be answered by it, so that it waits for others who only ask."""
        lane = self._text_lane(tokens)
        async with self._turn(lane, only_counted=True):
            return await lane.run(_asked, self._source, question, tokens)

    async def inputs(self, texts: Sequence[str | Pair], form: InputForm) -> list[WrittenInput]:
        """Inputs of a model that embeds or scores; other requests have their turns between groups of them."""
        self._expect(form.longest)
        found: list[WrittenInput] = []
        for group in _groups(texts):
            found += await self._text_lane(group).run(_inputs, self._source, group, len(found), form)
        return found

    async def ready(self) -> None:
        """Wait until the tokenizer is loaded, and the processor of a model that takes media."""
        await asyncio.gather(self._quick.ready(), *([self._media.ready()] if self._source.media is not None else []))

    def close(self) -> None:
        self._fetching.close()
        for lane in self._lanes:
            lane.close()

    @property
    def _lanes(self) -> tuple[Lane, ...]:
        return self._quick, self._long, self._media

    def _text_lane(self, text: Any) -> Lane:
        return self._quick if is_quick(text) else self._long

    def _expect(self, longest: int) -> None:
        """Where long texts will come, their process is started before the first of them does."""
        if longest * _LEAST_CHARACTERS > QUICK_WEIGHT:
            self._long.start()

    def _turn(self, lane: Lane, only_counted: bool) -> AbstractAsyncContextManager[Any]:
        """Prompts that nobody will answer wait for each other."""
        return self._counting[lane] if only_counted else nullcontext()


def _groups(texts: Sequence[str | Pair]) -> Iterator[list[str | Pair]]:
    """As many texts at a time as are quick together; a long one alone."""
    group: list[str | Pair] = []
    weight = 0
    for one in texts:
        own = weight_of(one, QUICK_WEIGHT)
        if group and weight + own > QUICK_WEIGHT // 2:
            yield group
            group, weight = [], 0
        group.append(one)
        weight += own
    if group:
        yield group


# -- in a worker: the heavy imports are here, so that the server listens before them -------------------------------


def _load(source: TokenizerSource) -> None:
    from brim.serve.prepare.preparer import preparer_of

    with _plain_errors():
        preparer_of(source)


def _load_media(source: TokenizerSource) -> None:
    from brim.serve.prepare.preparer import preparer_of

    with _plain_errors():
        preparer_of(source).load_processor()


def _chat(source: TokenizerSource, job: ChatJob, known: Mapping[str, SeenImage]) -> Prepared:
    from brim.serve.prepare.preparer import preparer_of

    with _plain_errors():
        return preparer_of(source).chat(job, known)


def _texts(
    source: TokenizerSource, texts: Sequence[str], special: bool, longest: int | None, counted: bool
) -> list[tuple[int, ...]]:
    from brim.serve.prepare.preparer import preparer_of

    with _plain_errors():
        return [preparer_of(source).tokens(text, special, longest, counted) for text in texts]


def _asked(source: TokenizerSource, question: str, given: tuple[Sequence[int], ...]) -> Any:
    from brim.serve.prepare.preparer import preparer_of

    with _plain_errors():
        return getattr(preparer_of(source), question)(*given)


def _inputs(source: TokenizerSource, texts: Sequence[str | Pair], first: int, form: InputForm) -> list[WrittenInput]:
    from brim.serve.prepare.preparer import preparer_of

    with _plain_errors():
        return [preparer_of(source).input(text, number, form) for number, text in enumerate(texts, first)]


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Errors as they can cross between processes: with one text."""
    try:
        yield
    except PromptTooLong:
        raise
    except BrimError as error:
        raise InvalidRequest(str(error)) from None
