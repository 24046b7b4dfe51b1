"""Predicted activation against peaks measured on an H200: the trace, the formula, and other estimates.

    python benchmarks/activation.py [--truth FOLDER]

Prints a line per measured call and, last, one JSON line. Beside Brim's trace and formula:

- the rule of thumb `8 · tokens · max(hidden, intermediate) · 2`;
- what `transformers`' continuous batching reserves for a batch token (hidden state, query, new and read-back KV);
- torch's own `MemTracker` over fake tensors on the CPU.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from brim.model.config import read_config
from brim.model.kv import KvStorage, kv_footprint
from brim.planning.activation import AttentionKind, ForwardShape, step_bytes, tower_bytes
from brim.records.model import Attention, Dtype, ModelSpec
from brim.records.trace import Phase, TraceShape

Row = dict[str, Any]


def shape_of(row: Row) -> ForwardShape | None:
    """The call that a row measured; None for a vision tower."""
    attention = AttentionKind.EAGER if row["attn"] == "eager" else AttentionKind.FUSED
    if row["phase"] == "prefill_b4x1024":
        return ForwardShape(4096, sequences=4, logit_rows=4, attention=attention)
    found = re.fullmatch(r"prefill(\d+)(_alllogits|_kv)?", row["phase"])
    if found is None:
        return None
    tokens = int(found[1])
    return ForwardShape(tokens, logit_rows=tokens if found[2] == "_alllogits" else 1, attention=attention)


def positions_of(spec: ModelSpec, row: Row) -> int:
    tower = spec.towers[0]
    patches, tiles = re.search(r"(\d+)patches", row["phase"]), re.search(r"_b(\d+)", row["phase"])
    if patches:
        return int(patches[1])
    return int(tiles[1]) * (tower.limits.tile_pixels // tower.pixels_per_patch) if tiles else 0


def trace_shape_of(row: Row) -> TraceShape:
    patches, tiles = re.search(r"(\d+)patches", row["phase"]), re.search(r"vision_b(\d+)", row["phase"])
    if patches:
        return TraceShape(Phase.VISION, tokens=int(patches[1]), attention=row["attn"])
    if tiles:
        return TraceShape(Phase.VISION, tokens=1, batch=int(tiles[1]), attention=row["attn"])
    shape = shape_of(row)
    assert shape is not None
    rows = 0 if row["phase"].endswith("_alllogits") else 1
    return TraceShape(
        tokens=shape.tokens_per_sequence,
        batch=shape.sequences,
        logit_rows=rows,
        keeps_kv=row["phase"].endswith("_kv"),
        attention=row["attn"],
    )


def formula(spec: ModelSpec, row: Row) -> int:
    shape = shape_of(row)
    if shape is None:
        return tower_bytes(spec.towers[0], positions_of(spec, row), 2)
    kept = 0
    if row["phase"].endswith("_kv"):
        kept = kv_footprint(spec, Dtype.BF16, storage=KvStorage(keeps_window=False)).request_bytes(shape.tokens)
    return step_bytes(spec, shape) + kept


def rule_of_thumb(config: Row, row: Row) -> int | None:
    shape = shape_of(row)
    text = config.get("text_config", config)
    widths = [text.get(name) for name in ("hidden_size", "intermediate_size", "n_embd", "n_inner")]
    return 8 * shape.tokens * max(width for width in widths if width) * 2 if shape else None


def continuous_batching(spec: ModelSpec, row: Row) -> int | None:
    """transformers' attention peak of a batch token, with attention that repeats KV heads as sdpa does there."""
    shape, mixer = shape_of(row), spec.layers[-1].mixer
    if shape is None or not isinstance(mixer, Attention):
        return None
    per_token = (
        spec.hidden  # hidden states
        + mixer.heads * mixer.head_dim  # query
        + 2 * mixer.kv_heads * mixer.head_dim  # new keys and values
        + (2 * mixer.heads + mixer.kv_heads) * mixer.head_dim  # read back, repeated for every head
    )
    return shape.tokens * per_token * spec.dtype.bytes


