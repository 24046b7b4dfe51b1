"""What admission by the future of the batch gains over the simple rule: preemptions, tokens computed twice, goodput.

    python benchmarks/admission_gain.py [--requests 800] [--kv-tokens 65536] [--seeds 3] [--out FILE]

The real `ServingLoop`, `Scheduler` and `KvLedger` serve the same requests under three rules. The device is replaced by
a clock: a step takes a constant, a time for each request that generates and one for each token of a prompt, about those
of an 8B model on an H200. Prompts and answers have long tails, and `max_tokens` says nothing about how long an answer
will be, as in real traffic. Requests come faster than they can be answered.

* prompt: a request starts when the blocks of its prompt are free now, with 1 % of the pool left (the usual rule)
* expected: as `--admission expected`, the default
* worst: as `--admission worst`

Preempted requests are recomputed. Goodput counts the output tokens of answers; what is computed twice is in the time.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scheduler import Answered
from stamp import stamp

from brim.engine.kv.geometry import LayerGroup, pool_shape
from brim.engine.kv.ledger import KvLedger
from brim.engine.loop import ServingLoop
from brim.engine.requests.params import SamplingParams
from brim.engine.requests.request import Request
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.plan import StepPlan
from brim.engine.schedule.scheduler import Scheduler, StepLimits
from brim.guard.admission import FITS, AdmissionSettings, AdmissionView, Cause, Decision, may_start

BLOCK, END, MAX_TOKENS = 16, 1, 4096
STEP_SECONDS, DECODE_SECONDS, PROMPT_TOKEN_SECONDS = 5.5e-3, 28e-6, 29e-6
RULES = ("prompt", "expected", "worst")


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float
    prompt: int
    answer: int


@dataclass(frozen=True, slots=True)
class Served:
    """What became of all requests under a rule."""

    seconds: float
    preemptions: int
    computed_twice: int  # tokens of prompts and answers
    goodput: float  # output tokens a second
    first_token_p50: float
    first_token_p99: float
    longest_pause_p99: float  # between two tokens of an answer


class SimulatedDevice:
    """Draws the token that ends an answer when it is as long as it was going to be; its clock moves with every step."""

    def __init__(self, answers: dict[str, int]) -> None:
        self.now = 0.0
        self._left = dict(answers)

    def launch(self, plan: StepPlan, ledger: KvLedger) -> Any:
        prompts = plan.tokens - len(plan.decodes)
        self.now += STEP_SECONDS + len(plan.decodes) * DECODE_SECONDS + prompts * PROMPT_TOKEN_SECONDS
        return Answered(plan, [self._draw(sequence.request.id) for sequence in plan.drawing])

    def _draw(self, request: str) -> int:
        self._left[request] -= 1
        return END if self._left[request] <= 0 else 2 + self._left[request] % 1000

    def accept(self, launched: Any) -> None:
        pass


def traffic(requests: int, seed: int) -> list[Arrival]:
    """Lengths with long tails; all come within the time that a tenth of them take."""
    numbers = random.Random(seed)
    found, at = [], 0.0
    for _ in range(requests):
        at += numbers.expovariate(40.0)
        prompt = min(4000, max(16, int(numbers.lognormvariate(6.2, 0.8))))
        answer = min(MAX_TOKENS, max(4, int(numbers.lognormvariate(5.5, 0.9))))
        found.append(Arrival(at, prompt, answer))
    return found


def scheduler_of(rule: str, ledger: KvLedger, limits: StepLimits) -> Scheduler:
    if rule != "prompt":
        return Scheduler(ledger, limits, AdmissionSettings(rule))
    pool = ledger.pools[0]

    def prompt_only(view: AdmissionView) -> Decision:
        if view.free_slots == 0 or not view.running:
            return may_start(view)
        (needed,), (blocks,) = view.needed, view.blocks
        fits = needed <= pool.available - blocks // 100
        return FITS if fits else Decision(False, Cause.BLOCKS, 0, needed, needed, blocks)

    # An answer counts with one token: what is needed is then the prompt.
    return Scheduler(ledger, limits, AdmissionSettings(prior=1, quantile=1e-9, watermark=0.0), prompt_only)


def serve(rule: str, arrivals: list[Arrival], kv_tokens: int, running: int) -> Served:
    groups = (LayerGroup(None, (0,), 1),)
    limits = StepLimits(running, max_batch_tokens=2048)
    ledger = KvLedger(groups, pool_shape(groups, kv_tokens, BLOCK, running, limits.max_batch_tokens))
    device = SimulatedDevice({str(number): one.answer for number, one in enumerate(arrivals)})
    loop = ServingLoop(scheduler_of(rule, ledger, limits), device, overlap=False)  # type: ignore[arg-type]
    params, stops = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0), frozenset({END})
    coming = sorted(enumerate(arrivals), key=lambda one: one[1].at, reverse=True)
    numbers, first, drawn = random.Random(7), {}, Counter[str]()
    latest: dict[str, float] = {}
    pauses: Counter[str] = Counter()
    while coming or not loop.idle:
        while coming and coming[-1][1].at <= device.now:
            number, one = coming.pop()
            prompt = tuple(numbers.choices(range(2, 32_000), k=one.prompt))
            loop.submit(Sequence(Request(str(number), prompt, params, number, MAX_TOKENS, stops), list(prompt)))
        if loop.idle:
            device.now = coming[-1][1].at
            continue
        for event in loop.step():
            request = event.sequence.request.id
            first.setdefault(request, device.now)
            pauses[request] = max(pauses[request], device.now - latest.get(request, device.now))
            latest[request] = device.now
            drawn[request] += event.token is not None
    assert all(drawn[str(number)] == one.answer for number, one in enumerate(arrivals)), "every answer is whole"
    once = sum(one.prompt + one.answer - 1 for one in arrivals)
    waits = [first[str(number)] - one.at for number, one in enumerate(arrivals)]
    return Served(
        device.now,
        loop.scheduler.preemptions,
        loop.figures.tokens - once,
        sum(one.answer for one in arrivals) / device.now,
        statistics.median(waits),
        statistics.quantiles(waits, n=100)[98],
        statistics.quantiles(pauses.values(), n=100)[98],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=800)
    parser.add_argument("--kv-tokens", type=int, default=65_536)
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: dict[str, list[Served]] = {rule: [] for rule in RULES}
    for seed in range(options.seeds):
        arrivals = traffic(options.requests, seed)
        for rule in RULES:
            rows[rule].append(serve(rule, arrivals, options.kv_tokens, options.running))
    print("rule      preempted  computed twice  output tokens/s  first token p50, p99 (s)  longest pause p99 (s)")
    for rule, found in rows.items():
        median = {name: statistics.median(getattr(one, name) for one in found) for name in Served.__slots__}
        lost = f"{median['preemptions']:>9,.0f}  {median['computed_twice']:>14,.0f}"
        print(
            f"{rule:<9} {lost}  {median['goodput']:>15,.0f}  "
            f"{median['first_token_p50']:>16.1f}, {median['first_token_p99']:.1f}  {median['longest_pause_p99']:>14.2f}"
        )
    if options.out:
        figures = {"requests": options.requests, "kv_tokens": options.kv_tokens, "running": options.running}
        served = {rule: [asdict(one) for one in found] for rule, found in rows.items()}
        options.out.write_text(json.dumps({**stamp(), **figures, "rules": served}, indent=1) + "\n")


if __name__ == "__main__":
    main()
