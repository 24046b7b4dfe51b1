"""How much of a card the KV cache gets from `brim fit`, and whether that size holds under the worst load.

Each model is fitted (random weights in its real dimensions), then loaded for a while with the worst: longest prompts,
largest batches, full sampler, log-probabilities of whole prompts, bursts. An out-of-memory fails the run. Needs a GPU:

    python benchmarks/fit.py [--models llama-3.1-8b,...] [--seconds 120] [--free 24GiB] [--out FILE] [--commit HASH]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from stamp import stamp

GIB = 1 << 30
# KV tokens of others for Llama 3.1 8B on one H200, measured once, apart from this script.
MEASURED_APART = {
    "vllm 0.26, by default": 914_304,
    "vllm 0.26, where it begins to die under load": 983_504,
    "transformers 5.17, continuous batching": 783_872,
}


def hold_ballast(left_bytes: int) -> Any:
    """Make the card small: take all but this much of what is free."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    return torch.empty(max(0, free - left_bytes), dtype=torch.uint8, device="cuda")


def measure(model: str, options: argparse.Namespace) -> dict[str, Any]:
    import torch

    from brim.engine.engine import Engine
    from brim.engine.settings import EngineSettings
    from brim.serving import fit_engine

    settings = EngineSettings(
        max_batch=options.max_batch,
        max_batch_tokens=options.batch_tokens,
        max_length=options.max_length,
        compile=options.compile,
    )
    started = time.perf_counter()
    engine = Engine(model, load_format="dummy", dtype="bf16", device="cuda", settings=settings, kv_tokens=0)
    loaded = time.perf_counter() - started
    report = fit_engine(engine, store=options.store)
    row: dict[str, Any] = {"model": model, "load_seconds": loaded, **report.to_json()}
    row["share_of_limit"] = report.kv_tokens / report.limit_tokens
    print(
        f"{model}: {report.kv_tokens:,} tokens, {row['share_of_limit']:.2%} of the limit {report.limit_tokens:,}, "
        f"{len(report.attempts)} attempts, {report.seconds.total:.1f} s {row['seconds']}",
        flush=True,
    )
    for item in report.items:
        print(f"  {item.name:<11} predicted {item.predicted_bytes} measured {item.measured_bytes}", flush=True)
    if options.seconds:
        row["load"] = adversarial_load(engine, options.seconds)
        print(f"  load: {row['load']}", flush=True)
    engine.teardown()
    del engine
    torch.cuda.empty_cache()
    return row


def adversarial_load(engine: Any, seconds: float) -> dict[str, Any]:
    """Everything at once, for so long; what it did, and how little was left."""
    import torch

    from brim.engine.requests.params import SamplingParams
    from brim.errors import OutOfMemory

    draw = random.Random(0)
    everything = {"temperature": 0.9, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1, "logprobs": 20}
    batch, longest, vocab = engine.settings.max_batch, engine.longest_request, engine.loaded.vocab
    free, finished, started = 1 << 62, 0, time.perf_counter()
    steps = out_of_memory = 0
    image = engine.worst_image()
    while time.perf_counter() - started < seconds and not out_of_memory:
        if len(engine.request_ids) < 2 * batch:
            kind = draw.choices(("long", "burst", "scores", "mixed", "image"), (1, 4, 2, 4, 3 if image else 0))[0]
            if kind == "long":
                shapes = [(longest - 50, {"temperature": 0})]
            elif kind == "burst":
                shapes = [(draw.randrange(1, 64), everything) for _ in range(batch)]
            elif kind == "scores":
                shapes = [(min(8192, longest - 50), {"prompt_logprobs": 20, "temperature": 0})] * 2
            else:
                shapes = [(draw.randrange(1, min(4096, longest - 64)), everything) for _ in range(8)]
            for length, more in shapes[:2] if kind == "image" else shapes:
                params = SamplingParams(max_tokens=draw.randrange(1, 48), ignore_eos=True, **more)
                if kind == "image":
                    tokens = [engine.loaded.full_config.image_token_id] * image.tokens
                    engine.submit([3, *tokens, 3], params, images=image.inputs)
                else:
                    engine.submit([draw.randrange(3, vocab) for _ in range(length)], params)
        try:
            finished += sum(update.completion is not None for update in engine.step())
        except OutOfMemory as error:
            print(f"  out of memory: {error}", flush=True)
            out_of_memory += 1
        steps += 1
        if steps % 16 == 0:
            free = min(free, torch.cuda.mem_get_info()[0])
    spent = time.perf_counter() - started
    figures = engine.loop.figures
    return {
        "seconds": spent,
        "finished": finished,
        "steps": figures.steps,
        "tokens": figures.tokens,
        "largest_step": figures.largest_step,
        "images": "largest" if image else None,
        "preemptions": engine.loop.scheduler.preemptions,
        "out_of_memory": out_of_memory,
        "lowest_free_bytes": free,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="llama-3.1-8b")
    parser.add_argument("--max-batch", type=int, default=256)
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--max-length", type=int, default=131_072)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--free", type=float, help="make the card small: GiB that a ballast leaves")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--store", type=Path, help="keep proven sizes there, and start from them")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()

    ballast = hold_ballast(int(options.free * GIB)) if options.free else None
    results = {
        **stamp(options.commit),
        "settings": {"max_batch": options.max_batch, "batch_tokens": options.batch_tokens, "compile": options.compile},
        "free_gib": options.free,
        "ballast_bytes": 0 if ballast is None else ballast.nbytes,
        "rows": [measure(model, options) for model in options.models.split(",")],
    }
    for name, tokens in MEASURED_APART.items():
        print(f"llama-3.1-8b, measured apart: {name}: {tokens:,} tokens")
    print(json.dumps(results))
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if any(row.get("load", {}).get("out_of_memory") for row in results["rows"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
