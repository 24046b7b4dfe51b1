"""Answers to a list of prompts, in their order (`Engine.generate`): all are submitted, and steps run until they end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from brim.engine.front.answers import Completion, Update
from brim.engine.media.prepare import Given, Prompt
from brim.engine.requests.params import SamplingParams
from brim.errors import InvalidRequest

ShowProgress = Callable[[int, int], None]  # answers that are complete, and all


class AnsweringEngine(Protocol):
    """What takes requests and steps."""

    @property
    def idle(self) -> bool: ...

    def submit(self, prompt: Prompt, params: SamplingParams, *, images: Given, audios: Given) -> str: ...

    def step(self) -> list[Update]: ...

    def cancel(self, request_id: str) -> bool: ...


def generate(
    engine: AnsweringEngine,
    prompts: Iterable[Prompt],
    params: SamplingParams | Sequence[SamplingParams] | None,
    *,
    images: Sequence[Given | None] | None,
    audios: Sequence[Given | None] | None,
    progress: ShowProgress | None,
) -> list[Completion]:
    """All answers of one prompt beside each other. Nothing of them stays in the engine if anything raises."""
    prompts = list(prompts)
    shown, heard = (_for_each("images", images, len(prompts)), _for_each("audios", audios, len(prompts)))
    wanted = list(params) if isinstance(params, Sequence) else [params or SamplingParams()] * len(prompts)
    if len(wanted) != len(prompts):
        raise InvalidRequest(f"params: {len(wanted)} for {len(prompts)} prompts; give one, or one for each")
    ids: list[str] = []
    try:
        for prompt, one, seen, sounds in zip(prompts, wanted, shown, heard, strict=True):
            ids.append(engine.submit(prompt, one, images=seen, audios=sounds))
        done = _run_to_the_end(engine, ids, sum(one.n for one in wanted), progress)
    except BaseException:  # whatever it was: nobody will ask for these answers again
        for request_id in ids:
            engine.cancel(request_id)
        raise
    return [one for request_id in ids for one in sorted(done[request_id], key=lambda one: one.index)]


def _run_to_the_end(
    engine: AnsweringEngine, ids: list[str], total: int, progress: ShowProgress | None
) -> dict[str, list[Completion]]:
    done: dict[str, list[Completion]] = {request_id: [] for request_id in ids}
    left = total
    while left and not engine.idle:  # it is idle before all are done where somebody cancelled one
        for update in engine.step():
            if update.completion is not None and update.request_id in done:
                done[update.request_id].append(update.completion)
                left -= 1
                if progress:
                    progress(total - left, total)
    return done


def _for_each(name: str, given: Sequence[Given | None] | None, prompts: int) -> list[Given]:
    """The media of each prompt."""
    found = [None] * prompts if given is None else list(given)
    if len(found) != prompts:
        raise InvalidRequest(f"{name}: {len(found)} entries for {prompts} prompts; give one for each, or None")
    return [some if some is not None else () for some in found]
