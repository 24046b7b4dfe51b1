"""How long a start takes, by stage: with cold caches, with warm ones, and from the store of proven fits.

Each start is a process of its own, with random weights in the dimensions of a real model, bf16. The caches of Triton,
of torch's compiler and of Brim are in a folder that is empty at first. Needs a GPU:

    python benchmarks/start.py [--model llama-3.1-8b] [--no-compile] [--out FILE] [--commit HASH]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from stamp import stamp

BARS = {"cold": 30.0, "warm": 15.0, "store": 5.0}


def start(options: argparse.Namespace) -> dict[str, Any]:
    """One start, in this process."""
    from brim import Engine, EngineSettings, fit_engine

    stages: list[tuple[float, str]] = []

    def told(stage: Any) -> None:
        if not stages or stages[-1][1] != stage.title:
            stages.append((time.perf_counter(), stage.title))

    settings = EngineSettings(max_batch=512, max_batch_tokens=8192, max_length=8192, compile=options.compile)
    began = time.perf_counter()
    engine = Engine(
        options.model,
        load_format="dummy",
        dtype="bf16",
        device="cuda",
        settings=settings,
        kv_tokens=0,
        progress=told,
    )
    loaded = time.perf_counter()
    stages.clear()
    report = fit_engine(engine, store=options.store, progress=told)
    ends = [moment for moment, _ in stages[1:]] + [time.perf_counter()]
    spent: dict[str, float] = {}
    for (moment, title), end in zip(stages, ends, strict=True):
        spent[title] = spent.get(title, 0.0) + end - moment
    return {
        "load_seconds": loaded - began,
        "fit_seconds": report.seconds.total,
        "kv_tokens": report.kv_tokens,
        "from_store": report.from_store,
        "stages": spent,
    }


def starts(options: argparse.Namespace) -> dict[str, Any]:
    """The three starts, one after the other."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TRITON_CACHE_DIR": f"{folder}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        for name in BARS:
            arguments = [sys.executable, __file__, "--one", "--model", options.model]
            arguments += [] if options.compile else ["--no-compile"]
            arguments += [] if name == "cold" else ["--store", f"{folder}/fits"]  # the warm one leaves its size there
            done = subprocess.run(arguments, env=os.environ | caches, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr)
            found[name] = json.loads(done.stdout.strip().splitlines()[-1])
            one = found[name]
            one["bar_seconds"] = BARS[name]
            print(f"{name:<6} {one['fit_seconds']:.1f} s of at most {BARS[name]:.0f}, {one['kv_tokens']:,} tokens")
            for title, seconds in sorted(one["stages"].items(), key=lambda stage: -stage[1])[:9]:
                print(f"       {seconds:6.2f} s  {title}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--one", action="store_true", help="one start in this process, as JSON")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(start(options)))
        return

    result = {
        **stamp(options.commit),
        "model": options.model,
        "compiled": options.compile,
        "starts": starts(options),
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
