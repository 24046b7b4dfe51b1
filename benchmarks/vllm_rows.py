"""What vLLM does by itself: real starts with dummy weights, and Brim's prediction beside them.

    python benchmarks/vllm_rows.py record --configs DIR --out FILE [--commit C] [--only TEXT] [--parallel N]
    python benchmarks/vllm_rows.py compare [FILE...]

`record` needs a GPU and vLLM 0.26. Every row is a process of its own that starts the engine up to the size of its KV
cache, and writes what vLLM's worker measured and which tensors were alive at the peak of its profile. Models keep their
dimensions and lose layers, which the peak does not depend on (but for layers that come before others). Rows run side by
side, so a process reads free memory as the device less what it holds itself; a row with load runs alone, whole, and
serves requests. DIR has a folder with a config.json for each model, and tokenizer and processor where images are to be
allowed; a model that is not there is started from the dimensions of Brim's catalogue.

`compare` prints prediction and truth of recorded rows; without files, of those in `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dummy_models import dummy_config, write_folder

RESULTS = Path(__file__).parent / "results" / "vllm_rows_h200.json"
TENSORS, FRAMES = 12, 2  # of those alive at the peak, and of their stacks, that a row keeps
CAPTURES = re.compile(r"Estimated (\w+) CUDA graph memory: ([\d.]+) MiB first-capture \+ \((\d+)-1\) × ([\d.]+) MiB")
NO_MEDIA = {"limit_mm_per_prompt": {"image": 0, "video": 0}}


@dataclass(frozen=True)
class Case:
    """A start of vLLM."""

    model: str  # in Brim's catalogue
    config: str  # folder of its config
    tokens: int
    seqs: int
    length: int
    layers: int = 4
    architecture: str = ""  # where the config does not say, or the decoder is started without its towers
    settings: dict[str, Any] = field(default_factory=dict)
    load: bool = False  # serve requests too, alone on the device

    @property
    def name(self) -> str:
        return f"{self.model}-{self.tokens}-{self.seqs}-{self.layers}{'-text' if self.settings == NO_MEDIA else ''}"


CASES = (
    Case("llama-3.1-8b", "meta-llama--Meta-Llama-3.1-8B", 8192, 512, 8192),
    Case("llama-3.1-8b", "meta-llama--Meta-Llama-3.1-8B", 2048, 256, 8192),
    Case("llama-3.1-8b", "meta-llama--Meta-Llama-3.1-8B", 16384, 1024, 131072),
    Case("llama-3.1-70b", "meta-llama--Meta-Llama-3.1-70B", 8192, 1024, 32768),
    Case("llama-3.2-1b", "meta-llama--Llama-3.2-1B-Instruct", 16384, 256, 32768),
    Case("qwen2.5-7b", "Qwen--Qwen2.5-7B-Instruct", 4096, 256, 32768),
    Case("qwen3-8b", "Qwen--Qwen3-8B", 8192, 256, 40960),
    Case("qwen3-8b", "Qwen--Qwen3-8B", 4096, 512, 32768, settings={"kv_cache_dtype": "fp8"}),
    Case("qwen3-14b", "Qwen--Qwen3-14B", 32768, 256, 40960),
    Case("phi-4", "microsoft--phi-4", 8192, 256, 16384, architecture="Phi3ForCausalLM"),
    Case("olmo-2-7b", "allenai--OLMo-2-1124-7B", 8192, 256, 4096, architecture="Olmo2ForCausalLM"),
    Case("granite-3.3-8b", "ibm-granite--granite-3.3-8b", 8192, 256, 32768, architecture="GraniteForCausalLM"),
    Case("yi-34b", "01-ai--Yi-34B", 8192, 512, 4096),
    Case("mistral-7b", "mistralai--Mistral-7B-Instruct-v0.3", 4096, 1024, 32768),
    Case("gemma-2-9b", "google--gemma-2-9b", 8192, 256, 8192, architecture="Gemma2ForCausalLM"),
    Case("gemma-3-1b", "google--gemma-3-1b-it", 8192, 1024, 32768, 12),
    Case("gemma-3-27b", "google--gemma-3-27b-it", 8192, 256, 32768, 12, "Gemma3ForCausalLM"),
    Case("gemma-3-27b", "google--gemma-3-27b-it", 16384, 512, 32768, 14, "Gemma3ForCausalLM"),
    Case("mixtral-8x7b", "mistralai--Mixtral-8x7B-v0.1", 8192, 256, 8192, 3),
    Case("mixtral-8x22b", "mistralai--Mixtral-8x22B-v0.1", 16384, 512, 8192, 3),
    Case("qwen3-30b-a3b", "Qwen--Qwen3-30B-A3B", 8192, 512, 8192),
    Case("qwen3-30b-a3b", "Qwen--Qwen3-30B-A3B", 8192, 512, 8192, 24),
    Case("qwen3-30b-a3b", "Qwen--Qwen3-30B-A3B", 2048, 128, 40960),
    Case("qwen3-235b-a22b", "Qwen--Qwen3-235B-A22B", 8192, 256, 32768, 3),
    Case("gpt-oss-20b", "openai--gpt-oss-20b", 8192, 512, 8192, 6),
    Case("deepseek-v2-lite", "deepseek-ai--DeepSeek-V2-Lite", 8192, 256, 8192),
    Case("deepseek-v2-lite", "deepseek-ai--DeepSeek-V2-Lite", 16384, 1024, 32768),
    Case("deepseek-r1", "deepseek-ai--DeepSeek-R1", 8192, 256, 8192),
    Case("qwen3-next-80b", "Qwen--Qwen3-Next-80B-A3B", 8192, 256, 8192, architecture="Qwen3NextForCausalLM"),
    Case("qwen3.5-27b", "Qwen--Qwen3.5-27B", 8192, 256, 32768, settings=NO_MEDIA),
    Case("nemotron-nano-12b-v2", "nvidia--NVIDIA-Nemotron-Nano-12B-v2-Base", 8192, 256, 8192, 10),
    Case("qwen2.5-vl-7b", "Qwen--Qwen2.5-VL-7B-Instruct", 8192, 256, 32768, settings=NO_MEDIA),
    Case("qwen2.5-vl-7b", "Qwen--Qwen2.5-VL-7B-Instruct", 8192, 256, 32768),
    Case("llama-3.1-8b", "meta-llama--Meta-Llama-3.1-8B", 16384, 1024, 131072, 32, load=True),
)

# name: (tokens of a prompt, tokens of an answer, how they are drawn)
LOADS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "greedy": (512, 8, {"temperature": 0}),
    "top_p": (128, 8, {"temperature": 0.8, "top_p": 0.95, "top_k": 50}),
    "logprobs": (128, 8, {"temperature": 0.8, "top_p": 0.9, "logprobs": 20}),
    "penalties": (128, 8, {"temperature": 0.8, "top_p": 0.9, "logprobs": 20, "repetition_penalty": 1.1}),
    "prompt_logprobs": (512, 2, {"temperature": 0, "prompt_logprobs": 5}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record")
    record.add_argument("--configs", type=Path, required=True)
    record.add_argument("--out", type=Path, default=RESULTS)
    record.add_argument("--commit", default="unknown")
    record.add_argument("--only", nargs="*", default=[], help="texts, one of which a row's name holds")
    record.add_argument("--parallel", type=int, default=8)
    record.add_argument("--limit-s", type=float, default=160)
    compare = commands.add_parser("compare")
    compare.add_argument("files", nargs="*", type=Path)
    one = commands.add_parser("one")
    one.add_argument("start", help="JSON: folder and case")
    one.add_argument("out", type=Path)
    commands.add_parser("stamp").add_argument("commit")
    arguments = parser.parse_args()
    if arguments.command == "record":
        record_all(arguments)
    elif arguments.command == "compare":
        print_comparison(arguments.files or [RESULTS])
    elif arguments.command == "stamp":
        print_stamp(arguments.commit)
    else:
        start = json.loads(arguments.start)
        start_one(start["folder"], Case(**start["case"]), arguments.out)


# --- every case in a process of its own


@dataclass(frozen=True)
class Started:
    case: Case
    process: subprocess.Popen[bytes]
    out: Path
    log: Path
    since: float

    def ended(self, limit_s: float) -> bool:
        limit_s *= 2 if self.case.load else 1
        return self.process.poll() is not None or time.monotonic() - self.since > limit_s

    def row(self) -> dict[str, Any]:
        self.process.kill()
        self.process.wait()
        text = self.log.read_text()
        row = json.loads(self.out.read_text()) if self.out.exists() else {}
        row = {"model": self.case.model, "layers": self.case.layers, **row}
        row["graphs"] = [
            {"mode": mode, "first_mib": float(first), "graphs": int(graphs), "each_mib": float(each)}
            for mode, first, graphs, each in CAPTURES.findall(text)
        ]
        if "kv_tokens" not in row:
            row["error"] = text[-1500:]
        return row


def record_all(arguments: argparse.Namespace) -> None:
    """Start the cases, several at a time, and write the rows there are after each of them."""
    stamped = json.loads(subprocess.check_output([sys.executable, __file__, "stamp", arguments.commit]))
    waiting = [case for case in CASES if not arguments.only or any(text in case.name for text in arguments.only)]
    running: list[Started] = []
    rows: list[dict[str, Any]] = []
    scratch = Path(tempfile.mkdtemp())
    while waiting or running:
        while waiting and may_start(waiting[0], running, arguments.parallel):
            running.append(start_process(waiting.pop(0), arguments.configs, scratch))
        for started in [one for one in running if one.ended(arguments.limit_s)]:
            running.remove(started)
            rows.append(started.row())
            print(started.case.name, rows[-1].get("kv_tokens"), rows[-1].get("error", "")[-300:], flush=True)
            arguments.out.write_text(json.dumps({**stamped, "rows": rows}, indent=1))
        time.sleep(0.2)


def may_start(case: Case, running: list[Started], parallel: int) -> bool:
    """Whether there is room; a case with load waits for all others, and they for it."""
    alone = case.load or any(one.case.load for one in running)
    return not running if alone else len(running) < parallel


def start_process(case: Case, configs: Path, scratch: Path) -> Started:
    folder = scratch / case.name
    folder.mkdir(parents=True)
    for file in (configs / case.config).glob("*.json"):
        shutil.copyfile(file, folder / file.name)
    known = configs / case.config
    source = str(known) if known.is_dir() else case.model
    write_folder(dummy_config(source, architecture=case.architecture, layers=case.layers), folder)
    out, log = folder / "row.json", folder / "log.txt"
    environment = os.environ | {
        "VLLM_CACHE_ROOT": str(folder / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "DEBUG",
    }
    start = json.dumps({"folder": str(folder), "case": asdict(case)})
    process = subprocess.Popen(
        [sys.executable, __file__, "one", start, str(out)],
        env=environment,
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
    )
    return Started(case, process, out, log, time.monotonic())


def print_stamp(commit: str) -> None:
    """Asked of another process: the one that waits for the rows holds no device memory."""
    import vllm
    from stamp import stamp

    stamped = stamp(commit)
    stamped["versions"]["vllm"] = vllm.__version__
    print(json.dumps(stamped))


# --- one start


class Sized(BaseException):
    """The engine knows the size of its KV cache: nothing more is wanted of this start."""


def start_one(folder: str, case: Case, out: Path) -> None:
    """Start vLLM up to the size of its KV cache, and write what its worker measured."""
    row: dict[str, Any] = {}

    def save(**found: Any) -> None:
        row.update(found)
        out.write_text(json.dumps(row, default=str))

    if not case.load:
        see_only_own_memory()
    watch_worker(save, case.load)
    from vllm import LLM

    try:
        engine = LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=not Path(folder, "tokenizer.json").exists(),
            max_num_batched_tokens=case.tokens,
            max_num_seqs=case.seqs,
            max_model_len=case.length,
            enable_prefix_caching=True,
            **case.settings,
        )
    except Sized:
        return
    save(under_load=under_load(engine, case.seqs))


def under_load(engine: Any, seqs: int) -> dict[str, dict[str, int]]:
    """Memory when the engine has started, and the most of it that each kind of load took."""
    import random

    import torch
    from vllm import SamplingParams

    def reading() -> dict[str, int]:
        return {
            "free": torch.cuda.mem_get_info()[0],
            "allocated": torch.cuda.memory_allocated(),
            "reserved": torch.cuda.memory_reserved(),
            "peak_allocated": torch.cuda.max_memory_allocated(),
            "peak_reserved": torch.cuda.max_memory_reserved(),
        }

    vocab, draw = engine.llm_engine.model_config.get_vocab_size(), random.Random(0)
    found = {"started": reading()}
    for name, (length, answer, drawn) in LOADS.items():
        torch.cuda.reset_peak_memory_stats()
        prompts = [{"prompt_token_ids": draw.choices(range(5, vocab), k=length)} for _ in range(seqs)]
        params = SamplingParams(max_tokens=answer, ignore_eos=True, detokenize=False, **drawn)
        engine.generate(prompts, params, use_tqdm=False)
        found[name] = reading()
    return found


def see_only_own_memory() -> None:
    """Free memory as if no other process used the device."""
    import torch
    from vllm.third_party import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    total = torch.cuda.mem_get_info()[1]

    def info(*_: Any) -> tuple[int, int]:
        torch.cuda.synchronize()
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return total - next(one.usedGpuMemory for one in processes if one.pid == os.getpid()), total

    torch.accelerator.get_memory_info = info


def watch_worker(save: Callable[..., None], go_on: bool) -> None:
    """Note what the worker measures, and stop when the KV cache has its size, or go on."""
    import torch
    from vllm.v1.engine import core
    from vllm.v1.worker.gpu_worker import Worker

    determine, size_caches = Worker.determine_available_memory, core.get_kv_cache_configs

    def determine_available_memory(worker: Any) -> int:
        runner = worker.model_runner
        profile, before = runner.profile_run, torch.cuda.memory_allocated()

        def profile_run() -> None:
            torch.cuda.memory._record_memory_history(max_entries=2_000_000, stacks="python", context="alloc")
            profile()
            snapshot = torch.cuda.memory._snapshot()
            torch.cuda.memory._record_memory_history(enabled=None)
            save(alive_at_peak=alive_at_peak(snapshot["device_traces"][0]))

        runner.profile_run = profile_run
        kv_bytes = determine(worker)
        save(
            runner=type(runner).__module__,
            weights_bytes=int(runner.model_memory_usage),
            made_before_profile_bytes=before - int(runner.model_memory_usage),
            profiled_peak_activation_bytes=worker.peak_activation_memory,
            non_torch_bytes=worker.non_torch_memory,
            graphs_estimated_bytes=worker.cudagraph_memory_estimate,
            gpu_memory_utilization=worker.cache_config.gpu_memory_utilization,
            requested_bytes=worker.requested_memory,
            total_bytes=worker.init_snapshot.total_memory,
            kv_bytes=kv_bytes,
        )
        return int(kv_bytes)

    def get_kv_cache_configs(config: Any, specs: Any, memory: Any) -> Any:
        caches = size_caches(config, specs, memory)
        cache = caches[0]
        block = min(group.kv_cache_spec.block_size for group in cache.kv_cache_groups)
        save(
            kv_tokens=cache.num_blocks * block,
            block_tokens=block,
            groups=[len(group.layer_names) for group in cache.kv_cache_groups],
            kv_dtype=config.cache_config.cache_dtype,
            max_num_seqs=config.scheduler_config.max_num_seqs,
            max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
            max_model_len=config.model_config.max_model_len,
            media=core.MULTIMODAL_REGISTRY.supports_multimodal_inputs(config.model_config),
        )
        if go_on:
            return caches
        raise Sized

    Worker.determine_available_memory = determine_available_memory
    core.get_kv_cache_configs = get_kv_cache_configs


def alive_at_peak(trace: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tensors alive when the traced allocations were highest, largest first."""
    alive: dict[int, dict[str, Any]] = {}
    now = highest = 0
    found: list[dict[str, Any]] = []
    for event in trace:
        if event["action"] == "alloc":
            alive[event["addr"]] = event
            now += event["size"]
            if now > highest:
                highest, found = now, list(alive.values())
        elif event["action"] == "free_completed":
            now -= alive.pop(event["addr"], {"size": 0})["size"]
    largest = sorted(found, key=lambda event: -event["size"])[:TENSORS]
    return [{"bytes": event["size"], "at": allocated_at(event.get("frames", []))} for event in largest]


