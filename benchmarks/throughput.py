"""Output tokens a second of Brim's engine beside `transformers`' own continuous batching, in one run on one GPU.

Random weights in the dimensions of a real model, bf16, greedy, every request generates all its tokens. Also the time of
a decode step against the floor that memory bandwidth sets, and of the whole workload against the floor set by weights,
KV bytes and prefill flops, with bandwidth and matrix rate measured in the same run. Needs a GPU:

    python benchmarks/throughput.py [--model llama-3.1-8b] [--no-compare] [--no-compile] [--out FILE] [--commit HASH]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stamp import stamp

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Workload:
    """So many requests of so many prompt tokens, each generating so many."""

    requests: int
    prompt: int
    output: int

    @property
    def name(self) -> str:
        return f"{self.requests} x ({self.prompt} -> {self.output})"


# Output tokens a second of others on one H200 with the same workloads and dimensions, measured once, apart from this
# script: vLLM 0.26 with its defaults, and transformers 5.17's continuous batching in a process of its own.
MEASURED_APART = {"vllm 0.26": (6_272, 10_297), "transformers 5.17": (675, None)}
WORKLOADS = (Workload(128, 512, 128), Workload(512, 512, 256))


def prompts_of(workload: Workload, vocab: int, seed: int) -> list[list[int]]:
    """Different tokens in every prompt and every round, so that no prefix is found again."""
    draw = random.Random(seed)
    return [[draw.randrange(10, vocab) for _ in range(workload.prompt)] for _ in range(workload.requests)]


def measured_rates() -> tuple[float, float]:
    """(bytes a second of a device-to-device copy, read and written; flops a second of a bf16 matrix product)."""
    import torch

    source = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    left = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    copy = timed(lambda: target.copy_(source), 10)
    product = timed(lambda: left @ left, 10)
    return 2 * source.nbytes / copy, 2 * 8192**3 / product


def timed(action: Any, times: int) -> float:
    """Median seconds of an action on the device."""
    import torch

    for _ in range(3):
        action()
    seconds = []
    for _ in range(times):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        action()
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1000)
    return sorted(seconds)[len(seconds) // 2]


def floor_seconds(workload: Workload, engine: Any, bandwidth: float, flops: float) -> float:
    """No engine on this card is faster: prompts at the matrix rate, every decode step reads weights and KV once."""
    weights = engine.loaded.weight_bytes
    embedding = engine.loaded.model.get_input_embeddings().weight.nbytes
    active = (weights - embedding) / 2  # parameters that multiply, bf16; the embedding is looked up
    token_bytes = engine.kv_bytes(1 << 20) / (1 << 20)
    prefill = 2 * active * workload.requests * workload.prompt / flops
    mean_context = workload.prompt + workload.output / 2
    step = (weights - embedding + workload.requests * mean_context * token_bytes) / bandwidth
    return prefill + (workload.output - 1) * step


def run_brim(engine: Any, workload: Workload, seed: int) -> dict[str, float]:
    import torch

    from brim.engine.requests.params import SamplingParams

    prompts = prompts_of(workload, engine.loaded.vocab, seed)
    params = SamplingParams(max_tokens=workload.output, temperature=0, ignore_eos=True)
    before = asdict(engine.loop.figures)
    torch.cuda.synchronize()
    started = time.perf_counter()
    completions = engine.generate(prompts, params)
    seconds = time.perf_counter() - started
    assert all(len(one.tokens) == workload.output for one in completions)
    after = asdict(engine.loop.figures)
    spent = {name: after[name] - before[name] for name in after if name.endswith("seconds") or name == "steps"}
    return {"seconds": seconds, "tokens_per_second": workload.requests * workload.output / seconds, **spent}


def decode_step_seconds(engine: Any, batch: int, context: int) -> float:
    """A decode step on a full batch, as the engine runs it, on whatever is in the pool."""
    import numpy as np
    import torch

    from brim.engine.run.rows import LAST_DRAWN, DecodeRows

    runner = engine.model.runner
    rows = DecodeRows(np.arange(batch), np.full(batch, context), np.full(batch, LAST_DRAWN))
    blocks = engine.model.sizes.shape(engine.kv_tokens).blocks[0]
    columns = runner.memory.kv.tables[0].shape[1]
    table = torch.arange(batch * columns, device="cuda", dtype=torch.int32).view(batch, columns) % blocks + 1
    with torch.inference_mode():
        kept = runner.memory.kv.tables[0][:batch].clone()
        runner.memory.kv.tables[0][:batch] = table
        seconds = timed(lambda: runner.memory.graphs.replay(rows, runner._staging), 30)
        runner.memory.kv.tables[0][:batch] = kept
    return seconds


def run_transformers(model: Any, workload: Workload, seed: int, vocab: int) -> dict[str, float]:
    """transformers' own continuous batching on the same weights."""
    import torch
    from transformers import GenerationConfig

    model.set_attn_implementation("sdpa")
    config = GenerationConfig(
        max_new_tokens=workload.output, min_new_tokens=workload.output, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    warm = prompts_of(Workload(8, workload.prompt, 8), vocab, seed + 1)
    model.generate_batch(
        inputs=warm,
        generation_config=GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=-1, pad_token_id=0),
        progress_bar=False,
    )
    torch.cuda.empty_cache()
    prompts = prompts_of(workload, vocab, seed)
    started = time.perf_counter()
    outputs = model.generate_batch(inputs=prompts, generation_config=config, progress_bar=False)
    seconds = time.perf_counter() - started
    drawn = sum(len(one.generated_tokens) for one in outputs.values())
    return {"seconds": seconds, "tokens_per_second": drawn / seconds, "tokens": drawn}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    from brim.engine.engine import Engine
    from brim.engine.run.compiling import drop_compiled
    from brim.engine.settings import EngineSettings

    bandwidth, flops = measured_rates()
    torch.cuda.empty_cache()
    settings = EngineSettings(
        max_batch=512, max_batch_tokens=8192, max_length=8192, compile=options.compile, reuse_prefixes=True
    )
    started = time.perf_counter()
    engine = Engine(options.model, load_format="dummy", dtype="bf16", device="cuda", settings=settings, kv_tokens=0)
    loaded = time.perf_counter()
    engine.build(options.kv_tokens)
    built = time.perf_counter()
    print(f"loaded in {loaded - started:.1f} s, built (compiled, captured) in {built - loaded:.1f} s", flush=True)
    results: dict[str, Any] = {
        **stamp(options.commit),
        "model": options.model,
        "compiled": options.compile,
        "bandwidth_bytes_per_second": bandwidth,
        "flops_per_second": flops,
        "load_seconds": loaded - started,
        "build_seconds": built - loaded,
        "workloads": [],
        "decode_steps": [],
    }
    run_brim(engine, Workload(64, 512, 16), 7)  # compile the shapes of prompts
    for workload in WORKLOADS:
        rounds = [run_brim(engine, workload, seed) for seed in range(options.rounds)]
        best = min(rounds, key=lambda one: one["seconds"])
        floor = floor_seconds(workload, engine, bandwidth, flops)
        best |= {"floor_seconds": floor, "of_floor": floor / best["seconds"]}
        results["workloads"].append(
            {"workload": workload.name, "brim": best, "rounds": [one["tokens_per_second"] for one in rounds]}
        )
        print(workload.name, json.dumps(best), flush=True)
    token_bytes = engine.kv_bytes(1 << 20) / (1 << 20)
    held = engine.loaded.weight_bytes - engine.loaded.model.get_input_embeddings().weight.nbytes
    for batch, context in ((1, 576), (32, 576), (128, 576), (256, 576), (512, 640), (128, 4096)):
        seconds = decode_step_seconds(engine, batch, context)
        floor = (held + batch * context * token_bytes) / bandwidth
        results["decode_steps"].append(
            {
                "batch": batch,
                "context": context,
                "seconds": seconds,
                "floor_seconds": floor,
                "times_floor": seconds / floor,
            }
        )
        print(json.dumps(results["decode_steps"][-1]), flush=True)
    results["peak_reserved_gib"] = torch.cuda.max_memory_reserved() / GIB
    if options.compare:
        vocab, model = engine.loaded.vocab, engine.loaded.model
        engine.teardown()
        drop_compiled(model)  # what was compiled for Brim's calls would be compiled again and again for theirs
        workload = WORKLOADS[0]
        theirs = run_transformers(model, workload, 0, vocab)
        ours = results["workloads"][0]["brim"]
        results["workloads"][0]["transformers"] = theirs
        results["workloads"][0]["times_transformers"] = ours["tokens_per_second"] / theirs["tokens_per_second"]
        print("transformers", json.dumps(theirs), flush=True)
    return results


def show(results: dict[str, Any]) -> None:
    print(f"\n{results['device']}, {results['model']}, compiled: {results['compiled']}")
    for row in results["workloads"]:
        ours = row["brim"]
        line = (
            f"  {row['workload']:<20} {ours['tokens_per_second']:>8,.0f} tokens/s, {ours['of_floor']:.0%} of the floor"
        )
        if "transformers" in row:
            line += f"; transformers {row['transformers']['tokens_per_second']:,.0f}: {row['times_transformers']:.1f} x"
        print(line)
    for name, rates in MEASURED_APART.items():
        print(f"  {name}, measured apart: " + ", ".join(f"{rate:,}" for rate in rates if rate) + " tokens/s")
    for row in results["decode_steps"]:
        print(
            f"  decode {row['batch']:>4} x {row['context']:<5} {1000 * row['seconds']:>7.2f} ms, "
            f"{row['times_floor']:.2f} x its bandwidth floor"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--kv-tokens", type=int, default=450_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compare", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    results = measure(options)
    show(results)
    print(json.dumps(results))
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
