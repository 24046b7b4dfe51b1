"""What the ranks of `test_split_fit` do in processes of their own: each reports what it found or was told.

Each rank has a budget. One of them, the victim, is given less than the others; a neighbour may come there, or an error
in the middle of a step.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial

from brim.engine.engine import Engine
from brim.engine.ranks.local_collectives import collectives_stood_in
from brim.engine.requests.params import SamplingParams
from brim.engine.schedule.plan import StepPlan
from brim.engine.settings import EngineSettings
from brim.errors import BrimError, OutOfMemory, UnsupportedModel
from brim.fit.clock import Clock
from brim.fit.fit import fit
from brim.fit.ranks import FitRanks, gathered
from brim.guard.preemption import PreemptionRates
from brim.probes.cpu import CpuProbe
from brim.records.fit import FitRequest
from brim.records.memory import StressShape
from brim.records.progress import Stage, silent
from brim.units import GIB, KIB
from tests.integration.tiny_models import tiny_config

SETTINGS = EngineSettings(max_batch=4, max_batch_tokens=24, block_size=8)
PROMPTS = [[7, 8, 9], list(range(20, 60))]
# A part of what is left stays free: gloo's threads let go of a tensor when they come to it.
REQUEST = FitRequest(probe_tokens=2048, least_tokens=24, most_tokens=2048, canary_bytes=0, memory_fraction=0.9)
LEFT_BYTES = 800 * KIB  # for KV and for steps, on a rank that has enough
SHORT_BYTES = 500 * KIB  # on the victim: the probe does not fit there at first


@dataclass(frozen=True, slots=True)
class Scene:
    """What befalls the victim of a fit, and when."""

    victim: int
    taken_bytes: int = 0  # by a neighbour who comes ...
    when: str = ""  # when the first attempt is built ("attempt") or stressed ("validate"), and goes after the second
    canary_bytes: int = 0
    boom: str = ""  # an error: in a "step" or in a "build"


@dataclass(frozen=True, slots=True)
class Said:
    """How a fit ended on a rank."""

    kv_tokens: int | None = None
    attempts: tuple[Any, ...] = ()
    tokens: tuple[tuple[int, ...], ...] = ()  # that the engine then answers
    error: str = ""
    words: str = ""
    short: tuple[str, ...] = ()  # of memory: what the fit was told by builds and steps
    survived: int = 0  # shapes
    together: int = 0  # steps of the fit that were run with the others
    left_bytes: int = 0  # when all is over, beside the weights
    seconds: float = field(default=0.0, compare=False)


class RememberingEngine(Engine):
    """An engine that remembers how its builds and steps went."""

    short: tuple[str, ...] = ()
    survived = 0  # shapes
    together = 0  # steps that were run with the others

    def build(self, kv_tokens: int) -> None:
        try:
            with self._remembered():
                super().build(kv_tokens)
        except BrimError:
            assert self.kv_tokens == 0, "what failed on another rank is not built here"
            raise

    def stress(self, shape: StressShape) -> None:
        with self._remembered():
            super().stress(shape)
            self.survived += 1

    @contextmanager
    def _remembered(self) -> Iterator[None]:
        try:
            yield
        except OutOfMemory as error:
            self.short = (*self.short, str(error))
            raise

    def count_steps(self) -> None:
        runner = self.model.runner
        check = runner.hooks.check_plan

        def counted(plan: StepPlan) -> None:
            self.together += 1
            check(plan)

        runner.hooks = replace(runner.hooks, check_plan=counted)


def make_engine(kind: str, probe: CpuProbe | None = None, tensor_parallel: bool = True) -> RememberingEngine:
    return RememberingEngine(
        tiny_config(kind, num_hidden_layers=2),
        load_format="dummy",
        kv_tokens=0,
        settings=SETTINGS,
        device="cpu",
        dtype="fp32",
        probe=probe,
        tensor_parallel=tensor_parallel,
    )


def answers(engine: Engine) -> tuple[tuple[int, ...], ...]:
    found = engine.generate(PROMPTS, SamplingParams(max_tokens=7, temperature=0, ignore_eos=True))
    return tuple(tuple(one.tokens) for one in found)


# -- fits ------------------------------------------------------------------------------------------------------------


def fitted(rank: int, scene: Scene) -> Said:
    """A fit of a split engine, and the answers of what came out of it."""
    victim, probe = rank == scene.victim, CpuProbe(GIB)
    engine = make_engine("llama", probe)
    weights = settled_bytes(probe)
    probe.budget_bytes = weights + (SHORT_BYTES if victim else LEFT_BYTES)
    engine.count_steps()
    if victim and scene.boom:
        plant(engine, scene.boom)
    neighbour = Neighbour(probe, scene) if victim else None

    started = time.monotonic()
    try:
        ranks = FitRanks(rank, gathered())
        request = replace(REQUEST, canary_bytes=scene.canary_bytes)
        report = fit(engine, probe, request, engine.kv_bytes, ranks=ranks, clock=Clock(neighbour or silent))
        said = Said(report.kv_tokens, report.attempts, together=engine.together, seconds=time.monotonic() - started)
        said = replace(said, tokens=answers(engine))
    except (BrimError, RuntimeError) as error:
        said = Said(error=type(error).__name__, words=str(error), seconds=time.monotonic() - started)
    probe.hold_canary(0)
    engine.teardown()
    return replace(said, short=engine.short, survived=engine.survived, left_bytes=settled_bytes(probe) - weights)


def settled_bytes(probe: CpuProbe) -> int:
    """What is live when gloo's threads have let go of their tensors, which they do when they come to it."""
    gc.collect()
    found = [probe.reading().allocated_bytes]
    while found[-5:] != found[-1:] * 5:
        time.sleep(0.05)
        found.append(probe.reading().allocated_bytes)
    return found[-1]


