"""vLLM with Brim's worker, or stock, under the worst load that its API allows; one JSON for each run.

    python benchmarks/inside_vllm.py MODEL [--architecture NAME] [--layers N] [--stock] [--kv-bytes N]
        [--utilization F] [--runner v1|v2] [--seconds 120] [--thief] [--store DIR] [--out FILE] [--commit HASH]

MODEL is a folder with a config.json, such a file, or a name of Brim's catalogue (with `--architecture`, which also
starts the decoder of a multimodal model alone): the weights are random, prompts are token ids. The engine runs in this
process, so that the allocator's own counts are seen: out-of-memory errors and retries during the load must be 0. With
`--thief` another process takes all free memory again and again while the load runs. Without a GPU it is a dry run on a
budget (`--budget`).

The file is written before the start, after it, and every few seconds of the load, so a run that is killed leaves what
it had: `phase` is where it was, `error` what ended it. A phase that outlasts its limit prints every thread's stack and
ends the process. Start it twice with the same `--store`: the second start validates the stored fit. Throughput beside
stock vLLM is measured by the bench that vLLM's figures come from, with
`--extra '{"worker_cls": "brim.vllm.BrimWorker"}'`.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

from dummy_models import dummy_config, own_folder
from stamp import stamp

ANSWER_TOKENS = 64
SLICE_SECONDS = 10.0  # of one kind of load
ENDED_LIMIT_S = 90.0  # for the end of the process
ERROR_CHARACTERS = 4000

# kind of load: the least and the longest prompt, as parts of the longest there may be; one of how many is scored
KINDS = {"long prompts": (0.5, 1.0, 16), "many short ones": (0.0, 0.02, 0), "scored prompts": (0.1, 1.0, 2)}


def main() -> int:
    options = read_options()
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    if options.runner != "auto":
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if options.runner == "v2" else "0"
    run = Run(options)
    try:
        run.measure()
    except Exception as error:  # noqa: BLE001 - whatever ends a start or a load is the result
        run.row["error"] = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]
        run.row["traceback"] = traceback.format_exc()[-ERROR_CHARACTERS:]
    finally:
        run.end()
    return 0 if run.sound or options.stock else 1


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--architecture", default="", help="class of the decoder, for a config that does not say")
    parser.add_argument("--layers", type=int, help="fewer layers than the config has")
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--kv-bytes", type=int, help="a pinned kv_cache_memory_bytes")
    parser.add_argument("--utilization", type=float, help="gpu_memory_utilization (vLLM's default)")
    parser.add_argument("--runner", choices=("auto", "v1", "v2"), default="auto")
    parser.add_argument("--max-seqs", type=int, default=256)
    parser.add_argument("--max-len", type=int, default=8192)
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--extra", type=json.loads, default={}, help="JSON of further arguments of vllm.LLM")
    parser.add_argument("--seconds", type=float, default=120.0, help="of load; 0: none")
    parser.add_argument("--start-limit", type=float, default=300.0, help="seconds")
    parser.add_argument("--thief", action="store_true")
    parser.add_argument("--store", help="folder of stored fits (none)")
    parser.add_argument("--budget", default="64MiB", help="without a GPU")
    parser.add_argument("--canary", help="Brim's default without")
    parser.add_argument("--eager", action="store_true", help="no compilation, no graphs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="")
    return parser.parse_args()


class Run:
    """One start and its load; `row` is what is known so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.row: dict[str, Any] = {"model": Path(options.model).name, "options": shown(options), "error": None}
        self._thief: Any = None

    @property
    def sound(self) -> bool:
        load = self.row.get("load", {})
        failures = ("failed", "num_ooms", "num_alloc_retries")
        return self.row["error"] is None and not any(load.get(name) for name in failures)

    def measure(self) -> None:
        options = self.options
        if options.thief:
            with self._phase("thief", 60):
                self._thief = started_thief()
        with self._phase("start", options.start_limit):
            began = time.perf_counter()
            llm = started(options)
            self.row["start_seconds"] = round(time.perf_counter() - began, 2)
            self.row |= stamp(options.commit) | described(llm, options)
        if options.seconds:
            with self._phase("load", options.seconds + 60):
                self._under_load(llm)
        self.row["phase"] = "ended"

    def end(self) -> None:
        """No process of this run goes on: not a neighbour, and not this one if vLLM does not end."""
        faulthandler.dump_traceback_later(ENDED_LIMIT_S, exit=True)
        if self._thief is not None:
            try:
                self.row["thief"] = self._thief.end()
            except Exception as error:  # noqa: BLE001 - the load's result is not lost for it
                self.row["thief"] = {"error": f"{type(error).__name__}: {error}"}
        self.write(print_it=True)

    def write(self, print_it: bool = False) -> None:
        text = json.dumps(self.row, indent=1, default=str)
        if self.options.out is not None:
            self.options.out.write_text(text + "\n", encoding="utf-8")
        if print_it:
            print(text, flush=True)

    @contextmanager
    def _phase(self, name: str, limit_s: float) -> Iterator[None]:
        """Where the run is, in the file; one that hangs ends the process."""
        self.row["phase"] = name
        self.write()
        faulthandler.dump_traceback_later(limit_s, exit=True)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            self.write()

    def _under_load(self, llm: Any) -> None:
        """Slices of every kind of load, twice as many requests as may run, until the time is over."""
        load = Load(llm, self.options)
        before = counts()
        if self._thief is not None:
            self._thief.begin()
        try:
            for kind in cycle(KINDS):
                if not load.run(kind, SLICE_SECONDS):
                    break
                self.row["load"] = load.figures() | since(before) | memory()
                self.write()
        finally:
            self.row["load"] = load.figures() | since(before) | memory()


