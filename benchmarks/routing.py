"""Routers beside each other, simulated: prefixes found, waiting, imbalance and refusals, with the code that serves.

    python benchmarks/routing.py [--replicas 64] [--conversations 10000] [--output FILE] [--svg FILE]

Replicas are simulated at the level of requests: a pool of blocks with LRU caching by content, a bounded batch, prompts
computed at a rate and tokens drawn at another. They report as servers do (`ReplicaStatistics`, once a second), and
Brim's router is `brim.guard.routing.router.MemoryRouter` itself. Conversations are made: some share one of a few system
prompts, turns come after pauses, lengths are log-normal. What a real network or a real step costs is not simulated.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import statistics
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from stamp import stamp

from brim.guard.routing.policy import FORECASTS, Fleet
from brim.guard.routing.router import MemoryRouter
from brim.guard.routing.summary import summarise
from brim.records.health import Status
from brim.records.routing import (
    Forecast,
    PrefixSummary,
    ReplicaStatistics,
    RouteRefusal,
    RouteRequest,
    short_digest,
)

BLOCK = 64  # tokens: coarser than a server's, so that a simulation of 100,000 requests takes minutes
BLOCKS = 1000  # of a replica
SLOTS, QUEUE = 32, 64
PREFILL_RATE = 8000.0  # tokens in a second
STEP_SECONDS = 0.02
REPORT_SECONDS = 1.0
PATIENCE = 30.0
SYSTEM_PROMPTS, SYSTEM_TOKENS = 8, 640


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation."""

    at: float  # seconds after the answer before, or after the start
    tokens: int  # of its prompt, with all that came before
    answer: int


@dataclass(frozen=True, slots=True)
class Conversation:
    number: int
    start: float
    system: int | None  # which of the shared system prompts
    turns: tuple[Turn, ...]


def conversations(amount: int, seconds: float, seed: int) -> list[Conversation]:
    draw = random.Random(seed)
    found = []
    for number in range(amount):
        tokens = SYSTEM_TOKENS if (system := draw.randrange(SYSTEM_PROMPTS * 2)) < SYSTEM_PROMPTS else 0
        turns = []
        for _ in range(min(30, 1 + int(draw.expovariate(1 / 7)))):
            tokens += min(4000, int(draw.lognormvariate(5.2, 0.9)) + 8)
            answer = min(1000, int(draw.lognormvariate(4.8, 0.7)) + 4)
            turns.append(Turn(draw.expovariate(1 / 15), tokens, answer))
            tokens += answer
        own = system if system < SYSTEM_PROMPTS else None
        found.append(Conversation(number, draw.uniform(0, seconds), own, tuple(turns)))
    return sorted(found, key=lambda one: one.start)


