"""What a decision of the guard costs: may this request start, beside so many that run? No model.

    python benchmarks/admission.py [--running 256] [--decisions 2000] [--out FILE]

The real `BlockForecast`, `KvLedger` and policy on one core. The running requests are in the middle of their answers, of
many lengths, in a pool that cannot hold all of them to their ends.

* held: the same waiting request, again and again: it does not fit
* after a change: a request has ended and another one has begun to answer since the last decision
* shared: the waiting request shares a prefix of 128 blocks with others
* windows: a full and a sliding group, in pools that both can run out
* all new: every claim is computed again, as after a step that left some answers out

Answers that begin and end change the sums when they do, and not in a decision; these two are measured beside it:

* an end, a beginning: of one answer
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from brim.engine.kv.geometry import KvShape, LayerGroup
from brim.engine.kv.ledger import KvLedger
from brim.engine.requests.params import SamplingParams
from brim.engine.requests.request import Request
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.candidate import AdmissionCandidate
from brim.engine.schedule.forecast import BlockForecast
from brim.guard.admission import AdmissionSettings, may_start

BAR_MICROSECONDS = 20.0
BLOCK, STEP_TOKENS, PREFIX = 16, 8192, 128 * 16


class Batch:
    """Running requests, and one that waits."""

    def __init__(self, running: int, windows: tuple[int | None, ...] = (None,), shared: bool = False) -> None:
        self.numbers = random.Random(0)
        self.times: dict[str, list[float]] = {}  # microseconds
        groups = tuple(LayerGroup(window, (number,), 1) for number, window in enumerate(windows))
        blocks = running * 96
        self.ledger = KvLedger(groups, KvShape(blocks * BLOCK, BLOCK, (blocks, *[running * 40] * (len(windows) - 1))))
        self.forecast = BlockForecast(self.ledger, AdmissionSettings("worst"), running + 1, STEP_TOKENS)
        self.prefix = tuple(self.numbers.choices(range(1000), k=PREFIX)) if shared else ()
        self.digests = [bytes([number]) * 16 for number in range(PREFIX // BLOCK)] if shared else []
        self.answering = [self.start(slot, answers=True) for slot in range(running)]
        waiting = self.sequence("waiting")
        waiting.digests = list(self.digests)
        found = self.ledger.find(self.digests) if self.digests else None
        self.candidate = AdmissionCandidate(waiting, len(self.prefix), finding=found, found=len(self.digests))

    def sequence(self, name: str) -> Sequence:
        own = tuple(self.numbers.choices(range(1000), k=self.numbers.randrange(64, 1024)))
        most = self.numbers.randrange(64, 1024)
        request = Request(name, self.prefix + own, SamplingParams(max_tokens=most), 0, most)
        return Sequence(request, list(request.prompt))

    def start(self, slot: int, answers: bool) -> Sequence:
        sequence = self.sequence(str(slot))
        sequence.slot = slot
        sequence.blocks = self.ledger.open(slot)
        if self.digests and slot:
            self.ledger.reuse(sequence.blocks, self.digests)
        start = len(sequence.blocks.tables[0]) * BLOCK
        self.forecast.started(sequence)
        assert self.ledger.reserve(sequence.blocks, start, sequence.prompt_length)
        if self.digests and not slot:
            self.ledger.publish(sequence.blocks, self.digests)
        self.ledger.commit()
        self.ledger.give_up_behind(sequence.blocks, sequence.prompt_length)
        if answers:
            self.begin_to_answer(sequence)
        return sequence

    def begin_to_answer(self, sequence: Sequence) -> None:
        sequence.computed, sequence.unseen, sequence.drawn_on_device = sequence.prompt_length, 1, True
        with self.clock("a beginning"):
            self.forecast.begins_to_answer(sequence)

    def end(self, slot: int) -> None:
        sequence = self.answering[slot]
        assert sequence.blocks is not None
        self.ledger.close(sequence.blocks)
        with self.clock("an end"):
            self.forecast.left(slot)

    @contextmanager
    def clock(self, what: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.times.setdefault(what, []).append((time.perf_counter() - started) * 1e6)

    def decide(self) -> None:
        may_start(self.forecast.view(self.candidate, free_slots=1))


def nothing(batch: Batch) -> None:
    """Between two decisions nothing happens."""


def one_changes(batch: Batch) -> None:
    """One ends; another one takes its place and begins to answer."""
    slot = batch.numbers.randrange(len(batch.answering))
    batch.end(slot)
    batch.answering[slot] = batch.start(slot, answers=True)


def all_change(batch: Batch) -> None:
    batch.forecast.stepped(1, 2)


def measure(batch: Batch, between: Callable[[Batch], None], decisions: int) -> dict[str, float]:
    """Microseconds of a decision."""
    batch.decide()
    batch.times.clear()
    gc.collect()
    for _ in range(decisions):
        between(batch)
        with batch.clock("a decision"):
            batch.decide()
    return spread(batch.times["a decision"])


def spread(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {"median": statistics.median(ordered), "p99": ordered[int(len(ordered) * 0.99)], "largest": ordered[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=256, help="requests that run (default 256)")
    parser.add_argument("--decisions", type=int, default=2000, help="decisions to measure (default 2000)")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    parser.add_argument("--commit", default="unknown")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    running = arguments.running
    cases: dict[str, tuple[Batch, Callable[[Batch], None]]] = {
        "held": (Batch(running), nothing),
        "after a change": (Batch(running), one_changes),
        "shared": (Batch(running, shared=True), nothing),
        "windows": (Batch(running, windows=(None, 512)), nothing),
        "all new": (Batch(running), all_change),
    }
    result: dict[str, Any] = {
        "running": running,
        "decisions": arguments.decisions,
        "python": sys.version.split()[0],
        "commit": arguments.commit,
        "bar_microseconds": BAR_MICROSECONDS,
        "microseconds": {},
        "within_bar": {},
    }
    print(f"{f'{running} running, microseconds a decision':42}{'median':>9}{'p99':>9}{'largest':>9}")
    rows = {name: measure(batch, between, arguments.decisions) for name, (batch, between) in cases.items()}
    changing, _ = cases["after a change"]
    rows |= {name: spread(changing.times[name]) for name in ("an end", "a beginning")}
    for name, found in rows.items():
        result["microseconds"][name] = found
        kept = result["within_bar"][name] = found["median"] <= BAR_MICROSECONDS
        verdict = "" if kept else f"   above the bar of {BAR_MICROSECONDS:g}"
        print(f"{name:42}{found['median']:9.1f}{found['p99']:9.1f}{found['largest']:9.1f}{verdict}")
    line = json.dumps(result)
    print(line)
    if arguments.out:
        arguments.out.write_text(line + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
