"""Scheduling overhead of a step with many running requests: planning, preparing and reading it back. No model.

    python benchmarks/scheduler.py [--running 256] [--steps 512] [--out FILE]

The real `ServingLoop`, `Scheduler` and `KvLedger` run on one core. The device is replaced by a runner that does the
host's part of a decode step (takes the ledger's updates, makes the arrays that are sent, reads the sampling
parameters) and returns a token for each request at once.

* plan: `Scheduler.plan`: choosing requests and reserving blocks
* prepare: the host's part of launching the step, and `Scheduler.commit`: publishing, freeing blocks behind windows
* read: `record`, stop conditions and `publish` for every token, and the events made of them

Sampled rows are prepared as `Runner` does it, up to the tensors. The engine's text streams are not part of it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from brim.engine.kv.geometry import LayerGroup, pool_shape
from brim.engine.kv.ledger import KvLedger
from brim.engine.loop import ServingLoop
from brim.engine.requests.params import SamplingParams
from brim.engine.requests.request import Request
from brim.engine.requests.sequence import Sequence
from brim.engine.run.packing import sample_rows
from brim.engine.schedule.plan import StepLimits, StepPlan
from brim.engine.schedule.scheduler import Scheduler

BAR_MILLISECONDS = 1.0
PROMPT, BLOCK, VOCAB = 512, 16, 32_000
PARTS = ("plan", "prepare", "read", "step")


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of model and of requests."""

    name: str
    windows: tuple[int | None, ...]
    params: SamplingParams
    waiting: int = 0  # requests that ask to be admitted in every step, and cannot be


MANY = 1_000_000
GREEDY = SamplingParams(max_tokens=MANY, temperature=0.0)
SAMPLED = SamplingParams(max_tokens=MANY, top_p=0.9, seed=1)
CASES = (
    Case("full attention, greedy", (None,), GREEDY),
    Case("full attention, sampled", (None,), SAMPLED),
    Case("full and sliding, greedy", (None, 256), GREEDY),
    Case("full attention, 64 waiting", (None,), GREEDY, waiting=64),
)


class Answered:
    """A step whose tokens are there already."""

    sampled = None
    read_first = False

    def __init__(self, plan: StepPlan, tokens: list[int]) -> None:
        self.plan = plan
        self.prompt: dict[int, Any] = {}
        self._tokens = tokens

    def tokens(self) -> list[int]:
        return self._tokens


class HostOnly:
    """The host's part of `Runner.launch`."""

    def __init__(self) -> None:
        numbers = random.Random(0)
        self._drawn = numbers.choices(range(VOCAB), k=100_003)
        self._place = 0

    def launch(self, plan: StepPlan, ledger: KvLedger) -> Any:
        for updates in ledger.updates:
            if updates.rows:
                for column in (updates.rows, updates.columns, updates.blocks):
                    np.array(column, dtype=np.int64)
        np.array(plan.slots, dtype=np.int64)
        np.array(plan.lengths, dtype=np.int64)
        drawing = plan.drawing
        if not all(sequence.request.params.plain_greedy for sequence in drawing):
            sample_rows(drawing)
        self._place = (self._place + len(drawing)) % (len(self._drawn) - len(drawing))
        return Answered(plan, self._drawn[self._place : self._place + len(drawing)])

    def accept(self, launched: Any) -> None:
        pass


def loop_of(case: Case, running: int, steps: int) -> ServingLoop:
    """A loop whose requests all generate."""
    groups = tuple(LayerGroup(window, (number,), 1) for number, window in enumerate(case.windows))
    limits = StepLimits(running, max_batch_tokens=8192)
    kv_tokens = running * (PROMPT + steps + 4 * BLOCK)
    ledger = KvLedger(groups, pool_shape(groups, kv_tokens, BLOCK, running, limits.max_batch_tokens))
    loop = ServingLoop(Scheduler(ledger, limits), HostOnly())  # type: ignore[arg-type]
    numbers = random.Random(0)
    for number in range(running + case.waiting):
        prompt = tuple(numbers.choices(range(VOCAB), k=PROMPT))
        request = Request(str(number), prompt, case.params, number, kv_tokens - PROMPT, frozenset({VOCAB + 1}))
        loop.submit(Sequence(request, list(prompt)))
    while not all(sequence.decoding for sequence in loop.scheduler.running) or len(loop.scheduler.running) < running:
        loop.step()
    return loop


def measure(case: Case, running: int, steps: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each part of a step: median, 99th percentile, largest."""
    loop = loop_of(case, running, steps)
    figures = loop.figures
    found: dict[str, list[float]] = {part: [] for part in PARTS}
    gc.collect()
    for _ in range(steps):
        before = figures.planning_seconds, figures.launching_seconds, figures.reading_seconds
        started = time.perf_counter()
        events = loop.step()
        took = time.perf_counter() - started
        assert len(events) == running, "every request got its token"
        after = figures.planning_seconds, figures.launching_seconds, figures.reading_seconds
        for part, first, last in zip(PARTS, before, after, strict=False):
            found[part].append((last - first) * 1000)
        found["step"].append(took * 1000)
    assert loop.scheduler.preemptions == 0
    return {part: summary(times) for part, times in found.items()}


def summary(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "median": statistics.median(ordered),
        "p99": ordered[int(len(ordered) * 0.99)],
        "largest": ordered[-1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=256, help="requests that generate (default 256)")
    parser.add_argument("--steps", type=int, default=512, help="steps to measure (default 512)")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    result: dict[str, Any] = {
        "running": arguments.running,
        "steps": arguments.steps,
        "prompt_tokens": PROMPT,
        "block_size": BLOCK,
        "python": sys.version.split()[0],
        "bar_milliseconds": BAR_MILLISECONDS,
        "milliseconds": {},
    }
    print(f"{f'{arguments.running} running, milliseconds a step':34}{'median':>36}{'':>3}{'p99':>6}{'largest':>9}")
    print(f"{'':34}" + "".join(f"{part:>9}" for part in PARTS) + f"{'step':>9}{'step':>9}")
    for case in CASES:
        found = measure(case, arguments.running, arguments.steps)
        result["milliseconds"][case.name] = found
        medians = "".join(f"{found[part]['median']:9.3f}" for part in PARTS)
        print(f"{case.name:34}{medians}{found['step']['p99']:9.3f}{found['step']['largest']:9.3f}")
    worst = max(found["step"]["median"] for found in result["milliseconds"].values())
    result["worst_median_milliseconds"] = worst
    result["within_bar"] = worst <= BAR_MILLISECONDS
    print(f"\nthe bar is {BAR_MILLISECONDS:g} ms a step: {'kept' if result['within_bar'] else 'MISSED'}")
    line = json.dumps(result)
    print(line)
    if arguments.out:
        arguments.out.write_text(line + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