def digests_of(conversation: Conversation, tokens: int) -> list[bytes]:
    """Of its first so many tokens: a shared system prompt has the same ones in all conversations."""
    shared = SYSTEM_TOKENS // BLOCK if conversation.system is not None else 0
    names = [
        f"system {conversation.system} {block}" if block < shared else f"{conversation.number} {block}"
        for block in range(tokens // BLOCK)
    ]
    return [blake2b(name.encode(), digest_size=16).digest() for name in names]


@dataclass(slots=True, eq=False)
class Asked:
    conversation: Conversation
    turn: int
    came: float
    digests: list[bytes]
    short: tuple[int, ...]
    need: int  # blocks
    found: int = 0  # tokens of its prompt that were cached where it started
    begun: float = 0.0
    ends: float = 0.0


@dataclass(slots=True, eq=False)
class Replica:
    """A pool, a batch and a queue."""

    name: str
    cached: OrderedDict[bytes, None] = field(default_factory=OrderedDict)  # blocks that nobody holds; oldest first
    held: dict[bytes, int] = field(default_factory=dict)  # blocks by content, with their holders
    private: int = 0  # blocks without a content yet
    running: list[Asked] = field(default_factory=list)
    waiting: deque[Asked] = field(default_factory=deque)
    reports: int = 0
    busy_seconds: float = 0.0
    tokens: int = 0  # computed and drawn

    @property
    def free(self) -> int:
        return BLOCKS - len(self.held) - self.private

    def start(self, asked: Asked, now: float) -> bool:
        """Whether there is room; then it holds its blocks until it ends."""
        prefix = 0
        for digest in asked.digests:
            if digest not in self.held and digest not in self.cached:
                break
            prefix += 1
        fresh = asked.need - sum(one in self.held for one in asked.digests[:prefix])
        if len(self.running) >= SLOTS or (fresh > self.free and self.running):
            return False
        for digest in asked.digests:
            self.cached.pop(digest, None)
            self.held[digest] = self.held.get(digest, 0) + 1
        self.private += asked.need - len(asked.digests)
        while self.free < len(self.cached) and self.cached:
            self.cached.popitem(last=False)
        turn = asked.conversation.turns[asked.turn]
        asked.found = prefix * BLOCK
        left = turn.tokens - asked.found
        slower = 1 + len(self.running) / SLOTS  # prompts share their steps with those who draw
        asked.begun = now + left / PREFILL_RATE * slower
        asked.ends = asked.begun + turn.answer * STEP_SECONDS * slower
        self.busy_seconds += asked.ends - now
        self.tokens += left + turn.answer
        self.running.append(asked)
        return True

    def end(self, asked: Asked) -> None:
        self.running.remove(asked)
        self.private -= asked.need - len(asked.digests)
        for digest in reversed(asked.digests):
            self.held[digest] -= 1
            if not self.held[digest]:
                del self.held[digest]
                self.cached[digest] = None
        # What was drawn is found again too: the next turn's prompt has it.
        turn = asked.conversation.turns[asked.turn]
        for digest in digests_of(asked.conversation, turn.tokens + turn.answer)[len(asked.digests) :]:
            if digest not in self.held:
                self.cached[digest] = None
        while self.free < len(self.cached):
            self.cached.popitem(last=False)

    def report(self, now: float) -> ReplicaStatistics:
        self.reports += 1
        blocks, slots = self.free, SLOTS - len(self.running)
        forecast = [Forecast(0.0, blocks, slots)]
        ends = sorted(self.running, key=lambda one: one.ends)
        places = {(place + 1) * len(ends) // (FORECASTS - 1) - 1 for place in range(FORECASTS - 1)}
        for number, one in enumerate(ends):
            blocks, slots = blocks + one.need, slots + 1
            if number in places:
                forecast.append(Forecast(one.ends - now, min(BLOCKS, blocks), slots))
        return ReplicaStatistics(
            number=self.reports,
            status=Status.READY,
            block_size=BLOCK,
            blocks=BLOCKS,
            free_blocks=self.free,
            unused_blocks=self.free - len(self.cached),
            slots=SLOTS,
            running=len(self.running),
            waiting=len(self.waiting),
            waiting_blocks=sum(one.need for one in self.waiting),
            inside=len(self.running) + len(self.waiting),
            places=SLOTS + QUEUE,
            prefill_tokens_per_second=PREFILL_RATE,
            step_seconds=STEP_SECONDS,
            forecast=tuple(forecast),
            summary=summarise([*self.held, *self.cached]),
        )


# -- routers -------------------------------------------------------------------------------------------------------


class Router:
    """Chooses among all replicas; what it may look at is up to it."""

    def __init__(self, replicas: Sequence[Replica], seed: int) -> None:
        self.replicas = replicas
        self.draw = random.Random(seed)
        self.numbers = count()

    def choose(self, asked: Asked, now: float) -> Replica | None:
        """None: refused."""
        raise NotImplementedError

    def inside(self, replica: Replica) -> int:
        return len(replica.running) + len(replica.waiting)

    def ended(self, asked: Asked, replica: Replica) -> None:
        """An answer has ended."""

    def reported(self, now: float) -> None:
        """Replicas report."""


class RandomRouter(Router):
    def choose(self, asked: Asked, now: float) -> Replica | None:
        return self.draw.choice(self.replicas)


class RoundRobin(Router):
    def choose(self, asked: Asked, now: float) -> Replica | None:
        return self.replicas[next(self.numbers) % len(self.replicas)]


class LeastLoaded(Router):
    """By the number of requests, which it knows at every moment."""

    def choose(self, asked: Asked, now: float) -> Replica | None:
        return min(self.replicas, key=self.inside)


class PowerOfTwo(Router):
    def choose(self, asked: Asked, now: float) -> Replica | None:
        return min(self.draw.sample(self.replicas, 2), key=self.inside)


class ConsistentHashing(Router):
    """Rendezvous of the conversation's name with the replicas': it never moves."""

    def choose(self, asked: Asked, now: float) -> Replica | None:
        def weight(replica: Replica) -> bytes:
            return blake2b(f"{asked.conversation.number} {replica.name}".encode(), digest_size=8).digest()

        return max(self.replicas, key=weight)


class ByMemory(Router):
    """Brim's."""

    def __init__(self, replicas: Sequence[Replica], seed: int) -> None:
        super().__init__(replicas, seed)
        self.by_name = {one.name: one for one in replicas}
        self.router = MemoryRouter(REPORT_SECONDS)
        self.keys: dict[Asked, str] = {}
        self.seconds: list[float] = []
        self.reported(0.0)

    def reported(self, now: float) -> None:
        for replica in self.replicas:
            self.router.reported(replica.name, replica.report(now), now)

    def choose(self, asked: Asked, now: float) -> Replica | None:
        turn = asked.conversation.turns[asked.turn]
        wanted = RouteRequest(asked.short, turn.tokens, asked.need, patience_seconds=PATIENCE)
        began = time.perf_counter()
        found = self.router.route(wanted)
        self.seconds.append(time.perf_counter() - began)
        if isinstance(found, RouteRefusal):
            return None
        self.keys[asked] = f"{next(self.numbers)}"
        self.router.sent(wanted, found.replicas[0], now, self.keys[asked])
        return self.by_name[found.replicas[0]]

    def ended(self, asked: Asked, replica: Replica) -> None:
        self.router.ended(replica.name, self.keys.pop(asked))


ROUTERS: dict[str, Callable[[Sequence[Replica], int], Router]] = {
    "by memory (Brim)": ByMemory,
    "consistent hashing": ConsistentHashing,
    "least loaded": LeastLoaded,
    "power of two choices": PowerOfTwo,
    "round robin": RoundRobin,
    "random": RandomRouter,
}


# -- a run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    router: str
    requests: int
    prefix_hit_rate: float  # tokens found, of those that an endless cache would have found
    first_token_p50_seconds: float
    first_token_p99_seconds: float
    waited_part: float  # requests that did not start at once
    refused: int
    imbalance: float  # the busiest replica's work over the mean


def simulate(name: str, trace: Sequence[Conversation], replicas: int, seed: int) -> tuple[Outcome, Router]:
    pools = [Replica(f"replica-{number:04}") for number in range(replicas)]
    router = ROUTERS[name](pools, seed)
    order = count()
    events: list[tuple[float, int, str, Any]] = []

    def at(moment: float, kind: str, what: Any) -> None:
        heapq.heappush(events, (moment, next(order), kind, what))

    for conversation in trace:
        at(conversation.start + conversation.turns[0].at, "ask", (conversation, 0))
    at(REPORT_SECONDS, "report", None)
    found = could = refused = waited = asked_count = 0
    first_tokens: list[float] = []

    def begin(replica: Replica, now: float) -> None:
        while replica.waiting and replica.start(replica.waiting[0], now):
            one = replica.waiting.popleft()
            first_tokens.append(one.begun - one.came)
            at(one.ends, "end", (one, replica))

    left = sum(len(one.turns) for one in trace)
    while left:
        now, _, kind, what = heapq.heappop(events)
        if kind == "report":
            router.reported(now)
            at(now + REPORT_SECONDS, "report", None)
        elif kind == "ask":
            conversation, number = what
            turn = conversation.turns[number]
            digests = digests_of(conversation, turn.tokens)
            need = -(-(turn.tokens + turn.answer) // BLOCK)
            one = Asked(conversation, number, now, digests, tuple(map(short_digest, digests)), min(need, BLOCKS))
            asked_count += 1
            replica = router.choose(one, now)
            if replica is not None and len(replica.running) + len(replica.waiting) >= SLOTS + QUEUE:
                if isinstance(router, ByMemory):
                    router.ended(one, replica)
                replica = None
            if replica is None:
                refused += 1
                left -= len(conversation.turns) - number  # the user gives up
                continue
            before = conversation.turns[number - 1] if number else None
            could += 0 if before is None else before.tokens + before.answer
            replica.waiting.append(one)
            begin(replica, now)
            waited += one in replica.waiting
        else:
            one, replica = what
            found += one.found if one.turn else 0
            replica.end(one)
            router.ended(one, replica)
            begin(replica, now)
            left -= 1
            if one.turn + 1 < len(one.conversation.turns):
                at(now + one.conversation.turns[one.turn + 1].at, "ask", (one.conversation, one.turn + 1))
    work = [one.tokens for one in pools]
    ordered = sorted(first_tokens)
    return Outcome(
        router=name,
        requests=asked_count,
        prefix_hit_rate=round(found / max(1, could), 4),
        first_token_p50_seconds=round(ordered[len(ordered) // 2], 4),
        first_token_p99_seconds=round(ordered[int(len(ordered) * 0.99)], 4),
        waited_part=round(waited / asked_count, 4),
        refused=refused,
        imbalance=round(max(work) / statistics.mean(work), 3),
    ), router


def decision_cost(replicas: int, decisions: int = 300) -> dict[str, float]:
    """Microseconds of a decision with full summaries and prompts of 16,000 tokens."""
    draw = random.Random(1)
    fleet = Fleet()
    for number in range(replicas):
        summary = PrefixSummary(draw.randbytes(8 * 2048))
        seen = replace(Replica(f"{number}").report(0.0), summary=summary, free_blocks=draw.randrange(BLOCKS))
        fleet.put(f"{number}", seen)
    prompts = [RouteRequest(tuple(draw.getrandbits(64) for _ in range(1000)), 16_000, 300) for _ in range(20)]
    taken = []
    for number in range(decisions):
        began = time.perf_counter()
        fleet.choose(prompts[number % len(prompts)])
        taken.append((time.perf_counter() - began) * 1e6)
    ordered = sorted(taken)
    return {"median_us": round(ordered[decisions // 2], 1), "p99_us": round(ordered[int(decisions * 0.99)], 1)}


def table(outcomes: Sequence[Outcome]) -> str:
    head = ("router", "prefix hit", "first token p50", "p99", "waited", "refused", "imbalance")
    rows = [
        (
            one.router,
            f"{one.prefix_hit_rate:.1%}",
            f"{one.first_token_p50_seconds * 1000:.0f} ms",
            f"{one.first_token_p99_seconds:.2f} s",
            f"{one.waited_part:.1%}",
            f"{one.refused:,}",
            f"{one.imbalance:.2f}",
        )
        for one in outcomes
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (head, *rows)]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def picture(outcomes: Sequence[Outcome]) -> str:
    """Bars: prefixes found, and the time to the first token of the slowest percent."""
    from brim.cli.show.drawing.svg import Box, document, rect, text

    left, bar, step, width = 190, 20, 34, 880
    parts = [
        text(left, 30, "prefixes found", size=13, bold=True),
        text(left + 350, 30, "first token, slowest percent", size=13, bold=True),
    ]
    slowest = max(one.first_token_p99_seconds for one in outcomes)
    for number, one in enumerate(outcomes):
        y = 50 + number * step
        fill = "#2f6f8f" if "Brim" in one.router else "#b9c6cc"
        parts.append(text(left - 10, y + 15, one.router, size=12, anchor="end"))
        parts.append(rect(Box(left, y, 250 * one.prefix_hit_rate, bar), fill))
        parts.append(text(left + 250 * one.prefix_hit_rate + 6, y + 15, f"{one.prefix_hit_rate:.0%}", size=12))
        long = 220 * one.first_token_p99_seconds / slowest
        parts.append(rect(Box(left + 350, y, max(1.0, long), bar), fill))
        parts.append(text(left + 350 + long + 6, y + 15, f"{one.first_token_p99_seconds:.2f} s", size=12))
    return document(width, 70 + step * len(outcomes), "Routers beside each other", parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--conversations", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=250.0, help="in which conversations start")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "routing.json")
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    trace = conversations(options.conversations, options.seconds, options.seed)
    outcomes = []
    decisions: dict[str, Any] = {}
    for name in ROUTERS:
        began = time.perf_counter()
        outcome, router = simulate(name, trace, options.replicas, options.seed)
        outcomes.append(outcome)
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
        if isinstance(router, ByMemory):
            decisions["in the simulation"] = {"median_us": round(statistics.median(router.seconds) * 1e6, 1)}
    for replicas in (64, 1024):
        decisions[f"{replicas} replicas"] = decision_cost(replicas)
    print(table(outcomes))
    for name, cost in decisions.items():
        print(f"a decision, {name}: {cost}")
    found = {
        **stamp(),
        "replicas": options.replicas,
        "conversations": options.conversations,
        "requests": sum(len(one.turns) for one in trace),
        "seconds": options.seconds,
        "seed": options.seed,
        "outcomes": [asdict(one) for one in outcomes],
        "decision": decisions,
    }
    options.output.write_text(json.dumps(found, indent=1) + "\n")
    if options.svg is not None:
        options.svg.write_text(picture(outcomes))


if __name__ == "__main__":
    main()
