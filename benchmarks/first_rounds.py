"""Whether the first requests are slower: each of several workloads twice, right after a fit, and what is compiled.

Random weights in the dimensions of a real model, bf16. Also what a mixed load compiles after the start (nothing should
be), and the slowest steps of each first round. Needs a GPU:

    python benchmarks/first_rounds.py [--model llama-3.1-8b] [--no-compile] [--steps] [--out FILE] [--commit HASH]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compilations import counted
from stamp import stamp

MIXED = 64
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "seed": 1}


@dataclass(frozen=True, slots=True)
class Workload:
    """So many requests of so many prompt tokens, each generating so many."""

    name: str
    requests: int
    prompt: int
    output: int
    sampled: bool = False
    shared: int = 0  # tokens of the prompt that all requests have


WORKLOADS = (
    Workload("128 x (512 -> 128)", 128, 512, 128),
    Workload("16 x (1024 -> 256)", 16, 1024, 256),
    Workload("1 x (512 -> 256)", 1, 512, 256),
    Workload("256 x (512 -> 128), sampled", 256, 512, 128, sampled=True),
    Workload("256 x (2048 shared + 128 -> 64)", 256, 2176, 64, shared=2048),
    Workload("512 x (512 -> 256)", 512, 512, 256),
)


def prompts_of(workload: Workload, vocab: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    shared = [draw.randrange(10, vocab) for _ in range(workload.shared)]
    own = workload.prompt - workload.shared
    return [shared + [draw.randrange(10, vocab) for _ in range(own)] for _ in range(workload.requests)]


def run(engine: Any, workload: Workload, seed: int, slowest: int = 0) -> dict[str, Any]:
    import torch

    from brim import SamplingParams

    prompts = prompts_of(workload, engine.loaded.vocab, seed)
    how = SAMPLED if workload.sampled else {"temperature": 0}
    params = SamplingParams(max_tokens=workload.output, ignore_eos=True, **how)
    steps: list[tuple[float, str]] = []
    torch.cuda.synchronize()
    with counted() as found:
        started = time.perf_counter()
        left = {engine.submit(prompt, params) for prompt in prompts}
        while left:
            before = engine.figures
            began = time.perf_counter()
            for update in engine.step():
                if update.completion is not None:
                    left.discard(update.request_id)
            steps.append((time.perf_counter() - began, f"{before.running} running, {before.waiting} waiting"))
        seconds = time.perf_counter() - started
    steps_ms = [f"{1000 * took:.0f} ms: {what}" for took, what in sorted(steps, reverse=True)[:slowest]]
    return {
        "seconds": seconds,
        "tokens_per_second": workload.requests * workload.output / seconds,
        "kernels": found.kernels,
        "graphs": found.graphs,
        "slowest_steps": steps_ms,
    }


def mixed(engine: Any, seed: int) -> dict[str, Any]:
    """Requests of every kind at once: what is compiled for them after the start."""
    from brim import SamplingParams

    draw = random.Random(seed)
    with counted() as found:
        for _ in range(MIXED):
            length = draw.choice([1, 2, 3, 7, 17, 100, 333, 777, 1500, 3000])
            kind: dict[str, Any] = draw.choice(
                [
                    {"temperature": 0},
                    SAMPLED,
                    {"temperature": 1.0, "top_k": 50, "min_p": 0.05},
                    {"temperature": 0.7, "repetition_penalty": 1.1, "presence_penalty": 0.5},
                    {"temperature": 0, "logprobs": 5},
                    {"temperature": 0, "prompt_logprobs": 5},
                    {"temperature": 0.9, "n": 3, "logit_bias": ((5, 2.0),), "min_tokens": 1},
                ]
            )
            prompt = [draw.randrange(10, engine.loaded.vocab) for _ in range(length)]
            engine.submit(prompt, SamplingParams(max_tokens=draw.choice([1, 2, 20, 60]), ignore_eos=True, **kind))
            for _ in range(draw.randrange(4)):
                engine.step()
        while not engine.idle:
            engine.step()
    return {"kernels": found.kernels, "graphs": found.graphs}


def measure(options: argparse.Namespace) -> dict[str, Any]:

    from brim import Engine, EngineSettings, fit_engine

    settings = EngineSettings(max_batch=512, max_batch_tokens=8192, max_length=8192, compile=options.compile)
    engine = Engine(options.model, load_format="dummy", dtype="bf16", device="cuda", settings=settings, kv_tokens=0)
    started = time.perf_counter()
    if options.fit:
        report = fit_engine(engine)
        print(f"fit: {report.kv_tokens:,} tokens", report.seconds, flush=True)
    else:
        engine.build(450_000)
    fitted = time.perf_counter() - started
    rows: list[dict[str, Any]] = []
    result: dict[str, Any] = {
        **stamp(options.commit),
        "model": options.model,
        "compiled": options.compile,
        "fit_seconds": fitted,
        "kv_tokens": engine.kv_tokens,
        "workloads": rows,
    }
    for number, workload in enumerate(WORKLOADS):
        rounds = [run(engine, workload, 10 * number + one, options.steps) for one in range(options.rounds)]
        first, later = rounds[0], max(one["tokens_per_second"] for one in rounds[1:])
        rows.append({"workload": workload.name, "rounds": rounds, "first_of_later": first["tokens_per_second"] / later})
        rates = ", ".join(f"{one['tokens_per_second']:,.0f}" for one in rounds)
        compiled = [len(one["kernels"]) + one["graphs"] for one in rounds]
        print(f"{workload.name:<34} {rates} tokens/s; compiled {compiled}; first {rows[-1]['first_of_later']:.1%}")
        for line in (*first["slowest_steps"], *first["kernels"][:4]):
            print("   ", line)
        sys.stdout.flush()
    result["mixed"] = mixed(engine, 5)
    print("mixed load compiled", len(result["mixed"]["kernels"]), "kernels and", result["mixed"]["graphs"], "graphs")
    for line in result["mixed"]["kernels"][:20]:
        print("   ", line)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="show so many of the slowest steps of first rounds")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--fit", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    result = measure(options)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
