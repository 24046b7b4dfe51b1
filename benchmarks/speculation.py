"""What speculation gains, and what it costs the host.

    python benchmarks/speculation.py [--model brim-tiny] [--draft MODEL] [--device cpu] [--out FILE] [--commit HASH]

* gate: microseconds of a decision beside 256 running requests, on the real `BlockForecast`
* lookup: microseconds to look up a draft in a text of so many tokens, and to note its last token
* decoding: output tokens a second with and without speculation, at a few small batches, on texts that repeat themselves

`brim-tiny` repeats what it is told to. A model with random weights (`--load-format dummy`, any config) repeats nothing
that can be foreseen: there, drafts come from the answer of the run without speculation, and so many of their tokens are
right as `--right` says. Every answer is compared with that of the run without speculation.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from admission import Batch, nothing, one_changes
from stamp import stamp

from brim.engine.drafts.prompt_lookup import PairIndex, PromptLookup
from brim.engine.drafts.speculator import Speculator
from brim.engine.engine import Engine
from brim.engine.requests.params import SamplingParams
from brim.engine.requests.sequence import Sequence
from brim.engine.settings import EngineSettings
from brim.guard.speculation import SpeculationSettings

BAR_MICROSECONDS = 20.0
BAR_GAIN = 1.5
BATCHES = (1, 4, 16)
WORDS = ("the", "cat", "dog", "park", "house", "tree", "river", "road", "book", "lamp", "door", "bird", "fish", "stone")


# -- the host --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Running:
    """What a speculator sees of a scheduler."""

    running: list[Sequence]
    forecast: Any
    ledger: Any


def microseconds(action: Callable[[], Any], between: Callable[[], Any], times: int) -> dict[str, float]:
    gc.collect()
    found = []
    for _ in range(times):
        between()
        started = time.perf_counter()
        action()
        found.append((time.perf_counter() - started) * 1e6)
    found.sort()
    return {"median": statistics.median(found), "p99": found[int(len(found) * 0.99)], "largest": found[-1]}


def gate(requests: int, times: int) -> dict[str, Any]:
    """Decisions with the usual limit, which so many requests are above, and with one that lets them through."""
    results = {}
    for name, most, between in (
        ("too many run", 16, nothing),
        ("weighed before", requests, nothing),
        ("weighed after a change", requests, one_changes),
    ):
        batch = Batch(requests)
        seen = Running(batch.answering, batch.forecast, batch.ledger)
        speculator = Speculator(PromptLookup(), SpeculationSettings(most, 1.0), vocab=1000)
        decide = lambda speculator=speculator, seen=seen: speculator._open(seen, calm=True)  # noqa: E731
        results[name] = microseconds(decide, lambda batch=batch, between=between: between(batch), times)
    return results


def lookup(tokens: int, times: int) -> dict[str, float]:
    """A token is appended and noted, and a draft of 7 is found."""
    numbers = random.Random(0)
    text = numbers.choices(range(2000), k=tokens)
    index = PairIndex(text)
    while not index.catch_up():
        pass

    def find() -> None:
        place = index.match()
        if place is not None:
            index.following(place, 7)

    return microseconds(find, lambda: text.append(text[-500]), times)


# -- decoding --------------------------------------------------------------------------------------------------------


class Known:
    """Drafts from known answers, of whose tokens some are wrong."""

    def __init__(self, answers: Mapping[tuple[int, ...], tuple[int, ...]], right: float, vocab: int) -> None:
        self._answers = answers
        self._right = right
        self._vocab = vocab
        self._numbers = random.Random(0)

    def is_predicted(self, sequence: Sequence) -> bool:
        return False

    def has_one(self, sequence: Sequence) -> bool:
        return True

    def propose(self, depths: Mapping[Sequence, int]) -> dict[Sequence, tuple[int, ...]]:
        return {sequence: self._draft(sequence, depth) for sequence, depth in depths.items()}

    def _draft(self, sequence: Sequence, depth: int) -> tuple[int, ...]:
        begun = sequence.generated
        coming = self._answers[sequence.request.prompt][begun : begun + depth]
        return tuple(token if self._numbers.random() < self._right else (token + 1) % self._vocab for token in coming)

    def forget(self, sequence: Sequence) -> None:
        pass


def prompts_of(engine: Engine, count: int, dummy: bool) -> list[Any]:
    """Texts to be repeated; of random weights, any tokens."""
    from brim.engine.front.chat_template import chat_tokens, conversation

    numbers = random.Random(count)
    if dummy:
        return [[numbers.randrange(10, engine.loaded.vocab) for _ in range(256)] for _ in range(count)]
    phrases = [" ".join(numbers.choices(WORDS, k=12)) for _ in range(count)]
    return [chat_tokens(engine.tokenizer, conversation(f"Repeat this: {phrase}", None)) for phrase in phrases]


def decode(engine: Engine, prompts: list[Any], output: int, ignore_eos: bool) -> tuple[dict[str, float], list[Any]]:
    """Seconds from the first token of the last request on: prompts are not part of it."""
    params = SamplingParams(max_tokens=output, temperature=0, ignore_eos=ignore_eos)
    names = [engine.submit(prompt, params) for prompt in prompts]
    begun: set[str] = set()
    done: dict[str, tuple[int, ...]] = {}
    drawn = 0
    started = time.perf_counter()
    before = asdict(engine.loop.figures)
    while not engine.idle:
        for update in engine.step():
            drawn += update.token is not None and len(begun) == len(prompts)
            if update.token is not None and update.request_id not in begun:
                begun.add(update.request_id)
                started, before = time.perf_counter(), asdict(engine.loop.figures)
            if update.completion is not None:
                done[update.request_id] = update.completion.tokens
    seconds = time.perf_counter() - started
    after = asdict(engine.loop.figures)
    steps = after["steps"] - before["steps"]
    host = sum(after[name] - before[name] for name in ("planning_seconds", "launching_seconds", "reading_seconds"))
    figures = {"tokens_per_second": drawn / seconds, "steps": steps, "host_milliseconds": 1e3 * host / max(1, steps)}
    return figures, [done[name] for name in names]


def best_of(rounds: int, run: Callable[[], tuple[dict[str, float], list[Any]]]) -> tuple[dict[str, float], list[Any]]:
    return max((run() for _ in range(rounds)), key=lambda one: one[0]["tokens_per_second"])


def make(options: argparse.Namespace, **settings: Any) -> Engine:
    draft = settings.pop("draft", None)
    return Engine(
        options.model,
        draft=draft,
        load_format=options.load_format,
        dtype=options.dtype,
        device=options.device,
        kv_tokens=options.kv_tokens,
        settings=EngineSettings(max_length=options.max_len, compile=options.compile, **settings),
    )


def decoding(options: argparse.Namespace) -> list[dict[str, Any]]:
    dummy = options.load_format == "dummy"
    rows = []
    with make(options) as engine:
        plain = {}
        for count in BATCHES:
            prompts = prompts_of(engine, count, dummy)
            decode(engine, prompts, options.output, dummy)  # warm
            figures, answers = best_of(
                options.rounds, lambda prompts=prompts: decode(engine, prompts, options.output, dummy)
            )
            plain[count] = prompts, figures, answers
    ways: dict[str, dict[str, Any]] = {"lookup": {"speculate": "lookup"}}
    if options.draft:
        ways["draft"] = {"draft": options.draft}
    for name, settings in ways.items():
        with make(options, draft_tokens=options.draft_tokens, **settings) as engine:
            for count, (prompts, without, answers) in plain.items():
                speculator = engine.loop.speculator
                assert speculator is not None
                if dummy and name == "lookup":
                    known = {tuple(prompt): answer for prompt, answer in zip(prompts, answers, strict=True)}
                    speculator._proposer = Known(known, options.right, engine.loaded.vocab)
                decode(engine, prompts, options.output, dummy)  # warm
                before = speculator.figures
                figures, got = best_of(
                    options.rounds,
                    lambda prompts=prompts, engine=engine: decode(engine, prompts, options.output, dummy),
                )
                proposed = speculator.figures.proposed - before.proposed
                accepted = speculator.figures.accepted - before.accepted
                same = sum(one == other for one, other in zip(got, answers, strict=True))
                rows.append(
                    {
                        "drafts": name if not dummy or name == "draft" else f"known, {options.right:.0%} right",
                        "batch": count,
                        "without": without,
                        "with": figures,
                        "gain": figures["tokens_per_second"] / without["tokens_per_second"],
                        "rate": accepted / max(1, proposed),
                        "same_answers": f"{same} of {count}",
                    }
                )
                print(json.dumps(rows[-1]), flush=True)
    return rows


def show(results: dict[str, Any]) -> None:
    print(f"\n{results['device']}, {results['model']}")
    for name, found in results["gate"].items():
        kept = "" if found["median"] <= BAR_MICROSECONDS else f"   above the bar of {BAR_MICROSECONDS:g}"
        print(f"  gate, 256 running, {name:<24}{found['median']:8.1f} µs, p99 {found['p99']:.1f}{kept}")
    for tokens, found in results["lookup"].items():
        print(f"  lookup in {tokens:>6} tokens{'':<18}{found['median']:8.1f} µs, p99 {found['p99']:.1f}")
    for row in results["decoding"]:
        print(
            f"  {row['drafts']:<18} batch {row['batch']:<3} {row['without']['tokens_per_second']:>8,.0f} -> "
            f"{row['with']['tokens_per_second']:>8,.0f} tokens/s: {row['gain']:.2f} x, {row['rate']:.0%} accepted, "
            f"{row['with']['host_milliseconds']:.2f} ms of the host a step, same answers: {row['same_answers']}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="brim-tiny")
    parser.add_argument("--draft", help="also with this draft model")
    parser.add_argument("--load-format", default="auto", choices=("auto", "dummy"))
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default=None)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--kv-tokens", type=int, default=32_768)
    parser.add_argument("--max-len", type=int, default=1024)
    parser.add_argument("--draft-tokens", type=int, default=7)
    parser.add_argument("--output", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--right", type=float, default=0.9, help="of the tokens of known drafts, with random weights")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="")
    options = parser.parse_args()
    results: dict[str, Any] = {
        **stamp(options.commit),
        "model": options.model,
        "bar_microseconds": BAR_MICROSECONDS,
        "bar_gain": BAR_GAIN,
        "gate": gate(256, 2000),
        "lookup": {str(tokens): lookup(tokens, 2000) for tokens in (1024, 32_768)},
        "decoding": decoding(options),
    }
    show(results)
    line = json.dumps(results)
    print(line)
    if options.out:
        options.out.write_text(line + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
