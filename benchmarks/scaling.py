"""Whether learned memory scaling holds: the bound of many steps that were not measured for it, beside their peaks.

Each model is fitted (random weights in its real dimensions), which learns the laws from a few steps; then a grid of
other sizes and compositions is run and measured. A step above its bound, or a bound of the largest step that is more
than 10 % too high, fails the run. Needs a GPU, or `--tiny` for small models on the CPU:

    python benchmarks/scaling.py [--models llama-3.1-8b,...] [--out FILE] [--commit HASH] [--tiny]
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stamp import stamp

GIB = 1 << 30
MOST_ABOVE = 0.10  # of the bound of the largest step
MODELS = "llama-3.1-8b,gemma-3-12b,qwen3-30b-a3b,nemotron-nano-12b-v2"  # dense, windows, mixture, hybrid
TINY_MODELS = "llama,gemma3_text,qwen3_moe,qwen3_5_text"
TOKEN_SHARES = (1 / 16, 1 / 5, 1 / 3, 1 / 2, 3 / 4, 1)
ROW_SHARES = (0, 1 / 3, 1)
BATCH_SHARES = (0, 1 / 16, 1 / 6, 1 / 3, 2 / 3, 1)


def make_engine(model: str, options: argparse.Namespace) -> tuple[Any, Any]:
    """An engine that is loaded and not built, and its probe."""
    from brim.engine.engine import Engine
    from brim.engine.settings import EngineSettings

    settings = EngineSettings(
        max_batch=options.max_batch,
        max_batch_tokens=options.batch_tokens,
        max_length=options.max_length,
        compile=options.compile,
    )
    if not options.tiny:
        from brim.probes.cuda import CudaProbe

        engine = Engine(model, load_format="dummy", dtype="bf16", device="cuda", settings=settings, kv_tokens=0)
        return engine, CudaProbe(0)
    from brim.probes.cpu import CpuProbe

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.integration.tiny_models import tiny_config

    probe = CpuProbe(GIB // 16)
    config = tiny_config(model)
    return Engine(
        config, load_format="dummy", dtype="bf16", device="cpu", settings=settings, kv_tokens=0, probe=probe
    ), probe


def grid(engine: Any) -> Iterator[tuple[Any, Any]]:
    """Steps that no law was learned from, and what the laws see of them."""
    from brim.engine.run.sampling.sampler import ROWS_AT_ONCE
    from brim.engine.stress.text import ALIKE, DECODE, PLAIN, PREFILL, SCORES
    from brim.records.memory import StressShape
    from brim.records.scaling import StepPhase, StepShape

    settings, learned = engine.settings, {one.stress for one in engine.scaling_steps().steps}
    worst_lengths = sorted({one.tokens // one.sequences for one in learned if one.name == ALIKE})
    full, most = settings.max_batch_tokens, settings.max_batch
    for tokens in sorted({max(2, int(full * share)) for share in TOKEN_SHARES}):
        scored = StepShape(StepPhase.PREFILL, ROWS_AT_ONCE, tokens)  # prompts are scored in slices of this many rows
        yield StressShape(SCORES, tokens, 1), scored
        yield StressShape(PLAIN, tokens, 1), StepShape(StepPhase.PREFILL, 1, tokens)
        for rows in sorted({min(tokens, max(1, int(most * share))) for share in ROW_SHARES}):
            shape = StressShape(PREFILL, tokens, rows, "scaling")
            if shape not in learned:
                yield shape, StepShape(StepPhase.PREFILL, rows, tokens)
        for length in worst_lengths:  # of chunks in recurrent layers, which take the most for equal ones
            count = max(1, min(most, tokens // length))
            yield StressShape(ALIKE, count * length, count), StepShape(StepPhase.PREFILL, count, count * length)
    for rows in sorted({max(1, int(most * share)) for share in BATCH_SHARES}):
        yield StressShape(DECODE, rows, rows), StepShape(StepPhase.NEXT_TOKEN, rows, rows)


def peak_of(engine: Any, probe: Any, shape: Any) -> int:
    """The peak of a step above what is held."""
    probe.reset_peak()
    held = probe.reading().allocated_bytes
    engine.stress(shape)
    return int(probe.reading().peak_allocated_bytes - held)


def measure(model: str, options: argparse.Namespace) -> dict[str, Any]:
    from brim.serving import fit_engine

    started = time.perf_counter()
    engine, probe = make_engine(model, options)
    with engine:
        report = fit_engine(engine, probe=probe, canary_bytes=1 << 20 if options.tiny else 256 << 20)
        scaling = report.scaling
        assert scaling is not None
        rows = []
        for stress, shape in grid(engine):
            measured, bound = peak_of(engine, probe, stress), scaling.scaling.need_bytes(shape)
            name = {"name": stress.name, "tokens": stress.tokens, "sequences": stress.sequences}
            rows.append({**name, "measured_bytes": measured, "bound_bytes": bound})
        probe.hold_canary(0)
    largest = max(rows, key=lambda row: row["measured_bytes"])
    found = {
        "model": model,
        "kv_tokens": report.kv_tokens,
        "holds": all(row["bound_bytes"] >= row["measured_bytes"] for row in rows),
        "above_largest": largest["bound_bytes"] / largest["measured_bytes"] - 1,
        "learning_seconds": report.seconds.scaling,
        "fit_seconds": report.seconds.total,
        "fit_phases": asdict(report.seconds),
        "scaling": scaling.to_json(),
        "held_back": rows,
    }
    show(found, time.perf_counter() - started)
    del engine, probe
    gc.collect()
    return found


def show(found: dict[str, Any], seconds: float) -> None:
    alone = found["scaling"]["kv_tokens_without_rebuild"]
    print(
        f"{found['model']}: the bound {'holds' if found['holds'] else 'DOES NOT HOLD'} on {len(found['held_back'])} "
        f"steps, {found['above_largest']:+.2%} at the largest; {found['kv_tokens']:,} KV tokens, by the laws alone "
        f"{alone:,} ({alone / found['kv_tokens'] - 1:+.2%}); margin {found['scaling']['margin_percent']:.3f} %; "
        f"learned in {found['learning_seconds']:.2f} s of {found['fit_seconds']:.1f} s; {seconds:.0f} s in all",
        flush=True,
    )
    for row in found["held_back"]:
        over = row["bound_bytes"] / max(1, row["measured_bytes"]) - 1
        print(
            f"  {row['name']:<16}{row['tokens']:>7} tokens{row['sequences']:>5} sequences  "
            f"measured {row['measured_bytes']:>14,}  bound {row['bound_bytes']:>14,}  {over:+.1%}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models")
    parser.add_argument("--tiny", action="store_true", help="small models on the CPU")
    parser.add_argument("--max-batch", type=int)
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--max-length", type=int)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    options.max_batch = options.max_batch or (64 if options.tiny else 256)
    options.batch_tokens = options.batch_tokens or (512 if options.tiny else 8192)
    options.max_length = options.max_length or (512 if options.tiny else 32_768)

    models = (options.models or (TINY_MODELS if options.tiny else MODELS)).split(",")
    results: dict[str, Any] = {
        **stamp(options.commit),
        "settings": {
            "max_batch": options.max_batch,
            "batch_tokens": options.batch_tokens,
            "max_length": options.max_length,
            "compile": options.compile,
        },
        "rows": [],
    }
    for model in models:
        results["rows"].append(measure(model, options))
        if options.out:  # what was seen stays, also where time runs out
            options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if not all(row["holds"] and row["above_largest"] <= MOST_ABOVE for row in results["rows"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
