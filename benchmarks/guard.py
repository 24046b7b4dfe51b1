"""Whether an out-of-memory costs one request at most, on a GPU, under load; and what vLLM does in its place.

    python benchmarks/guard.py thief [--seconds 300] [--out FILE] [--commit HASH]
    python benchmarks/guard.py refusals [--refusals 50] ...
    python benchmarks/guard.py thief|refusals --vllm CONFIG_DIR [--fraction 0.98] ...

`thief`: the engine is fitted, then another process takes all free memory again and again. `refusals`: every few seconds
the allocator's cache is emptied and a ballast in the same process takes what the driver has, until an allocation was
refused; then the next, until there were so many. The load beside it is long prompts, bursts of short ones and mixed
ones. Afterwards some of the greedy answers are scored by the same engine, undisturbed: each of their tokens must have
been the likeliest, or nearly (`NEAR_TIE`).

With `--vllm` the same is done to vLLM 0.26 in its place, in the same process, with the same requests; its answers are
not scored.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from driver_memory import Driver
from fit import hold_ballast
from stamp import stamp
from thief import Thief

NEAR_TIE = 0.25  # of log-probability: other kernels round otherwise in bf16
SCORED = 48  # answers
REFUSAL_PAUSE = 3.0  # seconds between two
REFUSAL_STEPS = 16  # at most, that a ballast is held
MOST_BALLASTS = 4  # for a refusal: steps that have become small may find enough in what is left


class Server(Protocol):
    """What is being disturbed."""

    name: str
    longest: int
    vocab: int
    batch: int

    def submit(self, prompt: list[int], max_tokens: int, greedy: bool) -> str: ...
    def step(self) -> list[tuple[str, list[int] | None]]:
        """Requests that have ended, and their tokens; None: it failed."""
        ...

    def busy(self) -> int: ...
    def rescues(self) -> int: ...
    def gap(self, prompt: list[int], answer: list[int]) -> float | None:
        """How much less likely than the likeliest a token of the answer was, at most; None: it cannot be told."""
        ...

    def figures(self) -> dict[str, Any]: ...


class BrimServer:
    """Brim's engine, fitted."""

    name = "brim"

    def __init__(self, options: argparse.Namespace) -> None:
        from brim import Engine, EngineSettings, fit_engine

        settings = EngineSettings(
            max_batch=options.max_batch,
            max_batch_tokens=options.batch_tokens,
            max_length=options.max_length,
            compile=options.compile,
        )
        where = {"device": "cuda"} if not options.tiny else {"device": "cpu", "probe": tiny_probe()}
        self.engine = Engine(
            options.model,
            load_format=options.load_format,
            dtype=options.dtype,
            settings=settings,
            kv_tokens=0,
            **where,
        )
        self.report = fit_engine(self.engine, probe=where.get("probe"), store=options.store)
        self.longest, self.vocab = self.engine.longest_request, self.engine.loaded.vocab
        self.batch = options.max_batch
        self._running: set[str] = set()

    def submit(self, prompt: list[int], max_tokens: int, greedy: bool) -> str:
        from brim import SamplingParams

        how: dict[str, Any] = {"temperature": 0} if greedy else {"temperature": 0.9, "top_p": 0.9, "logprobs": 20}
        name = self.engine.submit(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True, **how))
        self._running.add(name)
        return name

    def step(self) -> list[tuple[str, list[int] | None]]:
        ended = []
        for update in self.engine.step():
            done = update.completion
            if done is not None:
                self._running.discard(update.request_id)
                ended.append((update.request_id, None if done.error is not None else list(done.tokens)))
        return ended

    def busy(self) -> int:
        return len(self._running)

    def rescues(self) -> int:
        return self.engine.health.rescues

    def gap(self, prompt: list[int], answer: list[int]) -> float:
        from brim import SamplingParams

        params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=1)
        (scored,) = self.engine.generate([[*prompt, *answer]], params)
        rows = scored.prompt_logprobs[-len(answer) :]
        return max(row.top[0][1] - row.logprob for row in rows)

    def figures(self) -> dict[str, Any]:
        health = self.engine.health
        return {
            "kv_tokens": self.engine.kv_tokens,
            "share_of_limit": self.report.kv_tokens / self.report.limit_tokens,
            "rescues": health.rescues,
            "rebuilds": health.rebuilds,
            "status": str(health.status),
            "step_tokens": health.step_tokens,
            "preemptions": self.engine.figures.preemptions,
            "blocks_held": self.engine.figures.blocks_held,
            "fit_seconds": self.report.seconds.total,
        }


