"""The engine's Triton kernels beside attention in float64, and how fast they are.

    PYTHONPATH=src python tests/gpu/check_attention.py [--out FILE] [--only store|decode|prefill|speed]
    PYTHONPATH=src TRITON_INTERPRET=1 python tests/gpu/check_attention.py --tiny      # without a GPU, no timing

Whatever a kernel must not read (unused slots, blocks behind the window, scratch) is NaN, and so is what it must write.
Prints a line per case and ends with status 1 if one is wrong. A script and not a test: it needs a GPU; the unit test
runs its tiny sizes in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton

from brim.engine.attention.kernels.decode import decode
from brim.engine.attention.kernels.prefill import prefill
from brim.engine.attention.kernels.splits import DecodeScratch, ScratchSize, choose_splits
from brim.engine.attention.kernels.store import store_kv
from brim.engine.attention.kernels.tiles import TileConfig, decode_config, prefill_config

FLOAT8 = torch.float8_e4m3fn
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# (absolute, relative): weights and outputs are rounded to the type once each.
TOLERANCES = {"bf16": (1e-2, 1.6e-2), "fp16": (2e-3, 2e-3), "fp32": (2e-5, 2e-5)}
SPAN = 24  # tokens seen as a whole, where a case has such


@dataclass(frozen=True, slots=True)
class Case:
    """A shape of attention, and the lengths of requests it is tried on."""

    name: str
    heads: int = 32
    kv_heads: int = 8
    key_dim: int = 128
    value_dim: int = 128
    kind: str = "bf16"
    float8: bool = False
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    spans: bool = False
    splits: int = 1
    block_size: int = 16
    kv_lens: tuple[int, ...] = (1, 600, 17, 0, 1024, 333)
    q_lens: tuple[int, ...] = ()
    config: TileConfig | None = None

    @property
    def dtype(self) -> torch.dtype:
        return TYPES[self.kind]

    @property
    def cache_dtype(self) -> torch.dtype:
        return FLOAT8 if self.float8 else self.dtype


CHUNKS: dict[str, Any] = {"kv_lens": (200, 333, 17, 600, 64, 1), "q_lens": (200, 100, 17, 1, 0, 1)}
WIDE_LATENT: dict[str, Any] = {"heads": 16, "kv_heads": 1, "key_dim": 576, "value_dim": 512}
GPT_OSS: dict[str, Any] = {"heads": 64, "key_dim": 64, "value_dim": 64, "sinks": True, "window": 128}
GEMMA_2: dict[str, Any] = {"heads": 16, "key_dim": 256, "value_dim": 256, "softcap": 50.0, "window": 150}

DECODE = (
    Case("gqa4 d128"),
    Case("gqa4 d128 split", splits=8),
    Case("gqa4 d128 block 64", block_size=64, splits=2),
    Case("gqa7 window split", heads=28, kv_heads=4, window=100, splits=4),
    Case("mha d64 fp16", heads=8, key_dim=64, value_dim=64, kind="fp16"),
    Case("mqa71 d64", heads=71, kv_heads=1, key_dim=64, value_dim=64, splits=2),
    Case("sinks window d64", **GPT_OSS),
    Case("sinks d64 split", **{**GPT_OSS, "window": None}, splits=4),
    Case("softcap window d256", **GEMMA_2),
    Case("float8 d128 split", float8=True, splits=2),
    Case("float8 d80", heads=8, key_dim=80, value_dim=80, float8=True),
    Case("mha 192/128", heads=16, kv_heads=16, key_dim=192),
    Case("mqa 576/512 split", **WIDE_LATENT, splits=4),
    Case("mqa128 576/512", **{**WIDE_LATENT, "heads": 128}),
    Case("gqa4 d512", heads=8, kv_heads=2, key_dim=512, value_dim=512, splits=2),
    Case("gqa2 d96", heads=8, kv_heads=4, key_dim=96, value_dim=96),
    Case(
        "fp32 d112 softcap sinks", heads=8, kv_heads=2, key_dim=112, value_dim=112, kind="fp32", softcap=5.0, sinks=True
    ),
)
PREFILL = (
    Case("gqa4 d128", **CHUNKS),
    Case("gqa4 d128 many short", kv_lens=(30, 9, 300, 5) * 40, q_lens=(2, 9, 4, 3) * 40),
    Case("gqa4 d128 few rows", kv_lens=(30, 5, 600), q_lens=(3, 4, 2)),
    Case("gqa4 d128 spans", spans=True, **CHUNKS),
    Case("gqa7 window", heads=28, kv_heads=4, window=50, **CHUNKS),
    Case("gqa4 window spans", window=100, spans=True, **CHUNKS),
    Case("mha d64 fp16", heads=8, key_dim=64, value_dim=64, kind="fp16", block_size=32, **CHUNKS),
    Case("mqa71 d64", heads=71, kv_heads=1, key_dim=64, value_dim=64, **CHUNKS),
    Case("sinks window d64", **GPT_OSS, **CHUNKS),
    Case("softcap window d256", **GEMMA_2, **CHUNKS),
    Case("float8 d128", float8=True, **CHUNKS),
    Case("mha 192/128", heads=16, kv_heads=16, key_dim=192, **CHUNKS),
    Case("mqa128 576/512", **{**WIDE_LATENT, "heads": 128}, **CHUNKS),
    Case("gqa4 d512", heads=8, kv_heads=2, key_dim=512, value_dim=512, **CHUNKS),
    Case("gqa2 d80", heads=8, kv_heads=4, key_dim=80, value_dim=80, **CHUNKS),
    Case("gqa2 d96 sinks", heads=8, kv_heads=4, key_dim=96, value_dim=96, sinks=True, **CHUNKS),
    Case("fp32 d112 softcap", heads=8, kv_heads=2, key_dim=112, value_dim=112, kind="fp32", softcap=5.0, **CHUNKS),
)
STORE = (
    Case("gqa d128", **CHUNKS),
    Case("float8 d80", heads=8, key_dim=80, value_dim=80, float8=True, **CHUNKS),
    Case("fp32 192/128, 96 heads", heads=96, kv_heads=96, key_dim=192, kind="fp32", **CHUNKS),
    Case("mqa 576/512", **WIDE_LATENT, **CHUNKS),
)
CASES = {"store": STORE, "decode": DECODE, "prefill": PREFILL}

DECODE_CONFIGS = (
    TileConfig(16, 32, 2, 3),
    TileConfig(16, 32, 2, 4),
    TileConfig(16, 32, 4, 3),
    TileConfig(16, 32, 4, 4),
    TileConfig(16, 64, 4, 2),
    TileConfig(16, 64, 4, 3),
    TileConfig(16, 64, 4, 4),
    TileConfig(16, 64, 4, 3, 96),
    TileConfig(16, 64, 8, 3),
    TileConfig(16, 128, 8, 2),
)
PREFILL_CONFIGS = (
    TileConfig(128, 64, 8, 2),
    TileConfig(128, 64, 8, 3),
    TileConfig(128, 128, 8, 2),
    TileConfig(128, 128, 8, 3),
    TileConfig(128, 32, 8, 3, 128),
    TileConfig(64, 64, 4, 2),
    TileConfig(64, 64, 4, 3),
    TileConfig(64, 32, 4, 3, 168),
)


def shrunk(case: Case) -> Case:
    """Small enough for the interpreter, with tiles small enough that there are still several.

    In fp16 for bf16: the interpreter keeps bf16 as integers, and multiplies matrices of them as such.
    """
    kv_heads = min(case.kv_heads, 2)
    group = case.heads // case.kv_heads
    if group > 16:  # still more than a tile has, and as odd as it was
        group = 16 + (group % 16 or 16)
    prefills = bool(case.q_lens)
    small = min(16, len(case.kv_lens))
    return replace(
        case,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        kind="fp16" if case.kind == "bf16" else case.kind,
        window=case.window and case.window // 8,
        block_size=8 if case.block_size == 16 else 16,
        kv_lens=tuple((length + 7) // 8 for length in case.kv_lens[:small]),
        q_lens=tuple((length + 7) // 8 for length in case.q_lens[:small]),
        config=TileConfig(32 if prefills and group % 3 else 16, 32, 4, 2),
    )


class Setting:
    """Tensors of a case: a pool in which only what is visible is a number."""

    def __init__(self, case: Case, device: str) -> None:
        self.case = case
        torch.manual_seed(len(case.name) * 7 + case.heads)
        q_lens = case.q_lens or (1,) * len(case.kv_lens)
        self.q_lens, self.tokens = q_lens, sum(q_lens)
        size = case.block_size
        columns = max(case.kv_lens) // size + 2
        blocks = 1 + sum(-(-length // size) for length in case.kv_lens)
        spare = torch.randperm(blocks - 1) + 1  # block 0 stays NaN, and all unused table entries lead to it
        self.table = torch.zeros((len(case.kv_lens) + 3, columns), dtype=torch.int32)
        self.rows = torch.randperm(len(case.kv_lens) + 3)[: len(case.kv_lens)].to(torch.int32)
        self.keys = torch.full((blocks * size, case.kv_heads, case.key_dim), float("nan"))
        self.values = torch.full((blocks * size, case.kv_heads, case.value_dim), float("nan"))
        taken = 0
        for row, kv_len, q_len in zip(self.rows.tolist(), case.kv_lens, q_lens, strict=True):
            first = 0 if case.window is None else max(0, kv_len - max(q_len, 1) + 1 - case.window)
            for column in range(first // size, -(-kv_len // size)):
                self.table[row, column] = spare[taken]
                taken += 1
            places = self.slots(row, first, kv_len)
            self.keys[places] = torch.randn((kv_len - first, case.kv_heads, case.key_dim))
            self.values[places] = torch.randn((kv_len - first, case.kv_heads, case.value_dim))
        self.keys, self.values = self.keys.to(device, case.cache_dtype), self.values.to(device, case.cache_dtype)
        self.table, self.rows = self.table.to(device), self.rows.to(device)
        self.kv_lens = torch.tensor(case.kv_lens, dtype=torch.int32, device=device)
        self.q_starts = torch.tensor([0, *q_lens], device=device).cumsum(0).to(torch.int32)
        # Twice a unit normal, so that some keys matter more than others; a transposed view, as models give it.
        shape = (case.heads, self.tokens, case.key_dim)
        self.query = (2 * torch.randn(shape)).to(device, case.dtype).transpose(0, 1)
        self.sinks = torch.randn(case.heads).to(device, case.dtype) if case.sinks else None
        self.scale = case.key_dim**-0.5
        self.until = self.spans().to(device) if case.spans else None
        self.out = torch.full((self.tokens, case.heads, case.value_dim), float("nan"), dtype=case.dtype, device=device)

    def slots(self, row: int, first: int, end: int) -> torch.Tensor:
        places = torch.arange(first, end, device=self.table.device)
        size = self.case.block_size
        return self.table[row, places // size].long() * size + places % size

    def spans(self) -> torch.Tensor:
        """Every third run of SPAN positions is seen as a whole (perhaps past the chunk's end); 0 means causal."""
        parts = []
        for kv_len, q_len in zip(self.case.kv_lens, self.q_lens, strict=True):
            position = torch.arange(kv_len - q_len, kv_len)
            run = position // SPAN
            parts.append(torch.where(run % 3 == 1, (run + 1) * SPAN - 1, 0))
        return torch.cat(parts).to(torch.int32)

    def options(self) -> dict[str, Any]:
        case = self.case
        return {
            "block_size": case.block_size,
            "scale": self.scale,
            "window": case.window,
            "softcap": case.softcap,
            "sinks": self.sinks,
            "config": case.config,
        }

    def expected(self) -> torch.Tensor:
        """Attention in float64, request by request."""
        case, device = self.case, self.query.device
        parts = []
        starts = self.q_starts.tolist()
        for index, (row, kv_len) in enumerate(zip(self.rows.tolist(), case.kv_lens, strict=True)):
            query = self.query[starts[index] : starts[index + 1]].double()
            slots = self.slots(row, 0, kv_len)
            group = case.heads // case.kv_heads
            keys = self.keys.float()[slots].double().repeat_interleave(group, 1)
            values = self.values.float()[slots].double().nan_to_num(0.0).repeat_interleave(group, 1)
            logits = torch.einsum("qhd,khd->hqk", query, keys) * self.scale
            if case.softcap is not None:
                logits = case.softcap * torch.tanh(logits / case.softcap)
            place = torch.arange(kv_len, device=device)[None, :]
            own = torch.arange(kv_len - len(query), kv_len, device=device)[:, None]
            seen = place <= own
            if case.window is not None:
                seen = seen & (place > own - case.window)
            if self.until is not None:
                until = self.until[starts[index] : starts[index + 1], None]
                seen = seen | ((place > own) & (place <= until))
            logits = logits.masked_fill(~seen, float("-inf"))
            sinks = self.sinks.double() if self.sinks is not None else torch.full((case.heads,), -1e30).to(logits)
            weights = torch.cat([logits, sinks[:, None, None].expand(-1, len(query), 1)], -1).softmax(-1)[..., :-1]
            parts.append(torch.einsum("hqk,khd->qhd", weights, values))
        return torch.cat(parts)


def check_decode(case: Case, device: str) -> float:
    setting = Setting(case, device)
    scratch = None
    if case.splits > 1:
        size = ScratchSize.of_call(len(case.kv_lens) + 1, case.heads, case.value_dim, case.splits)
        scratch = DecodeScratch.allocate(size, device)
        scratch.partials.fill_(float("nan"))
        scratch.stats.fill_(float("nan"))
    decode(
        setting.query,
        setting.keys,
        setting.values,
        setting.table,
        setting.rows,
        setting.kv_lens,
        splits=case.splits,
        scratch=scratch,
        out=setting.out,
        shortest_part=case.block_size * 2,
        **setting.options(),
    )
    return difference(case, setting.out, setting.expected())


def check_prefill(case: Case, device: str) -> float:
    setting = Setting(case, device)
    prefill(
        setting.query,
        setting.keys,
        setting.values,
        setting.table,
        setting.rows,
        setting.q_starts,
        setting.kv_lens,
        max_q=max(case.q_lens),
        visible_until=setting.until,
        out=setting.out,
        **setting.options(),
    )
    return difference(case, setting.out, setting.expected())


def check_store(case: Case, device: str) -> float:
    """Exact: a copy, but for the conversion to 8 bits. Keys are a transposed view, values a slice of a wider one."""
    setting = Setting(case, device)
    tokens, heads = setting.tokens, case.kv_heads
    key = (200 * torch.randn((heads, tokens, case.key_dim))).to(device, case.dtype).transpose(0, 1)
    wide = (200 * torch.randn((tokens, 3 * heads * case.value_dim))).to(device, case.dtype)
    value = wide[:, heads * case.value_dim : 2 * heads * case.value_dim].view(tokens, heads, case.value_dim)
    if case.float8 and device == "cpu":  # the interpreter does not carry when it rounds up: nothing to round
        for new in (key, value):
            new.copy_(torch.where(new.abs() < 448, new.clamp(-448, 448).to(FLOAT8).to(case.dtype), new))
    slots = torch.randperm(len(setting.keys))[:tokens].to(device)
    slots[::5] = -1
    caches = [setting.keys, setting.values]
    for cache in caches:
        cache.copy_(torch.ones(cache.shape))
    wanted = [cache.clone().float() for cache in caches]
    for cache, new in zip(wanted, (key, value), strict=True):
        new = new.float().clamp(-448, 448).to(FLOAT8).float() if case.float8 else new.float()
        cache[slots[slots >= 0]] = new[slots >= 0]
    store_kv(key, value, *caches, slots)
    return max(float((cache.float() - want).abs().max()) for cache, want in zip(caches, wanted, strict=True)) * 1e9


def difference(case: Case, found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest error in units of what is tolerated; anything not finite is infinitely wrong."""
    absolute, relative = TOLERANCES[case.kind]
    error = (found.double() - wanted).abs() / (absolute + relative * wanted.abs())
    return float(error.max()) if bool(error.isfinite().all()) else float("inf")


CHECKS: dict[str, Callable[[Case, str], float]] = {
    "store": check_store,
    "decode": check_decode,
    "prefill": check_prefill,
}


def check(task: tuple[str, Case, str]) -> dict[str, Any]:
    kernel, case, device = task
    started = time.perf_counter()
    try:
        error, problem = CHECKS[kernel](case, device), ""
    except Exception as failure:  # noqa: BLE001 - the other cases are still to be tried; failures are reported
        error, problem = float("inf"), f"{type(failure).__name__}: {str(failure)[:300]}"
        traceback.print_exc(limit=4)
    return {
        "kernel": kernel,
        "case": case.name,
        "error": error,
        "ok": error <= 1,
        "problem": problem,
        "seconds": time.perf_counter() - started,
    }


# Speed.


@dataclass(frozen=True, slots=True)
class Run:
    """One kernel on one size with one config: what is timed."""

    kernel: str
    requests: int
    length: int
    config: TileConfig
    splits: int = 1
    float8: bool = False

    def brief(self) -> Run:
        """Compiles to the same code, and is over at once."""
        return replace(self, requests=2, length=64)


def runs() -> list[Run]:
    plain = decode_config(128, 128, 4, torch.bfloat16, torch.bfloat16)
    eight = decode_config(128, 128, 4, torch.bfloat16, FLOAT8)
    packed = prefill_config(128, 128, 8192, torch.bfloat16)
    splits = choose_splits(8, 8, 8192, 132)
    return [
        *(Run("decode", requests, 600, config) for config in DECODE_CONFIGS for requests in (128, 256, 512)),
        *(Run("decode", 256, 600, replace(eight, stages=depth), float8=True) for depth in (3, 4, 5)),
        *(Run("decode", 128, 600, plain, splits=count) for count in (2, 4)),
        *(Run("decode", 8, 8192, plain, splits=count) for count in (splits // 2, splits, splits * 2)),
        *(Run("prefill", *size, config) for config in PREFILL_CONFIGS for size in ((16, 512), (1, 8192))),
        Run("prefill", 1, 8192, packed, float8=True),
        *(Run("store", tokens, 1, plain) for tokens in (512, 8192)),
    ]


def prepared(run: Run) -> tuple[Callable[[], Any], float, str]:
    """The call, its work, and the unit of work a second."""
    requests, length = run.requests, run.length
    columns = -(-length // 16)
    slots = requests * columns * 16
    bf16 = partial(torch.randn, dtype=torch.bfloat16, device="cuda")
    keys, values = bf16((slots, 8, 128)), bf16((slots, 8, 128))
    if run.kernel == "store":
        new = bf16((requests, 48, 128))
        places = torch.randperm(slots, device="cuda")[:requests]
        return partial(store_kv, new[:, 32:40], new[:, 40:], keys, values, places), requests * 8192 / 1e12, "TB/s"
    if run.float8:
        keys, values = keys.to(FLOAT8), values.to(FLOAT8)
    table = torch.randperm(requests * columns, device="cuda").to(torch.int32).view(requests, columns)
    rows = torch.arange(requests, dtype=torch.int32, device="cuda")
    lens = torch.full((requests,), length, dtype=torch.int32, device="cuda")
    options: dict[str, Any] = {"block_size": 16, "scale": 128**-0.5, "config": run.config}
    if run.kernel == "decode":
        scratch = DecodeScratch.allocate(ScratchSize.of_call(requests, 32, 128, run.splits), "cuda")
        call = partial(decode, bf16((requests, 32, 128)), keys, values, table, rows, lens)
        work = 2 * requests * length * 1024 * keys.itemsize / 1e12
        return partial(call, splits=run.splits, scratch=scratch, **options), work, "TB/s"
    starts = torch.arange(requests + 1, dtype=torch.int32, device="cuda") * length
    query = bf16((32, requests * length, 128)).transpose(0, 1)
    work = requests * 4 * 32 * 128 * length * (length + 1) / 2 / 1e12
    return partial(prefill, query, keys, values, table, rows, starts, lens, max_q=length, **options), work, "TFLOP/s"


def compile_run(run: Run) -> str:
    """Compile in a process of its own; the code lands in Triton's cache on disk. Says what went wrong, if anything."""
    try:
        prepared(run.brief())[0]()
        torch.cuda.synchronize()
    except Exception as failure:  # noqa: BLE001 - a config may need more shared memory than there is
        return f"{type(failure).__name__}: {str(failure)[:120]}"
    return ""


def seconds(call: Callable[[], Any], calls: int = 10) -> float:
    """Of one call, replayed from a CUDA graph so that launching costs nothing; the best of three."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    graph.replay()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    taken = []
    for _ in range(3):
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end) / 1000 / calls)
    return min(taken)


def flash_tflops() -> float:
    """What torch's own attention reaches on the long prompt, as a yardstick."""
    from torch.nn.functional import scaled_dot_product_attention

    query, key, value = (torch.randn((1, 32, 8192, 128), dtype=torch.bfloat16, device="cuda") for _ in range(3))
    call = partial(scaled_dot_product_attention, query, key, value, is_causal=True)
    return 4 * 32 * 128 * 8192 * 8193 / 2 / 1e12 / seconds(call)


def timed(run: Run, compiled: str) -> dict[str, Any]:
    row: dict[str, Any] = {**asdict(run), "problem": compiled}
    config = run.config
    label = (
        f"{run.kernel:8} {run.requests:4} × {run.length:5} splits {run.splits:2} {'fp8' if run.float8 else 'bf16':5}"
    )
    label += (
        f"m{config.block_m:<4}n{config.block_n:<4}w{config.warps} s{config.stages} r{config.max_registers or '-':<4}"
    )
    if compiled:
        print(f"{label}  {compiled}", flush=True)
        return row
    call, work, unit = prepared(run)
    row["seconds"] = seconds(call)
    row[unit] = work / row["seconds"]
    print(f"{label}  {row['seconds'] * 1e6:9.1f} us {row[unit]:8.2f} {unit}", flush=True)
    return row


def work(task: tuple[str, Case, str] | Run) -> Any:
    return compile_run(task) if isinstance(task, Run) else check(task)


def worked(tasks: list[Any], workers: int) -> list[Any]:
    """Compiling takes most of the time and one core: shared out over processes."""
    if workers < 2:
        return [work(task) for task in tasks]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return pool.map(work, tasks, chunksize=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", choices=("store", "decode", "prefill", "speed"))
    parser.add_argument("--tiny", action="store_true", help="sizes for Triton's interpreter, no timing")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth case of a kernel")
    parser.add_argument("--workers", type=int, default=12)
    arguments = parser.parse_args()
    device = "cpu" if arguments.tiny else "cuda"
    workers = 1 if arguments.tiny else arguments.workers
    started = time.perf_counter()

    wanted = [kernel for kernel in CHECKS if arguments.only in (None, kernel)]
    tasks = [
        (kernel, shrunk(case) if arguments.tiny else case, device)
        for kernel in wanted
        for case in CASES[kernel][:: arguments.every]
    ]
    every = runs() if not arguments.tiny and arguments.only in (None, "speed") else []
    different = list(dict.fromkeys(run.brief() for run in every))
    done = worked([*tasks, *different], workers)
    checked, problems = done[: len(tasks)], dict(zip(different, done[len(tasks) :], strict=True))
    for row in checked:
        verdict, took = "ok   " if row["ok"] else "WRONG", f"{row['seconds']:6.1f} s"
        print(f"{verdict} {row['kernel']:8} {row['case']:26} {row['error']:7.3f} {took} {row['problem']}")
    print(f"{time.perf_counter() - started:.0f} s to check and compile", flush=True)
    speeds = [timed(run, problems[run.brief()]) for run in every]
    flash = flash_tflops() if every else None
    if flash is not None:
        print(f"torch's attention, 1 × 8192 without sharing of heads: {flash:.0f} TFLOP/s")
    wrong = [row for row in checked if not row["ok"]]
    print(f"{len(checked) - len(wrong)} of {len(checked)} right, {time.perf_counter() - started:.0f} s")
    if arguments.out:
        result = {
            "device": "interpreter" if arguments.tiny else torch.cuda.get_device_name(),
            "versions": {"torch": torch.__version__, "triton": triton.__version__, "python": platform.python_version()},
            "checked": checked,
            "speeds": speeds,
            "flash_tflops": flash,
        }
        arguments.out.write_text(json.dumps(result) + "\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
