"""What speculation does to a card that is nearly full, with its gate and without the condition on weight.

    python benchmarks/gate.py --free 24 --draft llama-3.2-1b [--seconds 25] [--out FILE] [--commit HASH]
    python benchmarks/gate.py --free 60 --model granite-20b-code --clients 128 ...

A ballast makes the card small, the engine is fitted to the rest. Then so many clients ask for long and short texts, one
after the other: few requests that weigh much. Weights are random, so no draft is right: drafts are made as deep as is
allowed all the same, by the draft model, or at random where prompt lookup would find nothing. Counted with and without
the gate's condition on weight: drafted tokens, those that were not verified (no block was free, or no row of the step),
the fewest blocks that were left after a step, preemptions, and what was answered.
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
from brim.engine.drafts import speculator as speculating
from brim.engine.requests.sequence import Sequence

Row = dict[str, Any]


class AtRandom:
    """Always has a draft, and never a right one."""

    def __init__(self, vocab: int) -> None:
        self._vocab, self._draw = vocab, random.Random(0)

    def has_one(self, sequence: Sequence) -> bool:
        return True

    def propose(self, depths: Mapping[Sequence, int]) -> dict[Sequence, tuple[int, ...]]:
        return {one: tuple(self._draw.randrange(3, self._vocab) for _ in range(n)) for one, n in depths.items()}

    def forget(self, sequence: Sequence) -> None:
        pass


class Counted:
    """A proposer whose drafts are counted before the scheduler looks for blocks."""

    def __init__(self, proposer: Any) -> None:
        self._proposer = proposer
        self.has_one, self.forget = proposer.has_one, proposer.forget
        self.made = 0

    def propose(self, depths: Mapping[Sequence, int]) -> dict[Sequence, tuple[int, ...]]:
        found: dict[Sequence, tuple[int, ...]] = self._proposer.propose(depths)
        self.made += sum(map(len, found.values()))
        return found


@dataclass
class Clients:
    """Each asks, waits for its answer, and asks again."""

    engine: Engine
    count: int
    draw: random.Random
    waiting: set[str] = field(default_factory=set)
    answered: int = 0
    failed: int = 0
    tokens: int = 0
    fewest_left: int = 1 << 62  # blocks, after a step

    def work(self, seconds: float) -> None:
        over = time.perf_counter() + seconds
        while time.perf_counter() < over:
            while len(self.waiting) < self.count:
                self._ask()
            self._step()
        for name in self.waiting:  # nothing is shown by waiting for the last of them
            self.engine.cancel(name)
        while not self.engine.idle:
            self.engine.step()

    def _ask(self) -> None:
        longest = self.engine.longest_request
        tokens = self.draw.randrange(longest // 32, longest // 8)
        share = self.draw.choice((0.9, 0.5, 0.1))
        prompt = [self.draw.randrange(3, self.engine.loaded.vocab) for _ in range(int((longest - tokens) * share))]
        self.waiting.add(self.engine.submit(prompt, SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)))

    def _step(self) -> None:
        for update in self.engine.step():
            self.tokens += update.token is not None
            if update.completion is not None:
                self.waiting.discard(update.request_id)
                self.answered += update.completion.error is None
                self.failed += update.completion.error is not None
        figures = self.engine.figures
        self.fewest_left = min(self.fewest_left, figures.blocks_free + figures.blocks_cached)


def run(engine: Engine, proposer: Counted, options: argparse.Namespace, seed: int) -> Row:
    clients = Clients(engine, options.clients, random.Random(seed))
    before, made, began = engine.figures, proposer.made, time.perf_counter()
    clients.work(options.seconds)
    spent, after = time.perf_counter() - began, engine.figures
    assert before.speculation is not None
    assert after.speculation is not None
    verified = after.speculation.proposed - before.speculation.proposed
    return {
        "seconds": spent,
        "answered": clients.answered,
        "failed": clients.failed,
        "tokens_per_second": clients.tokens / spent,
        "drafted": proposer.made - made,
        "not_verified": proposer.made - made - verified,
        "steps": after.steps - before.steps,
        "fewest_blocks_left": clients.fewest_left,
        "preemptions": after.preemptions - before.preemptions,
        "closed_for_weight": after.speculation.closed_for_weight - before.speculation.closed_for_weight,
        "rescues": engine.health.rescues,
        "blocks_held": after.blocks_held,
    }


def make_engine(options: argparse.Namespace) -> tuple[Engine, Any]:
    """An engine that is fitted, and its report."""
    settings = EngineSettings(
        max_batch=max(options.clients, 16),
        max_batch_tokens=options.batch_tokens,
        max_length=options.max_length,
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
    speculating.depth_for = lambda rate, most: most  # type: ignore[assignment]  # right or wrong
    engine, report = make_engine(options)
    speculator = engine.loop.speculator
    assert speculator is not None
    proposer = Counted(speculator._proposer if options.draft else AtRandom(engine.loaded.vocab))
    speculator._proposer = proposer
    with_gate = run(engine, proposer, options, seed=0)
    object.__setattr__(speculator.settings, "max_weight", float("inf"))  # no user can ask for that
    without = run(engine, proposer, options, seed=1)  # other prompts: none of them is cached
    result = {
        **stamp(options.commit),
        "model": options.model,
        "draft": options.draft,
        "clients": options.clients,
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
    if with_gate["failed"] or with_gate["rescues"] or with_gate["blocks_held"]:
        sys.exit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--draft", help="a draft model (default: drafts at random)")
    parser.add_argument("--free", type=float, required=True, help="GiB that a ballast leaves")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--max-length", type=int, default=8192)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seconds", type=float, default=25)
    parser.add_argument("--tiny", action="store_true", help="on the CPU: to try this script")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    return parser.parse_args()


if __name__ == "__main__":
    main()