def allocated_at(frames: list[dict[str, Any]]) -> list[str]:
    return [f"{'/'.join(one['filename'].split('/')[-2:])} {one['name']}" for one in frames[:FRAMES]]


# --- prediction and truth


@dataclass(frozen=True)
class Compared:
    """A row beside what Brim predicts for it."""

    model: str
    limits: str
    activation_bytes: int
    predicted_activation_bytes: int
    kv_tokens: int
    predicted_kv_tokens: int

    @property
    def activation_error(self) -> float:
        return self.predicted_activation_bytes / self.activation_bytes - 1

    @property
    def kv_error(self) -> float:
        return self.predicted_kv_tokens / self.kv_tokens - 1


def compared(row: dict[str, Any], source: str, device: str = "h200") -> Compared:
    """A recorded row and the prediction; `source` is the model as Brim finds it."""
    from brim.model.source import load_model
    from brim.model.weights import weight_bytes
    from brim.planning.devices import find_device
    from brim.planning.vllm.default import engine_default
    from brim.planning.vllm.run import plan_run
    from brim.records.model import Dtype

    spec = load_model(source)
    spec = replace(spec, layers=spec.layers[: row["layers"]])
    if not row.get("media"):
        spec = replace(spec, towers=())
    card = find_device(device)
    run = plan_run(
        spec,
        card,
        Dtype.FP8 if str(row.get("kv_dtype", "auto")).startswith("fp8") else Dtype.BF16,
        batch_tokens=row["max_num_batched_tokens"],
        max_seqs=row["max_num_seqs"],
        max_len=row["max_model_len"],
    )
    found = engine_default(spec, card, weight_bytes(spec).rank_bytes, run)
    return Compared(
        row["model"],
        f"{row['max_num_batched_tokens']} tokens, {row['max_num_seqs']} requests",
        row["profiled_peak_activation_bytes"],
        found.activation_bytes,
        row["kv_tokens"],
        found.kv_tokens,
    )


def print_comparison(files: list[Path]) -> None:
    header = ("model", "limits", "peak", "predicted", "error", "KV tokens", "predicted", "error")
    print("{:<32}{:<26}{:>13}{:>13}{:>8}{:>12}{:>12}{:>9}".format(*header))
    for file in files:
        for row in json.loads(file.read_text())["rows"]:
            if "error" in row:
                print(f"{row['model']:<32}did not start")
                continue
            folder = file.parent.parent / "configs" / row["model"]
            one = compared(row, str(folder) if folder.exists() else row["model"])
            print(
                f"{one.model:<32}{one.limits:<26}{one.activation_bytes:>13}{one.predicted_activation_bytes:>13}"
                f"{one.activation_error:>8.2%}{one.kv_tokens:>12}{one.predicted_kv_tokens:>12}{one.kv_error:>9.3%}"
            )


if __name__ == "__main__":
    main()
