"""Brim beside other planners that run offline: time, coverage of real configs, and KV at 8192 tokens.

    pip install '.[bench]' && python benchmarks/planners.py [--configs FOLDER]

The reference for KV is worked out by hand from the published dimensions: what a model must keep of 8192 tokens.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOKENS = 8192
BF16 = 2
REPEATS = 50

# The published config of each, in the folder of real ones; the last is the catalogue's own, which is complete.
PUBLISHED = {
    "llama-3.1-8b": "meta-llama--Llama-3.1-8B-Instruct",
    "deepseek-v3": "deepseek-ai--DeepSeek-R1",
    "gemma-3-27b": "google--gemma-3-27b-it",
    "gemma-4-31b": "google--gemma-4-31B-it",
    "gpt-oss-20b": "openai--gpt-oss-20b",
    "qwen3.5-27b": "Qwen--Qwen3.5-27B",
    "granite-20b-code": None,
    "nemotron-super-49b": "nvidia--Llama-3_3-Nemotron-Super-49B-v1_5",
}

# Keys and values: layers × 2 × heads × head size, over the tokens a layer keeps.
REFERENCE = {
    "llama-3.1-8b": 32 * 2 * 8 * 128 * BF16 * TOKENS,
    "deepseek-v3": 61 * (512 + 64) * BF16 * TOKENS,
    "gemma-3-27b": 2 * 16 * 128 * BF16 * (10 * TOKENS + 52 * 1024),
    "gemma-4-31b": BF16 * (10 * 2 * 4 * 512 * TOKENS + 50 * 2 * 16 * 256 * 1024),
    "gpt-oss-20b": 2 * 8 * 64 * BF16 * (12 * TOKENS + 12 * 128),
    "qwen3.5-27b": 16 * 2 * 4 * 256 * BF16 * TOKENS,
    "granite-20b-code": 52 * 2 * 1 * 128 * BF16 * TOKENS,
    "nemotron-super-49b": 49 * 2 * 8 * 128 * BF16 * TOKENS,
}


def brim_kv(config: Path) -> float:
    from brim.model.kv import kv_footprint
    from brim.model.source import load_model
    from brim.records.model import Dtype

    return kv_footprint(load_model(str(config)), Dtype.BF16).kv_bytes(TOKENS)


def vramcalc_kv(config: Path) -> float:
    from vramcalc import estimate

    return float(estimate(str(config.parent), mode="inference", seq_len=TOKENS, batch=1).kv_cache)


def llm_mem_planner_kv(config: Path) -> float:
    from llm_mem_planner.cli import GiB, estimate_kv_cache_gib, load_dims

    dims = load_dims(json.loads(config.read_text()))
    return float(estimate_kv_cache_gib(dims, batch=1, seq_len=TOKENS, kv_dtype_bytes=BF16) * GiB)


def kvfit_kv(config: Path) -> float:
    from kvfit.architectures import estimate_cache

    found = estimate_cache(json.loads(config.read_text()), context_tokens=TOKENS, kv_bytes=BF16)
    return float(sum(part.bytes for part in found.components if "state" not in part.name and "conv" not in part.name))


PLANNERS: dict[str, Callable[[Path], float]] = {
    "brim": brim_kv,
    "vramcalc": vramcalc_kv,
    "llm_mem_planner": llm_mem_planner_kv,
    "kvfit": kvfit_kv,
}


def attempt(planner: Callable[[Path], float], config: Path) -> float | None:
    """What a planner says, or None where it raises: for coverage, any refusal is one."""
    try:
        return planner(config)
    except Exception:  # noqa: BLE001 - other people's planners raise what they like
        return None


def milliseconds(planner: Callable[[Path], float], config: Path) -> float:
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        attempt(planner, config)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


def find_configs(real: Path, scratch: Path) -> dict[str, Path]:
    """The config of each reference model: the published file where it is here, else the catalogue's dimensions."""
    from brim.model.catalogue import entries

    found = {}
    for name, published in PUBLISHED.items():
        path = real / published / "config.json" if published else scratch / name / "config.json"
        if not path.is_file():
            path = scratch / name / "config.json"
            path.parent.mkdir()
            path.write_text(json.dumps(entries()[name].config))
        found[name] = path
    return found


def process_seconds(arguments: list[str]) -> float:
    times = []
    for _ in range(7):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", *arguments], check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def library_milliseconds() -> dict[str, float]:
    import brim

    asked: list[tuple[str, str, dict[str, Any]]] = [
        ("qwen2.5-vl-7b", "rtx-4090", {"max_len": 32768}),
        ("llama-3.1-8b", "h200", {}),
        ("deepseek-v3", "h200", {"tp": 8}),
        ("gemma-4-e2b", "l4", {}),
    ]
    found = {}
    for model, gpu, how in asked:
        times = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            brim.plan(model, gpu=gpu, **how)
            times.append(time.perf_counter() - started)
        found[model] = statistics.median(times) * 1000
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).parents[2] / "shared" / "configs"
    parser.add_argument("--configs", type=Path, default=default, help="a folder of MODEL/config.json")
    arguments = parser.parse_args()
    real = sorted(arguments.configs.glob("*/config.json"))

    installed = {}
    for name, planner in PLANNERS.items():
        try:
            importlib.import_module(name)
        except ImportError:
            print(f"{name} is not installed and left out", file=sys.stderr)
        else:
            installed[name] = planner
    result: dict[str, Any] = {"tokens": TOKENS, "configs": len(real), "planners": {}}
    with tempfile.TemporaryDirectory() as folder:
        configs = find_configs(arguments.configs, Path(folder))
        print(f"{'KV at 8192 tokens, times the right answer':44}" + "".join(f"{name:>17}" for name in installed))
        for name in installed:
            result["planners"][name] = {"kv_ratio": {}}
        for model, expected in REFERENCE.items():
            row = f"{model:44}"
            for name, planner in installed.items():
                said = attempt(planner, configs[model])
                ratio = None if said is None else said / expected
                result["planners"][name]["kv_ratio"][model] = ratio
                row += f"{'refused' if ratio is None else f'{ratio:.2f} ×':>17}"
            print(row)
        for name, planner in installed.items():
            entry = result["planners"][name]
            entry["covered"] = sum(attempt(planner, path) is not None for path in real)
            entry["milliseconds"] = milliseconds(planner, configs["llama-3.1-8b"])
        print(
            f"{'real configs it gives a number for':44}"
            + "".join(f"{str(result['planners'][name]['covered']) + ' of ' + str(len(real)):>17}" for name in installed)
        )
        print(
            f"{'KV of an 8B, milliseconds':44}"
            + "".join(f"{result['planners'][name]['milliseconds']:>17.2f}" for name in installed)
        )
    result["plan_process_seconds"] = process_seconds(
        ["brim.cli.main", "plan", "qwen2.5-vl-7b", "--gpu", "rtx-4090", "--json"]
    )
    result["plan_library_milliseconds"] = library_milliseconds()
    print(f"\n`brim plan` as a process: {result['plan_process_seconds']:.2f} s")
    for model, took in result["plan_library_milliseconds"].items():
        print(f"brim.plan({model!r}): {took:.2f} ms")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