class Neighbour:
    """Comes and goes by the phases of a fit: attempts begin where something was just torn down."""

    def __init__(self, probe: CpuProbe, scene: Scene) -> None:
        self._probe = probe
        self._scene = scene
        self._phases: list[str] = []

    def __call__(self, stage: Stage) -> None:
        phase = "attempt" if stage.phase == "rebuild" and stage.detail != "teardown" else stage.phase
        if [phase] == self._phases[-1:] and phase in ("stress", "validate"):
            return  # another shape of the same
        self._phases.append(phase)
        attempts = self._phases.count("attempt")
        if self._phases[-1] == self._scene.when and attempts == 1:
            self._probe.budget_bytes -= self._scene.taken_bytes
        elif self._phases[-1] == "rebuild" and attempts == 2:
            self._probe.budget_bytes += self._scene.taken_bytes


def plant(engine: Engine, where: str) -> None:
    """An error that is not the memory's: between two collectives of a full step, or when half of a build is made."""

    def boom(*_: Any) -> None:
        raise RuntimeError("boom")

    def boom_if_full(_: Any, args: Any) -> None:
        if args[0].shape[1] == SETTINGS.max_batch_tokens:
            boom()

    if where == "step":
        engine._pools.preempted.rates = PreemptionRates(1, 1, 1)  # measured: the build runs no step
        engine.loaded.model.model.layers[1].register_forward_pre_hook(boom_if_full)
    else:
        runner = engine.model.runner
        runner.model = replace(runner.model, make_backend=boom)


# -- what stands in --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Took:
    """The most that was live while a task ran, and what it allocated."""

    peak_bytes: int
    allocations: int


def took(probe: CpuProbe, task: Callable[[], Any]) -> Took:
    gc.collect()
    probe.reset_peak()
    allocations = probe.allocations
    task()
    return Took(probe.reading().peak_allocated_bytes, probe.allocations - allocations)


def steps(rank: int, kind: str) -> list[tuple[Took, Took]]:
    """Memory of steps with real and with replaced collectives, by shape. Ranks run the latter at different times."""
    probe = CpuProbe(GIB)
    engine = make_engine(kind, probe)
    engine.build(256)
    runner = engine.model.runner
    runner.hooks = replace(runner.hooks, check_plan=lambda plan: None)  # it takes a few tensors of its own
    tasks = [partial(engine.stress_this_rank, shape) for shape in engine.stress_shapes()]
    for task in tasks:
        task()  # what is made at the first call only
    together = [least(took(probe, task) for _ in range(4)) for task in tasks]
    for _ in range(rank + 1):
        with engine.model.runner.alone():
            alone = [took(probe, task) for task in tasks]
    engine.teardown()
    return list(zip(together, alone, strict=True))


