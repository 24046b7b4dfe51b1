r"""What speculation does to a card that is nearly full, with its gate and without the condition on weight.

    python benchmarks/gate.py --free 24 --draft llama-3.2-1b [--requests 48] [--out FILE] [--commit HASH]
    python benchmarks/gate.py --free 60 --model granite-20b-code --max-length 8192 \
        --clients 240 --requests 300 --every 4 --seconds 120

A ballast makes the card small, the engine is fitted to the rest. Then so many clients ask, one after the other, until
all requests are answered: for long answers to short prompts, and short answers to long ones. Requests are admitted by
the blocks that others will have given back by then (`worst`: nobody is ever preempted); speculation makes some grow
faster than that counts on. Weights are random, so every long answer is biased to repeat one word: there prompt lookup
is always right, and so is what the draft model's drafts are replaced by once it has made them; elsewhere no draft is.
The same requests are made with and without the gate's condition on weight. Counted: drafted and accepted tokens, the
fewest blocks that were left after a step, steps that left none (`worst` fills the pool to its last block), preemptions
(requests for which there was none), and what was answered.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fit import hold_ballast
from stamp import stamp

from brim import Engine, EngineSettings, SamplingParams, fit_engine
from brim.engine.requests.sequence import Sequence

Row = dict[str, Any]
CERTAIN = 100.0  # a bias that no logit comes near


class AsTrained:
    """A proposer whose drafts are right where the answer repeats one word, as those of a trained model would be."""

    def __init__(self, proposer: Any) -> None:
        self._proposer = proposer
        self.has_one, self.forget = proposer.has_one, proposer.forget

    def propose(self, depths: Mapping[Sequence, int]) -> dict[Sequence, tuple[int, ...]]:
        found: dict[Sequence, tuple[int, ...]] = self._proposer.propose(depths)
        return {one: self._right(one, tokens) for one, tokens in found.items()}

    def _right(self, sequence: Sequence, tokens: tuple[int, ...]) -> tuple[int, ...]:
        bias = sequence.request.params.logit_bias
        return (bias[0][0],) * len(tokens) if bias else tokens


@dataclass
class Clients:
    """Each asks, waits for its answer, and asks again."""

    engine: Engine
    count: int
    salt: bytes  # nothing of another run is found in the pool
    left: int  # requests
    every: int  # so many of them there is one that wants a long answer
    draw: random.Random = field(default_factory=lambda: random.Random(0))
    waiting: set[str] = field(default_factory=set)
    answered: int = 0
    failed: int = 0
    tokens: int = 0
    fewest_left: int = 1 << 62  # blocks, after a step
    steps_at_none: int = 0

    def work(self, seconds: float) -> None:
        told = began = time.perf_counter()
        while self.left or self.waiting:
            if time.perf_counter() > began + seconds:
                break
            while self.left and len(self.waiting) < self.count:
                self._ask()
            self._step()
            if time.perf_counter() > told + 5:
                told = time.perf_counter()
                figures = self.engine.figures
                print(
                    f"{self.answered} answered, {figures.running} run, {figures.preemptions} preemptions, "
                    f"{figures.blocks_free + figures.blocks_cached} blocks left",
                    file=sys.stderr,
                    flush=True,
                )
        for name in self.waiting:
            self.engine.cancel(name)
        while not self.engine.idle:
            self.engine.step()

    def _ask(self) -> None:
        self.left -= 1
        longest, vocab = self.engine.longest_request, self.engine.loaded.vocab
        repeats = self.left % self.every == 0
        if repeats:
            length, tokens = self._between(longest, 1 / 32, 1 / 8), self._between(longest, 1 / 2, 3 / 4)
        else:
            tokens = self._between(longest, 1 / 16, 1 / 8)
            length = int((longest - tokens) * self.draw.choice((0.9, 0.5, 0.1)))
        prompt = [self.draw.randrange(3, vocab) for _ in range(length)]
        bias = ((self.draw.randrange(3, vocab), CERTAIN),) if repeats else ()
        params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, logit_bias=bias)
        self.waiting.add(self.engine.submit(prompt, params, salt=self.salt))

    def _between(self, longest: int, least: float, most: float) -> int:
        return self.draw.randrange(int(longest * least), int(longest * most))

    def _step(self) -> None:
        for update in self.engine.step():
            self.tokens += update.token is not None
            if update.completion is not None:
                self.waiting.discard(update.request_id)
                self.answered += update.completion.error is None
                self.failed += update.completion.error is not None
        figures = self.engine.figures
        left = figures.blocks_free + figures.blocks_cached
        self.fewest_left = min(self.fewest_left, left)
        self.steps_at_none += left == 0


def run(engine: Engine, options: argparse.Namespace, name: str) -> Row:
    clients = Clients(engine, options.clients, name.encode(), options.requests, options.every)
    before, began = engine.figures, time.perf_counter()
    clients.work(options.seconds)
    spent, after = time.perf_counter() - began, engine.figures
    assert before.speculation is not None
    assert after.speculation is not None
    row = {
        "seconds": spent,
        "answered": clients.answered,
        "failed": clients.failed,
        "tokens_per_second": clients.tokens / spent,
        "drafted": after.speculation.proposed - before.speculation.proposed,
        "accepted": after.speculation.accepted - before.speculation.accepted,
        "steps": after.steps - before.steps,
        "fewest_blocks_left": clients.fewest_left,
        "steps_with_no_block_left": clients.steps_at_none,
        "preemptions": after.preemptions - before.preemptions,
        "closed_for_weight": after.speculation.closed_for_weight - before.speculation.closed_for_weight,
        "rescues": engine.health.rescues,
        "blocks_held": after.blocks_held,
    }
    print(name, json.dumps(row), file=sys.stderr, flush=True)
    return row


def make_engine(options: argparse.Namespace) -> tuple[Engine, Any]:
    """An engine that is fitted, and its report."""
    settings = EngineSettings(
        max_batch=max(options.clients, 16),
        max_batch_tokens=options.batch_tokens,
        max_length=options.max_length,
        admission="worst",
        compile=options.compile,
        speculate=None if options.draft else "lookup",
        speculate_max_batch=options.clients,
    )
    where: Row = {"device": "cuda"}
    if options.tiny:
        from brim.probes.cpu import CpuProbe

        where = {"device": "cpu", "probe": CpuProbe(int(options.free * (1 << 30)))}
    load_format = "auto" if options.tiny else "dummy"
    engine = Engine(
        options.model, draft=options.draft, load_format=load_format, settings=settings, kv_tokens=0, **where
    )
    canary_bytes = (1 if options.tiny else 256) << 20
    return engine, fit_engine(engine, probe=where.get("probe"), canary_bytes=canary_bytes)


def main() -> None:
    options = _options()
    ballast = None if options.tiny else hold_ballast(int(options.free * (1 << 30)))
    engine, report = make_engine(options)
    speculator = engine.loop.speculator
    assert speculator is not None
    if options.draft:
        speculator._proposer = AsTrained(speculator._proposer)
    with_gate = run(engine, options, "with the gate")
    object.__setattr__(speculator.settings, "max_weight", float("inf"))  # no user can ask for that
    without = run(engine, options, "without the weight")
    result = {
        **stamp(options.commit),
        "model": options.model,
        "draft": options.draft,
        "clients": options.clients,
        "requests": options.requests,
        "every": options.every,
        "ballast_bytes": 0 if ballast is None else ballast.nbytes,
        "kv_tokens": report.kv_tokens,
        "share_of_limit": report.kv_tokens / report.limit_tokens,
        "fit_seconds": report.seconds.total,
        "with_the_gate": with_gate,
        "without_the_weight": without,
    }
    print(json.dumps(result), flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if any(with_gate[name] for name in ("failed", "rescues", "blocks_held", "preemptions")):
        sys.exit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--draft", help="a draft model (default: prompt lookup)")
    parser.add_argument("--free", type=float, required=True, help="GiB that a ballast leaves")
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--max-length", type=int, default=4096)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--every", type=int, default=2, help="of so many requests one wants a long answer")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of each of the two runs, at most")
    parser.add_argument("--tiny", action="store_true", help="on the CPU: to try this script")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    return parser.parse_args()


if __name__ == "__main__":
    main()
