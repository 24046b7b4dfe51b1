"""vLLM with Brim's worker, or stock, under the worst load that its API allows; one JSON for each run.

    python benchmarks/inside_vllm.py CONFIG_DIR [--stock] [--kv-bytes N] [--utilization F] [--runner v1|v2]
        [--seconds 120] [--thief] [--max-seqs 256] [--store DIR] [--out FILE] [--commit HASH]

CONFIG_DIR needs a config.json only: the weights are random, prompts are token ids. The engine runs in this process, so
that the allocator's own counts are seen: out-of-memory errors and retries during the load must be 0. With `--thief`
another process takes all free memory again and again while the load runs. Without a GPU it is a dry run with the tiny
dimensions of the config, on a budget (`--budget`).

Start it twice with the same `--store`: the second start validates the stored fit. Throughput beside stock vLLM is
measured by the bench that vLLM's figures come from, with `--extra '{"worker_cls": "brim.vllm.BrimWorker"}'`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stamp import stamp

ANSWER_TOKENS = 64
Request = tuple[dict[str, Any], Any]


def main() -> int:
    options = read_options()
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    if options.runner != "auto":
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if options.runner == "v2" else "0"
    thief = started_thief() if options.thief else None
    began = time.perf_counter()
    llm = started(options)
    row: dict[str, Any] = {
        **stamp(options.commit),
        "config": Path(options.config).name,
        "options": {name: value for name, value in vars(options).items() if name not in ("out", "commit")},
        "start_seconds": round(time.perf_counter() - began, 2),
        **described(llm, options),
    }
    write(row, options.out)
    before = counts()
    if thief is not None:
        thief.begin()
    row["load"] = under_load(llm, options)
    row["load"] |= {name: count - before[name] for name, count in counts().items()} | memory()
    if thief is not None:
        row["thief"] = thief.end()
    write(row, options.out)
    load = row["load"]
    sound = load["died"] is None and not load.get("num_ooms") and not load.get("num_alloc_retries")
    return 0 if sound or options.stock else 1


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--kv-bytes", type=int, help="a pinned kv_cache_memory_bytes")
    parser.add_argument("--utilization", type=float, help="gpu_memory_utilization (vLLM's default)")
    parser.add_argument("--runner", choices=("auto", "v1", "v2"), default="auto")
    parser.add_argument("--max-seqs", type=int, default=256)
    parser.add_argument("--max-len", type=int, default=8192)
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--seconds", type=float, default=120.0, help="of load; 0: none")
    parser.add_argument("--thief", action="store_true")
    parser.add_argument("--store", help="folder of stored fits (none)")
    parser.add_argument("--budget", default="64MiB", help="without a GPU")
    parser.add_argument("--canary", help="Brim's default without")
    parser.add_argument("--eager", action="store_true", help="no compilation, no graphs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="")
    return parser.parse_args()


def on_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def started_thief() -> Any:
    from thief import Thief

    return Thief()


def started(options: argparse.Namespace) -> Any:
    from vllm import LLM

    given: dict[str, Any] = {
        "model": options.config,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "max_model_len": options.max_len,
        "max_num_batched_tokens": options.batch_tokens,
        "max_num_seqs": options.max_seqs,
        "enforce_eager": options.eager or not on_gpu(),
    }
    if options.kv_bytes is not None:
        given["kv_cache_memory_bytes"] = options.kv_bytes
    if options.utilization is not None or not on_gpu():
        given["gpu_memory_utilization"] = options.utilization or 0.2
    if not options.stock:
        settings: dict[str, Any] = {"store": options.store or False}
        if options.canary:
            settings["canary"] = options.canary
        if not on_gpu():
            settings |= {"budget": options.budget, "canary": options.canary or "4MiB"}
        given |= {"worker_cls": "brim.vllm.BrimWorker", "additional_config": {"brim": settings}}
    return LLM(**given)


def described(llm: Any, options: argparse.Namespace) -> dict[str, Any]:
    """What stands after the start."""
    import vllm

    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    cache = llm.llm_engine.vllm_config.cache_config
    return {
        "vllm": vllm.__version__,
        "runner": type(worker.model_runner).__module__,
        "blocks": cache.num_gpu_blocks,
        "kv_tokens": (cache.num_gpu_blocks - 1) * cache.block_size,
        "after_start": memory(),
        "fit": None if options.stock else worker.brim_report(),
    }


def counts() -> dict[str, int]:
    import torch

    stats = torch.cuda.memory_stats() if on_gpu() else {}
    return {name: stats[name] for name in ("num_ooms", "num_alloc_retries") if name in stats}


def memory() -> dict[str, int]:
    import torch

    if not on_gpu():
        return {}
    free, total = torch.cuda.mem_get_info()
    return {"free_bytes": free, "total_bytes": total, "peak_reserved_bytes": torch.cuda.max_memory_reserved()}


def under_load(llm: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Rounds of every kind of load until the time is over; an engine that dies is said to."""
    began = time.perf_counter()
    requests, failed, rounds, died = 0, 0, 0, None
    for batch in endless(llm, options):
        if time.perf_counter() - began >= options.seconds:
            break
        prompts, draws = map(list, zip(*batch, strict=True))
        try:
            outputs = llm.generate(prompts, draws, use_tqdm=False)
        except Exception as error:  # noqa: BLE001 - whatever kills the engine is the result
            died = f"{type(error).__name__}: {error}"[:400]
            break
        requests, rounds = requests + len(outputs), rounds + 1
        failed += sum(len(one.outputs[0].token_ids) != ANSWER_TOKENS for one in outputs)
    seconds = round(time.perf_counter() - began, 1)
    return {"seconds": seconds, "rounds": rounds, "requests": requests, "failed": failed, "died": died}


def endless(llm: Any, options: argparse.Namespace) -> Iterator[list[Request]]:
    """Long prompts; as many rows as may run, drawn with everything; prompts that are scored."""
    vocab = llm.llm_engine.vllm_config.model_config.get_vocab_size()
    draw, longest, rows = random.Random(0), options.max_len - ANSWER_TOKENS - 8, options.max_seqs
    while True:
        for count, least, most, scored in (
            (rows // 2, longest // 2, longest, 8),
            (2 * rows, 8, 64, 0),
            (max(4, rows // 16), longest * 3 // 4, longest, 1),
        ):
            yield [
                request(draw, vocab, draw.randint(least, most), n, bool(scored and n % scored == 0))
                for n in range(count)
            ]


def request(draw: random.Random, vocab: int, length: int, number: int, scored: bool) -> Request:
    from vllm import SamplingParams

    params = SamplingParams(
        max_tokens=ANSWER_TOKENS,
        temperature=0.8,
        top_p=0.9,
        top_k=vocab - 1,
        min_p=0.05,
        logprobs=20,
        frequency_penalty=0.5,
        presence_penalty=0.5,
        repetition_penalty=1.1,
        ignore_eos=True,
        detokenize=False,
        seed=number if number % 3 == 0 and on_gpu() else None,
        prompt_logprobs=20 if scored else None,
    )
    return {"prompt_token_ids": draw.choices(range(10, vocab - 10), k=length)}, params


def write(row: dict[str, Any], out: Path | None) -> None:
    text = json.dumps(row, indent=1, default=str)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