def least(figures: Iterable[Took]) -> Took:
    """Without what gloo's threads were late to let go of."""
    return min(figures, key=lambda one: (one.peak_bytes, one.allocations))


Collective = Callable[[torch.Tensor], Any]


def in_lists(tensor: torch.Tensor) -> list[torch.Tensor]:
    outputs = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, tensor)
    return outputs


def into(collective: Callable[[torch.Tensor, torch.Tensor], Any], rows: int) -> Collective:
    def run(tensor: torch.Tensor) -> torch.Tensor:
        output = tensor.new_empty(rows, tensor.shape[1])
        collective(output, tensor)
        return output

    return run


def in_place(collective: Callable[[torch.Tensor], Any]) -> Collective:
    def run(tensor: torch.Tensor) -> torch.Tensor:
        collective(tensor).wait()
        return tensor

    return run


def known_collectives(size: int) -> dict[str, Collective]:
    """Of a tensor of so many rows that they can be divided."""
    rows, everybody, operations = 8, dist.group.WORLD, torch.ops._c10d_functional
    assert everybody is not None
    group, parts = everybody.group_name, [rows // size] * size
    mesh = init_device_mesh("cpu", (size,))
    functional: dict[str, Collective] = {
        "functional all_reduce": lambda tensor: operations.all_reduce(tensor, "sum", group),
        "functional broadcast": lambda tensor: operations.broadcast(tensor, 0, group),
        "functional all_gather": lambda tensor: operations.all_gather_into_tensor(tensor, size, group),
        "functional reduce_scatter": lambda tensor: operations.reduce_scatter_tensor(tensor, "sum", size, group),
        "functional all_to_all": lambda tensor: operations.all_to_all_single(tensor, parts, parts, group),
    }
    return {
        "all_reduce": in_place(lambda tensor: dist.all_reduce(tensor, async_op=True)),
        "broadcast": in_place(lambda tensor: dist.broadcast(tensor, 0, async_op=True)),
        "all_gather": in_lists,
        "all_gather_into_tensor": into(dist.all_gather_into_tensor, rows * size),
        "reduce_scatter_tensor": into(dist.reduce_scatter_tensor, rows // size),
        "all_to_all_single": into(dist.all_to_all_single, rows),
        "inside a DTensor": lambda tensor: DTensor.from_local(tensor, mesh, [Partial()]).relu().to_local(),
        **{name: waited(collective) for name, collective in functional.items()},
    }


def waited(collective: Collective) -> Collective:
    return lambda tensor: torch.ops._c10d_functional.wait_tensor(collective(tensor))


def collectives(rank: int) -> dict[str, list[tuple[Took, Any]]]:
    """What each takes and what comes out: with the others, and without them."""
    found: dict[str, list[tuple[Took, Any]]] = {}
    for name, collective in known_collectives(dist.get_world_size()).items():
        found[name] = [ran(collective)]
        for _ in range(rank + 1):
            with collectives_stood_in():
                alone = ran(collective)
        found[name].append(alone)
    return found


def ran(collective: Collective) -> tuple[Took, Any]:
    """What it took, and shape, type and finiteness of what came out."""
    probe, outputs = CpuProbe(GIB), []
    with probe, torch.inference_mode():
        tensor = torch.ones(8, 16)
        figures = took(probe, lambda: outputs.append(collective(tensor)))
    tensors = outputs[0] if isinstance(outputs[0], list) else outputs
    return figures, [(tuple(one.shape), one.dtype, bool(one.isfinite().all())) for one in tensors]


def unknown_collective(rank: int) -> str:
    """Each rank by itself: a send that got through would wait for the other for good."""
    try:
        with collectives_stood_in():
            dist.send(torch.ones(2), (rank + 1) % dist.get_world_size())
    except UnsupportedModel as error:
        return str(error)
    return "let through"