class Load:
    """Requests that come as others end, so that prefills run beside decodes all the time.

    When another kind has its turn, those that have no token yet are taken back, some in the middle of their prefill:
    otherwise a slow model would never reach it.
    """

    def __init__(self, llm: Any, options: argparse.Namespace) -> None:
        from vllm.sampling_params import RequestOutputKind

        from brim.vllm.stock.load import DemandingRequests

        self._engine = llm.llm_engine
        self._new_tokens = RequestOutputKind.DELTA  # what a step's outputs have
        self._requests = DemandingRequests(self._engine.vllm_config)
        self._longest = options.max_len - ANSWER_TOKENS - 1
        self._waiting_or_running = 2 * options.max_seqs
        self._began = time.perf_counter()
        self._ends = self._began + options.seconds
        self._drawn: dict[str, int] = {}  # tokens of those that have not ended
        self._asked = self._finished = self._failed = self._taken_back = self._tokens = 0

    def run(self, kind: str, seconds: float) -> bool:
        """One kind for so long; False when the whole time is over."""
        self._take_back()
        until = min(self._ends, time.perf_counter() + seconds)
        while time.perf_counter() < until:
            self._refill(kind)
            for output in self._engine.step():
                self._count(output)
        return time.perf_counter() < self._ends

    def figures(self) -> dict[str, Any]:
        seconds = time.perf_counter() - self._began
        return {
            "seconds": round(seconds, 1),
            "requests": self._finished,
            "failed": self._failed,
            "taken_back": self._taken_back,
            "unfinished": len(self._drawn),
            "tokens_per_second": round(self._tokens / seconds, 1),
        }

    def _refill(self, kind: str) -> None:
        least, most, scored = KINDS[kind]
        while len(self._drawn) < self._waiting_or_running:
            part = least + (most - least) * ((self._asked * 37) % 101) / 100
            length = max(1, int(part * self._longest))
            is_scored = bool(scored) and self._asked % scored == 0
            prompt, drawn = self._requests.request(length, ANSWER_TOKENS, scored=is_scored)
            drawn.output_kind = self._new_tokens
            self._engine.add_request(str(self._asked), prompt, drawn)
            self._drawn[str(self._asked)] = 0
            self._asked += 1

    def _count(self, output: Any) -> None:
        """Tokens of a prompt count with the first one of its answer."""
        name, new = output.request_id, len(output.outputs[0].token_ids)
        self._tokens += new + (0 if self._drawn[name] else len(output.prompt_token_ids))
        self._drawn[name] += new
        if output.finished:
            self._finished += 1
            self._failed += self._drawn.pop(name) != ANSWER_TOKENS

    def _take_back(self) -> None:
        waiting = [name for name, tokens in self._drawn.items() if not tokens]
        self._engine.abort_request(waiting)
        for name in waiting:
            del self._drawn[name]
        self._taken_back += len(waiting)


def shown(options: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(options).items() if name not in ("out", "commit")}


def on_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def started_thief() -> Any:
    from thief import Thief

    return Thief()


def started(options: argparse.Namespace) -> Any:
    from vllm import LLM

    config = dummy_config(options.model, architecture=options.architecture, layers=options.layers)
    given: dict[str, Any] = {
        "model": str(own_folder(config)),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "max_model_len": options.max_len,
        "max_num_batched_tokens": options.batch_tokens,
        "max_num_seqs": options.max_seqs,
        "enforce_eager": options.eager or not on_gpu(),
        "disable_log_stats": True,
    }
    if options.kv_bytes is not None:
        given["kv_cache_memory_bytes"] = options.kv_bytes
    if options.utilization is not None or not on_gpu():
        given["gpu_memory_utilization"] = options.utilization or 0.2
    if not options.stock:
        given |= {"worker_cls": "brim.vllm.BrimWorker", "additional_config": {"brim": settings(options)}}
    return LLM(**{**given, **options.extra})


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Of Brim; on the CPU a budget stands for the device."""
    found: dict[str, Any] = {"store": options.store or False}
    if not on_gpu():
        found |= {"budget": options.budget, "canary": "4MiB"}
    if options.canary:
        found["canary"] = options.canary
    return found


def described(llm: Any, options: argparse.Namespace) -> dict[str, Any]:
    """What was built by the start."""
    import vllm
    from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity

    core = llm.llm_engine.engine_core.engine_core
    worker = core.model_executor.driver_worker.worker
    config = llm.llm_engine.vllm_config
    return {
        "vllm": vllm.__version__,
        "runner": type(worker.model_runner).__module__,
        "async_scheduling": config.scheduler_config.async_scheduling,
        "blocks": config.cache_config.num_gpu_blocks,
        "kv_tokens": get_kv_cache_capacity(config, core.scheduler.kv_cache_config)[0],  # as vLLM's log says it
        "after_start": memory(),
        "fit": None if options.stock else worker.brim_report(),
    }


def counts() -> dict[str, int]:
    import torch

    stats = torch.cuda.memory_stats() if on_gpu() else {}
    return {name: stats[name] for name in ("num_ooms", "num_alloc_retries") if name in stats}


def since(before: dict[str, int]) -> dict[str, int]:
    return {name: count - before[name] for name, count in counts().items()}


def memory() -> dict[str, int]:
    import torch

    if not on_gpu():
        return {}
    free, total = torch.cuda.mem_get_info()
    return {"free_bytes": free, "total_bytes": total, "peak_reserved_bytes": torch.cuda.max_memory_reserved()}


if __name__ == "__main__":
    sys.exit(main())