class VllmServer:
    """vLLM as it is, in this process, so that a ballast is its own."""

    name = "vllm"

    def __init__(self, options: argparse.Namespace) -> None:
        import os

        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from vllm import LLM

        more = {} if options.fraction is None else {"gpu_memory_utilization": options.fraction}
        self.llm = LLM(
            model=str(options.vllm),
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=options.max_length,
            max_num_batched_tokens=options.batch_tokens,
            max_num_seqs=options.max_batch,
            **more,
        )
        self.engine = self.llm.llm_engine
        self.longest = options.max_length
        self.vocab = self.engine.model_config.get_vocab_size()
        self.batch = options.max_batch
        self._numbers = iter(range(1 << 62))
        self._running: set[str] = set()

    def submit(self, prompt: list[int], max_tokens: int, greedy: bool) -> str:
        from vllm import SamplingParams

        how: dict[str, Any] = {"temperature": 0} if greedy else {"temperature": 0.9, "top_p": 0.9, "logprobs": 20}
        name = f"request-{next(self._numbers)}"
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, detokenize=False, **how)
        self.engine.add_request(name, {"prompt_token_ids": prompt}, params)
        self._running.add(name)
        return name

    def step(self) -> list[tuple[str, list[int] | None]]:
        ended = []
        for output in self.engine.step():
            if output.finished:
                self._running.discard(output.request_id)
                ended.append((output.request_id, list(output.outputs[0].token_ids)))
        return ended

    def busy(self) -> int:
        return len(self._running)

    def rescues(self) -> int:
        return 0  # it has none: the first refusal is an error of `step`

    def gap(self, prompt: list[int], answer: list[int]) -> float | None:
        return None

    def figures(self) -> dict[str, Any]:
        config = self.engine.vllm_config.cache_config
        return {"kv_tokens": (config.num_gpu_blocks or 0) * config.block_size}


@dataclass
class Outcome:
    """What became of the requests."""

    submitted: int = 0
    finished: int = 0
    failed: int = 0
    steps: int = 0
    died: str = ""  # the error that ended the engine
    greedy: list[tuple[list[int], list[int]]] = field(default_factory=list)  # prompts and answers, to be scored


