"""What the ranks of `test_rescue_ranks` do in processes of their own: each serves a load, and the victim is refused.

Every rank has a budget. The victim notes where its steps allocate, and each of these places is refused once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch
import torch.distributed as dist

from brim.engine.engine import Engine
from brim.engine.front.answers import Completion, Update
from brim.engine.injection import failing_launches
from brim.engine.ranks.collectives import Collective, CollectiveKind, take_part
from brim.engine.ranks.local_collectives import collectives_stood_in
from brim.engine.requests.params import SamplingParams
from brim.engine.schedule.audit import scheduler_problems
from brim.engine.schedule.plan import StepPlan
from brim.engine.settings import EngineSettings
from brim.engine.streaming import StreamingEngine
from brim.errors import DeviceError, OutOfMemory
from brim.guard import driver
from brim.records.health import Health
from brim.units import GIB, KIB, MIB
from tests.integration import test_engine_vision as vision
from tests.integration.allocation_sites import SiteProbe
from tests.integration.faults import Injected, other, out_of_memory
from tests.integration.split_ranks import known_collectives, settled_bytes
from tests.integration.tiny_models import tiny_config

VICTIM = 1
SETTINGS = EngineSettings(max_batch=4, max_batch_tokens=20, block_size=8)
CANARY = 64 * KIB
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"num_hidden_layers": 2},
    "gemma3_text": {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
    "qwen3_moe": {"num_hidden_layers": 2},
    "granitemoehybrid": {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]},
    "qwen2_5_vl": {},
}
GREEDY = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
DRAWN = replace(GREEDY, temperature=1.0, seed=1)
Asked = tuple[tuple[int, ...], SamplingParams, Any]  # a prompt, how it is to be answered, and its images
REQUESTS: tuple[Asked, ...] = (
    ((5, 6, 7, 8, 9), replace(GREEDY, max_tokens=5), ()),
    (tuple(range(20, 41)), replace(DRAWN, n=2), ()),
    (tuple(range(50, 62)), replace(DRAWN, presence_penalty=1.0, repetition_penalty=1.2), ()),
    (tuple(range(70, 79)), replace(GREEDY, prompt_logprobs=1, logprobs=2), ()),
)
Answers = dict[tuple[str, int], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Served:
    """What a run of the load left on a rank."""

    answers: Answers
    health: Health
    left_bytes: int  # beside what an idle engine holds
    raised: tuple[str, ...] = ()


class Load:
    """Requests that come together, and an engine that is rebuilt for each run of them."""

    def __init__(self, kind: str, tensor_parallel: bool = True) -> None:
        self.probe, self.requests = SiteProbe(GIB), REQUESTS
        model: Any = tiny_config(kind, **KINDS[kind])
        if kind in vision.KINDS:
            model = vision.loaded_of(kind)
            self.requests = tuple((one.tokens, GREEDY, one.inputs or ()) for one in vision.prompts_of(kind)[:4])
        self.engine = Engine(
            model,
            load_format="dummy",
            kv_tokens=0,
            settings=SETTINGS,
            device="cpu",
            dtype="fp32",
            probe=self.probe,
            tensor_parallel=tensor_parallel,
        )
        self.raised: list[str] = []  # by steps of the last run

    def begin(self) -> Engine:
        self.engine.teardown()
        self.probe.hold_canary(0)
        self.engine.build(256)
        self.probe.hold_canary(CANARY)
        self.probe.allocations, self.raised = 0, []
        return self.engine

    def run(self, fail_at: int | None = None, *, noting: bool = False) -> Served:
        engine, found = self.begin(), {}
        for number, (prompt, params, images) in enumerate(self.requests):
            engine.submit(list(prompt), params, images=images, request_id=str(number))
        held = settled_bytes(self.probe)
        self.probe.noting, self.probe.fail_at = noting, fail_at
        for _ in range(300):
            if engine.idle:
                break
            for update in self._step():
                if update.completion is not None:
                    found[update.request_id, update.index] = plain(update.completion)
        self.probe.noting, self.probe.fail_at = False, None
        assert engine.idle
        return Served(dict(sorted(found.items())), engine.health, self.left_bytes(held), tuple(self.raised))

    def _step(self) -> list[Update]:
        try:
            return self.engine.step()
        except (DeviceError, Injected) as error:
            self.raised.append(f"{type(error).__name__}: {error}")
            return []

    def left_bytes(self, held: int) -> int:
        assert scheduler_problems(self.engine.loop.scheduler) == []
        return settled_bytes(self.probe) - held - self.engine.model.runner.kept_bytes

    @contextmanager
    def failing(self, fail: Callable[[StepPlan], None]) -> Iterator[None]:
        """Ask `fail` in the middle of each step, after some of its collectives; it may raise."""
        runner, plans = self.engine.model.runner, list[StepPlan]()

        def note(plan: StepPlan) -> None:
            plans[:] = [plan]

        hook = runner.text_model.backbone.layers[1].register_forward_pre_hook(  # type: ignore[index,union-attr]
            lambda *_: fail(plans[0]) if not runner.is_alone else None
        )
        try:
            with failing_launches(self.engine, note):
                yield
        finally:
            hook.remove()


def plain(one: Completion) -> tuple[Any, ...]:
    return tuple(one.tokens), one.text, one.finish_reason, one.error, len(one.logprobs), len(one.prompt_logprobs)


def on_the_victim(load: Load, rank: int, fail: Callable[[StepPlan], None]) -> Served:
    """A run in which rank 1 fails like this."""
    if rank != VICTIM:
        return load.run()
    with load.failing(fail):
        return load.run()


def at_step(number: int, action: Callable[[], None]) -> Callable[[StepPlan], None]:
    """Once, in the step of this number."""
    steps = count(1)

    def fail(plan: StepPlan) -> None:
        if next(steps) == number:
            action()

    return fail


# -- tasks -------------------------------------------------------------------------------------------------------------


def refused(rank: int, kind: str, victim: int, samples: int | None) -> tuple[Served, list[tuple[int, Served]]]:
    """The load undisturbed, and then with one place of the victim's refused in each run; `samples` of all places."""
    load = Load(kind)
    undisturbed = load.run(noting=True)
    places = [site[len(site) // 2] for site in load.probe.sites.values()]
    total = from_rank(len(places), victim)
    assert total > 60
    found = []
    for number in range(0, total, 1 if samples is None else -(-total // samples)):
        at = from_rank(places[number] if rank == victim else 0, victim)
        found.append((at, load.run(fail_at=at if rank == victim else None)))
    load.engine.teardown()
    return undisturbed, found


def from_rank(number: int, rank: int) -> int:
    """A rank's number, on all ranks."""
    value = torch.tensor(number)
    dist.broadcast(value, rank)
    return int(value)


def befallen(rank: int) -> dict[str, Served]:
    """What may befall one rank, one after the other."""
    load = Load("llama")
    left_behind: list[torch.Tensor] = []

    def too_large(plan: StepPlan) -> None:
        if any(sequence.request.key == ("2", 0) and sequence.generated >= 2 for sequence in plan.sequences):
            raise load.probe.refusal(3 * MIB)

    def leak() -> None:
        left_behind.append(torch.empty(2**12))
        out_of_memory()

    found = {
        "undisturbed": load.run(),
        "too large": on_the_victim(load, rank, too_large),
        "a tensor left behind": on_the_victim(load, rank, at_step(4, leak)),
    }
    left_behind.clear()
    found["another error"] = on_the_victim(load, rank, at_step(4, other))
    with canary_refused(load.probe, 1 if rank == VICTIM else 0), shorter_wait(3):
        found["a canary that does not fit"] = on_the_victim(load, rank, at_step(2, out_of_memory))
    load.engine.teardown()
    return found


@contextmanager
def canary_refused(probe: SiteProbe, times: int) -> Iterator[None]:
    """So many attempts to hold it again find no memory."""
    take_back, left = probe.take_canary_back, [times]

    def refusing() -> None:
        if left[0] and probe._lent_bytes and probe.allocations:  # not when an engine begins to watch
            left[0] -= 1
            raise OutOfMemory("no memory for the canary")
        take_back()

    probe.take_canary_back = refusing  # type: ignore[method-assign]
    yield
    probe.take_canary_back = take_back  # type: ignore[method-assign]
    assert left == [0], "all of them were made"


@contextmanager
def shorter_wait(steps: int) -> Iterator[None]:
    """Between attempts to hold the canary."""
    before, driver.CANARY_STEPS = driver.CANARY_STEPS, steps
    try:
        yield
    finally:
        driver.CANARY_STEPS = before


def taken_part(rank: int) -> dict[str, bool | None]:
    """Whether what comes out on the other ranks is finite, where the victim only takes part; None: it cannot."""
    found: dict[str, bool | None] = {}
    reserve = torch.full((2**16,), 255, dtype=torch.uint8)
    for name, collective in known_collectives(dist.get_world_size()).items():
        notes: list[Collective] = []
        with collectives_stood_in(notes):
            collective(torch.ones(8, 16))
        if any(one.kind is CollectiveKind.OTHER for one in notes):
            found[name] = None
        elif rank == VICTIM:
            take_part(notes, dist.group.WORLD, reserve)
            found[name] = True
        else:
            out = collective(torch.ones(8, 16))
            found[name] = all(bool(one.isfinite().all()) for one in (out if isinstance(out, list) else [out]))
    return found


def streamed(rank: int) -> tuple[list[Any], list[Any], Health]:
    """Answers of a request that is disturbed, and of one that comes later."""
    load = Load("llama")
    engine = load.begin()
    params = replace(DRAWN, n=3, max_tokens=6)

    async def serve() -> tuple[list[Any], list[Any], Health]:
        async with StreamingEngine(engine) as serving:
            first = [plain(one) for one in await serving.generate(list(range(5, 40)), params)]
            later = [plain(one) for one in await serving.generate(list(range(5, 40)), params)]
            return first, later, serving.health

    if rank != VICTIM:
        found = asyncio.run(serve())
    else:
        with load.failing(at_step(3, out_of_memory)):
            found = asyncio.run(serve())
    engine.teardown()
    return found
