"""Out of memory while serving: one request at most ends, all others say what they would have said, nothing leaks.

A load is run once undisturbed, under a budget that notes every place that allocates. Then it is run again with one of
these places refused. Other tests refuse for good: one request, an image, a budget that a neighbour has taken from.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
import torch

from brim.engine.engine import Engine
from brim.engine.front.answers import Completion
from brim.engine.injection import failing_launches
from brim.engine.media.features import Features
from brim.engine.requests.params import SamplingParams
from brim.engine.requests.request import FinishReason
from brim.engine.requests.sequence import Sequence
from brim.engine.run.launched import Launched
from brim.engine.schedule.audit import scheduler_problems
from brim.engine.schedule.plan import StepPlan
from brim.engine.weights.builtin import ByteTokenizer
from brim.errors import OutOfMemory
from brim.guard import driver
from brim.records.health import Health, Status
from tests.integration import test_engine_vision as vision
from tests.integration.allocation_sites import SiteProbe
from tests.integration.faults import out_of_memory
from tests.integration.test_engine import drawn, family, greedy, nothing_is_held, prompts_of

NAMES = ("llama", "gemma3_text", "qwen3_moe", "granitemoehybrid", "qwen2_5_vl", "gemma3")
SAMPLES = 3  # places of each load that are refused
GIB = 2**30
CANARY = 2**18


class Load:
    """Requests that come together, and an engine that is rebuilt for each run of them."""

    def __init__(self, name: str, **settings: Any) -> None:
        self.probe = SiteProbe(GIB)
        self.requests: list[tuple[Any, SamplingParams, Any]] = []
        if name in vision.KINDS:
            self.kv_tokens, self.engine = 512, vision.engine_of(name, kv_tokens=0, **settings)
            for prompt in vision.prompts_of(name)[:4]:
                self.requests.append((list(prompt.tokens), greedy(4), prompt.inputs or ()))
        else:
            chosen = {"max_batch": 4, "max_batch_tokens": 19, "tokenizer": ByteTokenizer(), **settings}
            self.kv_tokens, self.engine = 128, family(name).engine(0, **chosen)
            kinds = (
                greedy(6),
                drawn(5, 1, n=2),
                drawn(5, 2, presence_penalty=1.0, repetition_penalty=1.2),
                greedy(4, prompt_logprobs=1, logprobs=2),
            )
            for prompt, params in zip(prompts_of([5, 21, 12, 9]), kinds, strict=True):
                self.requests.append((prompt, params, ()))
        self.engine.probe = self.probe

    def begin(self) -> Engine:
        engine, probe = self.engine, self.probe
        engine.teardown()
        probe.hold_canary(0)
        engine.build(self.kv_tokens)
        probe.hold_canary(CANARY)
        for number, (prompt, params, images) in enumerate(self.requests):
            engine.submit(prompt, params, images=images, request_id=str(number))
        probe.allocations = 0
        return engine

    def run(
        self,
        fail_at: int | None = None,
        *,
        noting: bool = False,
        before_step: Callable[[int], None] = lambda step: None,
        at_the_end: Callable[[], None] = lambda: None,
    ) -> Any:
        """All answers, by request and index."""
        engine, done = self.begin(), {}
        self.probe.noting = noting
        held = self.probe.reading().allocated_bytes
        self.probe.fail_at = fail_at
        for step in range(1000):
            if engine.idle:
                break
            before_step(step)
            for update in engine.step():
                if update.completion is not None:
                    done[update.request_id, update.index] = update.completion
        self.probe.fail_at, self.probe.noting = None, False
        at_the_end()
        assert engine.idle
        assert nothing_is_held(engine)
        assert scheduler_problems(engine.loop.scheduler) == []
        assert self.probe.reading().allocated_bytes - held == engine.model.runner.kept_bytes
        return {key: plain(done[key]) for key in sorted(done)}


def plain(one: Completion) -> Any:
    return one.tokens, one.text, one.finish_reason, one.error, len(one.logprobs), len(one.prompt_logprobs)


@pytest.fixture(scope="module")
def loads() -> Iterator[Callable[[str], tuple[Load, Any, list[list[int]]]]]:
    """A load, its answers, and the allocations of every place that it allocates at."""
    made: dict[str, Any] = {}

    def load_of(name: str) -> tuple[Load, Any, list[list[int]]]:
        if name not in made:
            load = Load(name)
            wanted = load.run(noting=True)
            made[name] = load, wanted, list(load.probe.sites.values())
        return made[name]

    yield load_of
    for load, *_ in made.values():
        load.engine.teardown()


def refuse(load: Load, wanted: Any, allocation: int) -> None:
    assert load.run(fail_at=allocation) == wanted, f"allocation {allocation}"
    health = load.engine.health
    assert (health.rescues, health.ended_requests, health.rebuilds) == (1, 0, 0), f"allocation {allocation}: {health}"
    assert health.canary_held


@pytest.mark.parametrize("name", NAMES[:5])
def test_a_refused_allocation_changes_no_answer(name: str, loads: Any) -> None:
    load, wanted, sites = loads(name)
    assert len(sites) > 90
    numbers = random.Random(name)
    for site in numbers.sample(sites, SAMPLES):
        refuse(load, wanted, numbers.choice(site))


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_the_same_at_every_place(name: str, loads: Any) -> None:
    load, wanted, sites = loads(name)
    numbers = random.Random(name)
    for site in sites:
        refuse(load, wanted, numbers.choice(site))


# -- refused for good ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "granitemoehybrid"])
def test_a_request_that_cannot_run_alone_ends_and_no_other(name: str, loads: Any) -> None:
    """Refused is its third token, not the steps up to there: recurrent layers compute it again from its first one."""
    load, wanted, _ = loads(name)

    def refusing(plan: StepPlan) -> None:
        if any(sequence.request.key == ("2", 0) and sequence.generated >= 2 for sequence in plan.drawing):
            raise load.probe.refusal(3 * 2**20)

    with failing_launches(load.engine, refusing):
        found = load.run()
    tokens, _, reason, error, *_ = found.pop(("2", 0))
    assert tokens == wanted["2", 0][0][:2]
    assert reason is FinishReason.ERROR
    assert "even alone, with the canary of 256.0 KiB released: the device is out of memory: 3.0 MiB" in error
    assert found == {key: one for key, one in wanted.items() if key != ("2", 0)}
    assert load.engine.health.ended_requests == 1
    assert load.engine.health.rebuilds == 0


@pytest.mark.parametrize("name", ["qwen2_5_vl", "gemma3"])
def test_an_image_that_cannot_be_encoded_ends_its_own_request(
    name: str, loads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import brim.engine.media.features as features

    load, wanted, _ = loads(name)
    encode = features.encode
    culprit = next(number for number, (_, _, images) in enumerate(load.requests) if images)
    refused: list[Any] = []

    def refusing(model: Any, part: Any) -> Any:
        found = [one for one in load.engine.loop.scheduler.running if one.request.id == str(culprit)]
        if any(part is one for sequence in found for one in sequence.request.media.parts):
            refused.append(part)
            out_of_memory()
        return encode(model, part)

    monkeypatch.setattr(features, "encode", refusing)
    found = load.run()
    assert len(refused) > 1
    ended = found.pop((str(culprit), 0))
    assert ended[2] is FinishReason.ERROR
    assert found == {key: one for key, one in wanted.items() if key != (str(culprit), 0)}


def test_a_budget_that_shrinks_while_serving_is_answered_with_smaller_steps() -> None:
    """A neighbour takes what a full step needs: parts of it fit, the canary is spent and held again later."""
    load = Load("llama", max_batch_tokens=64)
    load.requests = [(prompt, greedy(8), ()) for prompt in prompts_of([60, 50, 40, 30])]
    load.kv_tokens = 512
    wanted = load.run()
    load.begin()
    load.probe.reset_peak()
    rest = load.probe.reading().allocated_bytes
    while not load.engine.idle:
        load.engine.step()
    full_step = load.probe.reading().peak_allocated_bytes - rest
    lent: list[bool] = []

    def shrink(step: int) -> None:
        lent.append(not load.engine.health.canary_held)
        load.probe.budget_bytes = rest + full_step // 3

    try:
        assert load.run(before_step=shrink) == wanted
    finally:
        load.probe.budget_bytes = GIB
    health = load.engine.health
    assert any(lent)
    assert health.canary_held
    assert health.rescues > 1
    assert health.ended_requests == 0
    assert health.status is Status.DEGRADED
    assert health.step_tokens < health.usual_step_tokens == 64
    assert f"steps are limited to {health.step_tokens} tokens instead of 64" in health.reason


def test_a_device_that_refuses_everything_ends_every_request_and_not_the_engine() -> None:
    load = Load("llama")
    wanted = load.run()
    with failing_launches(load.engine, lambda plan: out_of_memory()):
        found = load.run()
    assert {one[2] for one in found.values()} == {FinishReason.ERROR}
    assert found.keys() == wanted.keys()
    assert load.run() == wanted


def test_planning_that_never_succeeds_is_an_error_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load("llama")
    wanted = load.run()
    engine = load.begin()
    with monkeypatch.context() as patch:
        patch.setattr(engine.loop.scheduler.prefill, "policy", lambda view: out_of_memory())
        for _ in range(6):  # a rescue begins, and ends with nothing done, three times
            engine.step()
        with pytest.raises(OutOfMemory):
            engine.step()
    done = {}
    while not engine.idle:
        for update in engine.step():
            if update.completion is not None:
                done[update.request_id, update.index] = plain(update.completion)
    assert done == wanted


# -- doubt -----------------------------------------------------------------------------------------------------------


def once(action: Callable[[], None]) -> Callable[[], None]:
    left = [action]

    def act() -> None:
        if left:
            left.pop()()

    return act


@pytest.mark.parametrize(
    ("name", "kind"),
    [("llama", "a block too many"), ("granitemoehybrid", "a lost slot"), ("gemma3_text", "a tensor left behind")],
)
def test_a_failed_audit_rebuilds_the_pool_and_computes_again(name: str, kind: str, loads: Any) -> None:
    load, wanted, _ = loads(name)
    engine, left_behind = load.engine, list[torch.Tensor]()
    launches = [0]

    def damage() -> None:
        if kind == "a block too many":
            engine.loop.scheduler.ledger.pools[0].take()
        elif kind == "a lost slot":
            engine.loop.scheduler.batch.free_slots[:] = [0]
        else:
            left_behind.append(torch.empty(2**16))
        out_of_memory()

    damaging = once(damage)

    def failing(plan: StepPlan) -> None:
        launches[0] += 1
        if launches[0] > 4:
            damaging()

    with failing_launches(engine, failing):
        assert load.run(at_the_end=left_behind.clear) == wanted
    assert engine.health.rebuilds == 1
    assert "the KV pool was rebuilt" in engine.health.reason
    assert (kind == "a tensor left behind") == ("tensors were left behind" in engine.health.reason)


def before_a_launch(engine: Engine, happens: Callable[[], object]) -> AbstractContextManager[None]:
    """Let it happen before each launch, from the fifth step on."""

    def launched(plan: StepPlan) -> None:
        if engine.kv_tokens and engine.loop.figures.steps > 3:
            happens()

    return failing_launches(engine, launched)


@pytest.mark.parametrize("refusals", [1, 3, 40])
def test_a_pool_that_is_refused_is_built_later(refusals: int, loads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within so many attempts; then the step raises, and the next one begins to try again."""
    load, wanted, _ = loads("llama")
    engine, runner = load.engine, load.engine.model.runner
    build, left, raised = runner.build, [refusals], [0]

    def damage() -> None:
        engine.loop.scheduler.ledger.pools[0].take()
        out_of_memory()

    def building(*given: Any) -> None:
        if engine.kv_tokens and left[0]:
            left[0] -= 1
            out_of_memory()
        build(*given)

    monkeypatch.setattr(driver, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(runner, "build", building)
    step = engine.step

    def stepping() -> Any:
        try:
            return step()
        except OutOfMemory:
            raised[0] += 1
            return []

    monkeypatch.setattr(engine, "step", stepping)
    with before_a_launch(engine, once(damage)):
        assert load.run() == wanted
    assert (left[0], raised[0]) == (0, refusals // driver.MOST_REBUILDS)
    assert (engine.health.rescues, engine.health.ended_requests, engine.health.rebuilds) == (1, 0, 1)
    assert engine.health.canary_held


def test_features_of_a_request_that_does_not_run_are_not_trusted(loads: Any) -> None:
    """They hold memory of the device, and the request with its pixels on the host."""
    load, wanted, _ = loads("qwen2_5_vl")
    engine, runner = load.engine, load.engine.model.runner
    strangers = list[Sequence]()

    def keep_for_a_stranger() -> None:
        strangers.append(Sequence(engine.loop.scheduler.running[0].request, [1], slot=0))
        runner.features._kept[strangers[0]] = {0: Features(torch.zeros(2**10))}
        out_of_memory()

    with before_a_launch(engine, once(keep_for_a_stranger)):
        assert load.run() == wanted
    assert strangers[0] not in runner.features._kept
    assert engine.health.rebuilds == 1
    assert "features are kept for 1 requests that do not run" in engine.health.reason


@pytest.mark.parametrize(("failures", "rebuilds"), [(1, 0), (2, 0), (6, 1)])
@pytest.mark.parametrize("name", ["llama", "granitemoehybrid"])
def test_results_that_cannot_be_read_are_read_again_or_drawn_again(
    name: str, failures: int, rebuilds: int, loads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, wanted, _ = loads(name)
    read, left, reads = Launched.tokens, [failures], [0]

    def refusing(launched: Launched) -> list[int]:
        reads[0] += 1
        if reads[0] > 5 and left[0]:
            left[0] -= 1
            out_of_memory()
        return read(launched)

    monkeypatch.setattr(Launched, "tokens", refusing)
    assert load.run() == wanted
    assert load.engine.health.rebuilds == rebuilds
    assert load.engine.health.ended_requests == 0


def test_health_is_restored_after_a_while_without_rescues() -> None:
    load = Load("llama")
    load.requests = [(prompts_of([5])[0], greedy(40), ())] * 2
    seen: list[Health] = []
    load.begin()
    rescue = load.engine.pool.rescue
    assert rescue is not None
    engine, probe = load.engine, load.probe
    rescue._policy = replace(rescue._policy, calm_steps=5)
    for step in range(1000):
        if engine.idle:
            break
        probe.allocations, probe.fail_at = 0, 20 if step in (2, 6) else None
        engine.step()
        seen.append(engine.health)
    assert [one.status for one in (seen[0], seen[8], seen[-1])] == [Status.READY, Status.DEGRADED, Status.READY]
    limits = [one.step_tokens for one in seen]
    assert min(limits) == 9
    assert sorted(limits[limits.index(9) :]) == limits[limits.index(9) :]
    assert limits[-1] == 19