class Load:
    """Long prompts, bursts and mixed ones, as many as keep the engine full."""

    def __init__(self, server: Server, outcome: Outcome, seed: int = 0) -> None:
        self._server, self._outcome, self._draw = server, outcome, random.Random(seed)
        self._greedy: dict[str, list[int]] = {}

    def refill(self) -> None:
        server, draw = self._server, self._draw
        if server.busy() >= 2 * server.batch:
            return
        kind = draw.choices(("long", "burst", "mixed"), (1, 2, 4))[0]
        if kind == "long":
            lengths = [server.longest - 64]
        elif kind == "burst":
            lengths = [draw.randrange(1, min(64, server.longest - 64)) for _ in range(server.batch // 2)]
        else:
            lengths = [draw.randrange(1, min(4096, server.longest - 64)) for _ in range(8)]
        for length in lengths:
            prompt = [draw.randrange(3, server.vocab) for _ in range(length)]
            greedy = draw.random() < 0.3
            name = server.submit(prompt, draw.randrange(4, 48), greedy)
            self._outcome.submitted += 1
            if greedy and length <= 2048:
                self._greedy[name] = prompt

    def step(self) -> None:
        outcome = self._outcome
        for name, tokens in self._server.step():
            prompt = self._greedy.pop(name, None)
            if tokens is None:
                outcome.failed += 1
                continue
            outcome.finished += 1
            if prompt is not None:
                outcome.greedy.append((prompt, tokens))
        outcome.steps += 1


def disturb(server: Server, steps: Callable[[Load], Iterator[None]]) -> tuple[Outcome, dict[str, Any]]:
    """Run the load until the disturber is done with it, then let the rest end; score some of the answers."""
    outcome = Outcome()
    load = Load(server, outcome)
    began = time.perf_counter()
    try:
        for _ in steps(load):
            load.refill()
            load.step()
        while server.busy():
            load.step()
    except Exception as error:  # noqa: BLE001 - whatever ends an engine is the result
        outcome.died = f"{type(error).__name__}: {str(error)[:300]}"
        outcome.failed += server.busy()
    spent = time.perf_counter() - began
    scored = [] if outcome.died else [server.gap(*one) for one in _sample(outcome.greedy)]
    gaps = [gap for gap in scored if gap is not None]
    row = {
        "seconds": spent,
        "submitted": outcome.submitted,
        "finished": outcome.finished,
        "failed": outcome.failed,
        "steps": outcome.steps,
        "died": outcome.died,
        "scored_answers": len(gaps),
        "worst_gap": max(gaps, default=0.0),
        "wrong_answers": sum(gap > NEAR_TIE for gap in gaps),
        **server.figures(),
    }
    return outcome, row


def _sample(answers: list[tuple[list[int], list[int]]]) -> list[tuple[list[int], list[int]]]:
    return random.Random(1).sample(answers, min(SCORED, len(answers)))


def with_thief(server: Server, options: argparse.Namespace, thief: Thief | None) -> dict[str, Any]:
    """Another process takes all free memory, again and again."""

    def steps(_: Load) -> Iterator[None]:
        over = time.perf_counter() + options.seconds
        if thief is not None:
            thief.begin()
        while time.perf_counter() < over:
            yield

    _, row = disturb(server, steps)
    return {**row, "thief": None if thief is None else thief.end()}


def with_refusals(server: Server, options: argparse.Namespace) -> dict[str, Any]:
    """The cache emptied and a ballast taken in this process, between steps, until so many allocations were refused."""
    import torch

    driver = Driver()
    ballasts = refusals = 0

    def steps(_: Load) -> Iterator[None]:
        nonlocal ballasts, refusals
        while refusals < options.refusals and ballasts < MOST_BALLASTS * options.refusals:
            over = time.perf_counter() + options.pause
            while time.perf_counter() < over:
                yield
            before = server.rescues()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            held, _ = driver.take_all(but=options.leave)
            for _ in range(REFUSAL_STEPS):
                yield
                if server.rescues() > before:
                    break
            driver.release(held)
            ballasts, refusals = ballasts + 1, refusals + (server.rescues() > before)
            print(f"{refusals} refusals with {ballasts} ballasts", file=sys.stderr, flush=True)

    _, row = disturb(server, steps)
    return {**row, "ballasts_refused": refusals, "ballasts": ballasts}


def tiny_probe() -> Any:
    from brim.probes.cpu import CpuProbe

    return CpuProbe(1 << 29)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("thief", "refusals"))
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--load-format", default="dummy", choices=("auto", "dummy"))
    parser.add_argument("--free", type=float, help="make the card small: GiB that a ballast leaves")
    parser.add_argument("--max-batch", type=int, default=256)
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--max-length", type=int, default=8192)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--store", type=Path, help="keep proven sizes there, and start from them")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--refusals", type=int, default=50)
    parser.add_argument("--pause", type=float, default=REFUSAL_PAUSE, help="seconds between two refusals")
    parser.add_argument("--leave", type=int, default=64 << 20, help="bytes that a ballast leaves")
    parser.add_argument("--vllm", type=Path, help="a folder with a config.json, to be served by vLLM")
    parser.add_argument("--fraction", type=float, help="vLLM's gpu_memory_utilization")
    parser.add_argument("--tiny", action="store_true", help="on the CPU, without a neighbour: to try this script")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()

    thief = Thief() if options.what == "thief" and not options.tiny else None  # its context comes before the fit
    ballast = hold_ballast(int(options.free * (1 << 30))) if options.free else None
    server = VllmServer(options) if options.vllm else BrimServer(options)
    row = with_thief(server, options, thief) if options.what == "thief" else with_refusals(server, options)
    row["ballast_bytes"] = 0 if ballast is None else ballast.nbytes
    result = {**stamp(options.commit), "what": options.what, "server": server.name, "model": options.model, **row}
    print(json.dumps(result), flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    allowed = options.refusals if options.what == "refusals" else 0
    if server.name == "brim" and (row["died"] or row["wrong_answers"] or row["failed"] > allowed):
        sys.exit(1)


if __name__ == "__main__":
    main()
