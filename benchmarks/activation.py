"""Predicted activation beside peaks measured on an H200: the formula, and the rule of thumb it replaces.

    python benchmarks/activation.py [--truth FOLDER]

Prints a line per measured call and, last, one JSON line.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from functools import cache
from pathlib import Path
from typing import Any

from brim.model.config import read_config
from brim.model.kv import KvStorage, kv_footprint
from brim.plan.activation import AttentionKind, StepShape, step_bytes, tower_bytes
from brim.records.model import Dtype, ModelSpec


def shape_of(row: dict[str, Any]) -> StepShape | None:
    """The call that a row measured; None for a vision tower."""
    attention = AttentionKind.EAGER if row["attn"] == "eager" else AttentionKind.FUSED
    if row["phase"] == "prefill_b4x1024":
        return StepShape(4096, sequences=4, logit_rows=4, attention=attention)
    found = re.fullmatch(r"prefill(\d+)(_alllogits|_kv)?", row["phase"])
    if found is None:
        return None
    tokens = int(found[1])
    return StepShape(tokens, logit_rows=tokens if found[2] == "_alllogits" else 1, attention=attention)


def formula(spec: ModelSpec, row: dict[str, Any]) -> int:
    shape = shape_of(row)
    if shape is None:
        tower = spec.towers[0]
        patches, tiles = re.search(r"(\d+)patches", row["phase"]), re.search(r"_b(\d+)", row["phase"])
        each = tower.limits.tile_pixels // tower.pixels_per_patch
        return tower_bytes(tower, int(patches[1]) if patches else int(tiles[1]) * each if tiles else 0, 2)
    kept = 0
    if row["phase"].endswith("_kv"):
        kept = kv_footprint(spec, Dtype.BF16, storage=KvStorage(keeps_window=False)).request_bytes(shape.tokens)
    return step_bytes(spec, shape) + kept


def rule_of_thumb(config: dict[str, Any], row: dict[str, Any]) -> int | None:
    """8 × tokens × max(hidden, intermediate) × 2."""
    shape = shape_of(row)
    text = config.get("text_config", config)
    widths = [text.get(name) for name in ("hidden_size", "intermediate_size", "n_embd", "n_inner")]
    return 8 * shape.tokens * max(width for width in widths if width) * 2 if shape else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truth", type=Path, default=Path(__file__).parents[2] / "shared" / "truth")
    folder = parser.parse_args().truth
    rows = json.loads((folder / "peaks_h200.json").read_text())

    @cache
    def config_of(model: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((folder / "configs" / model / "config.json").read_text())
        return found

    print(f"{'model':34} {'call':22} {'measured':>10} {'formula':>9} {'8·T·max·2':>10}")
    errors: dict[str, list[float]] = {"formula": [], "formula_vision": [], "rule_of_thumb": []}
    for row in rows:
        config, measured = config_of(row["model"]), row["peak_allocated_bytes"]
        ours = formula(read_config(config, name=row["model"]), row) / measured - 1
        thumb = rule_of_thumb(config, row)
        errors["formula_vision" if thumb is None else "formula"].append(ours)
        theirs = "" if thumb is None else f"{thumb / measured - 1:+.0%}"
        if thumb is not None:
            errors["rule_of_thumb"].append(thumb / measured - 1)
        size = f"{measured / 2**20:,.0f} MiB"
        print(f"{row['model'][:34]:34} {row['phase']:22} {size:>10} {ours:>+9.1%} {theirs:>10}")
    summary = {
        name: {
            "rows": len(values),
            "median_absolute": statistics.median(abs(value) for value in values),
            "lowest": min(values),
            "highest": max(values),
        }
        for name, values in errors.items()
    }
    for name, found in summary.items():
        print(
            f"{name:16} {found['rows']:3} rows: median |error| {found['median_absolute']:.1%}, "
            f"from {found['lowest']:+.1%} to {found['highest']:+.1%}"
        )
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
