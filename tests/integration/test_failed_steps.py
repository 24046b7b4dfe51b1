"""Steps that fail: an error or an interrupt at any point of any step, and every request still gets its own answer.

A load is run once undisturbed. Then it is run again and again, with faults at some of the points that it comes by
(torch operations and calls of the engine's code); `step` raises, and the caller goes on stepping. Out of memory in a
step is rescued instead (`test_rescue.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from brim.engine.engine import Engine
from brim.engine.front.answers import Completion
from brim.engine.requests.params import SamplingParams
from brim.engine.requests.request import FinishReason
from brim.engine.weights.builtin import ByteTokenizer
from brim.errors import OutOfMemory
from brim.guard.rescue import LAST_TRIES
from tests.conftest import sampled
from tests.integration import test_engine_vision as vision
from tests.integration.faults import EXPECTED, KINDS, Faults, out_of_memory
from tests.integration.test_engine import EAGER, drawn, family, greedy, nothing_is_held, prompts_of

NAMES = ("llama", "gemma3_text", "qwen3_next", "granitemoehybrid", "qwen2_5_vl", "gemma3")
SAMPLES = 1  # disturbed runs of each load
FAULTS = 8  # in each of them


@dataclass
class Load:
    """Requests, and the step that each comes in."""

    engine: Engine
    kv_tokens: int
    requests: list[tuple[int, Any, SamplingParams, Any]] = field(default_factory=list)  # step, prompt, params, images
    hopeless: set[tuple[str, int]] = field(default_factory=set)  # requests that the last run was free to give up

    def run(self, faults: Faults) -> dict[str, list[Completion]]:
        """All answers, with an engine that is rebuilt."""
        engine = self.engine
        engine.teardown()
        engine.build(self.kv_tokens)
        done: dict[str, list[Completion]] = {}
        self.hopeless = set()
        failed_alone: list[tuple[str, int]] = []  # the requests of the last steps, which failed and had one each
        for step in range(3000):
            for number, (comes, prompt, params, images) in enumerate(self.requests):
                if comes == step:
                    engine.submit(prompt, params, images=images, request_id=str(number))
            if engine.idle and step > max(comes for comes, *_ in self.requests):
                break
            steps = engine.figures.steps
            try:
                with faults.watching():
                    updates = engine.step()
            except (*EXPECTED, OutOfMemory):
                updates = []
            self._follow(failed_alone, launched=engine.figures.steps > steps)
            for update in updates:
                if update.completion is not None:
                    done.setdefault(update.request_id, []).append(update.completion)
        assert engine.idle
        assert nothing_is_held(engine)
        assert sorted(engine.loop.scheduler.batch.free_slots) == list(range(engine.settings.max_batch))
        return {name: sorted(answers, key=lambda one: one.index) for name, answers in done.items()}

    def _follow(self, failed_alone: list[tuple[str, int]], launched: bool) -> None:
        """A request may be given up when so many steps in a row have failed that had nothing else in them."""
        failed = self.engine.loop.failed
        if failed is None:
            failed_alone[:] = [] if launched else failed_alone
            return
        keys = {sequence.request.key for sequence in failed.sequences}
        failed_alone[:] = [*failed_alone, *keys] if len(keys) == 1 and keys >= {*failed_alone[-1:]} else [*keys][:1]
        if len(failed_alone) > LAST_TRIES:
            self.hopeless |= keys


def text_load(name: str, seed: int = 0, **settings: Any) -> Load:
    """A random load: forks, sampling, scores, shared beginnings, and more than the pool can hold at once."""
    numbers = random.Random(f"{name} {seed}")
    max_batch = numbers.choice([4, 5])
    engine = family(name).engine(
        0,
        max_batch=max_batch,
        max_batch_tokens=numbers.choice([11, 19, 26]),
        tokenizer=ByteTokenizer(),
        **EAGER,
        **settings,
    )
    shared = prompts_of([16], seed=seed)[0]
    load = Load(engine, numbers.choice([56, 64]))
    for number, own in enumerate(prompts_of([numbers.randrange(1, 24) for _ in range(6)], seed=seed + 1)):
        kinds = (
            greedy(numbers.randrange(1, 14)),
            drawn(8, number, n=3),
            drawn(7, number, presence_penalty=1.0, repetition_penalty=1.2, stop=("zq",)),
            greedy(6, prompt_logprobs=2, logprobs=2),
            drawn(9, number, top_p=0.8, logprobs=1),
        )
        prompt = [*shared, *own] if numbers.random() < 0.6 else own
        load.requests.append((numbers.choice([0, 0, 1, 2, 5, 9]), prompt, kinds[number % len(kinds)], ()))
    return load


def image_load(name: str, seed: int = 0) -> Load:
    numbers = random.Random(f"{name} {seed}")
    load = Load(vision.engine_of(name, kv_tokens=0), numbers.choice([160, 512]))
    for prompt in vision.prompts_of(name):
        images = prompt.inputs if prompt.inputs else ()
        load.requests.append((numbers.choice([0, 0, 2, 4, 8]), list(prompt.tokens), greedy(5), images))
    return load


def load_of(name: str, seed: int = 0) -> Load:
    return image_load(name, seed) if name in vision.KINDS else text_load(name, seed)


def plain(answers: dict[str, list[Completion]]) -> Any:
    """What must be the same whatever happened: tokens, texts and reasons; and how many scores there are."""
    return {
        name: [
            (one.tokens, one.text, one.finish_reason, one.error, len(one.logprobs), len(one.prompt_logprobs))
            for one in those
        ]
        for name, those in answers.items()
    }


def disturb(load: Load, wanted: Any, points: int, at: list[int], kind: Callable[[], None]) -> None:
    faults = Faults([point for point in at if point <= points], kind)
    found = plain(load.run(faults))
    hopeless = load.hopeless if kind is out_of_memory else set()
    same = {
        name: [
            two if (name, index) in hopeless and _ended_early(one, two) else one
            for index, (one, two) in enumerate(zip(found[name], wanted[name], strict=True))
        ]
        for name in wanted
    }
    assert same == wanted, f"{kind.__name__} at {sorted(at)}, given up: {hopeless}"


def _ended_early(found: Any, wanted: Any) -> bool:
    """With an error, and with the first tokens of the whole answer."""
    return found[2] is FinishReason.ERROR and found[0] == wanted[0][: len(found[0])]


@pytest.mark.parametrize("name", sampled(NAMES, ("llama", "granitemoehybrid", "gemma3")))
def test_a_failed_step_changes_no_answer(name: str) -> None:
    numbers = random.Random(name)
    preempted = 0
    for seed, kind in enumerate(KINDS):
        load, counted = load_of(name, seed), Faults()
        wanted = plain(load.run(counted))
        assert all(those for those in wanted.values())
        assert counted.points > 1000
        preempted += load.engine.figures.preemptions
        for _ in range(SAMPLES):
            disturb(load, wanted, counted.points, numbers.sample(range(1, counted.points), FAULTS), kind)
    if name in ("llama", "gemma3_text"):
        assert preempted > 0


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", NAMES)
def test_the_same_at_every_point(name: str, seed: int) -> None:
    load, counted = load_of(name, 10 + seed), Faults()
    wanted = plain(load.run(counted))
    points = list(range(1, counted.points + 1))
    random.Random(name).shuffle(points)
    for number, start in enumerate(range(0, len(points), 5 * FAULTS)):
        disturb(load, wanted, counted.points, points[start : start + 5 * FAULTS], KINDS[(number + seed) % len(KINDS)])