def torch_tracker(config: Row, row: Row) -> int | None:
    """Activations at the peak by torch.distributed's MemTracker, over fake tensors."""
    if row["phase"] != "prefill2048":
        return None
    import torch
    import transformers
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from brim.model.transformers_classes import class_name

    fields = {name: value for name, value in config.items() if name not in ("model_type", "quantization_config")}
    cls = getattr(transformers, class_name(config["model_type"], config))
    tracker = MemTracker()
    try:
        with FakeTensorMode():
            torch.set_default_dtype(torch.bfloat16)
            loaded = CONFIG_MAPPING[config["model_type"]].from_dict(fields)
            model = cls._from_config(loaded, attn_implementation=row["attn"]).eval()
            torch.set_default_dtype(torch.float32)
            tracker.track_external(model)
            ids = torch.zeros((1, 2048), dtype=torch.long)
            with torch.no_grad(), tracker:
                model(input_ids=ids, use_cache=False, logits_to_keep=1)
    except Exception as error:  # noqa: BLE001 - what it cannot run is part of the comparison
        print(f"MemTracker cannot run {row['model']}: {str(error).splitlines()[0][:100]}", file=sys.stderr)
        return None
    finally:
        torch.set_default_dtype(torch.float32)
    peak = tracker.get_tracker_snapshot("peak")
    return int(sum(kinds["Total"] - _persistent(kinds) for kinds in peak.values()))


def _persistent(kinds: dict[Any, int]) -> int:
    return sum(size for kind, size in kinds.items() if str(kind).endswith(("PARAM", "BUFFER")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truth", type=Path, default=Path(__file__).parents[2] / "shared" / "truth")
    folder = parser.parse_args().truth
    rows: list[Row] = json.loads((folder / "peaks_h200.json").read_text())

    from brim.trace.build import build_model
    from brim.trace.tracer import trace_model
    from brim.trace.versions import traced_with

    @cache
    def config_of(model: str) -> Row:
        found: Row = json.loads((folder / "configs" / model / "config.json").read_text())
        return found

    @cache
    def model_of(model: str, attention: str) -> tuple[Any, str]:
        return build_model(config_of(model), attention=attention)

    columns = ("trace", "formula", "8·T·max·2", "cb", "MemTracker", "reserved", "reserved, default")
    print(f"{'model':30} {'call':22} {'measured':>10}" + "".join(f"{name:>18}" for name in columns))
    errors: dict[str, list[float]] = {name: [] for name in columns}
    for row in rows:
        config = config_of(row["model"])
        spec = read_config(config, name=row["model"])
        model, attention = model_of(row["model"], row["attn"])
        traced = trace_model(model, trace_shape_of(row), name=row["model"], attention=attention)
        measured = row["peak_allocated_bytes"]
        guesses: dict[str, tuple[int | None, int]] = {
            "trace": (traced.peak_bytes, measured),
            "formula": (formula(spec, row), measured),
            "8·T·max·2": (rule_of_thumb(config, row), measured),
            "cb": (continuous_batching(spec, row), measured),
            "MemTracker": (torch_tracker(config, row), measured),
            "reserved": (traced.reserved_bytes, row["peak_reserved_expandable_bytes"]),
            "reserved, default": (traced.reserved_default_bytes, row["peak_reserved_default_bytes"]),
        }
        line = f"{row['model'][:30]:30} {row['phase']:22} {measured / 2**20:>6,.0f} MiB"
        for name, (guess, truth) in guesses.items():
            if guess is None or not truth:
                line += f"{'':>18}"
                continue
            errors[name].append(guess / truth - 1)
            line += f"{guess / truth - 1:>+18.2%}"
        print(line, flush=True)
    summary = {name: _summary(values) for name, values in errors.items() if values}
    within = sum(-0.02 <= error <= 0.05 for error in errors["reserved"])
    for name, found in summary.items():
        print(
            f"{name:18} {found['rows']:3} rows: median |error| {found['median_absolute']:.2%}, "
            f"from {found['lowest']:+.2%} to {found['highest']:+.2%}"
        )
    print(f"reserved within -2 % and +5 %: {within} of {len(errors['reserved'])} rows ({traced_with()})")
    print(json.dumps({"versions": traced_with(), "reserved_within_bar": within, **summary}))


def _summary(values: list[float]) -> dict[str, float]:
    absolute: Callable[[float], float] = abs
    return {
        "rows": len(values),
        "median_absolute": statistics.median(map(absolute, values)),
        "lowest": min(values),
        "highest": max(values),
    }


if __name__ == "__main__":
    main()
