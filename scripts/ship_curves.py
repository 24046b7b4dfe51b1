"""Trace every model of the catalogue and write the curves that come with Brim.

    python scripts/ship_curves.py [MODEL ...]

With names, only those are traced and put into the file; the others stay as they are.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from brim.errors import CannotTrace
from brim.model.catalogue import entries
from brim.model.source import load_model
from brim.records.model import MediaType
from brim.records.trace import Phase
from brim.trace.curve import trace_curves
from brim.trace.store import fingerprint, sealed

TARGET = Path(__file__).parents[1] / "src" / "brim" / "trace" / "curves.json"


def main() -> None:
    wanted = sys.argv[1:] or list(entries())
    curves = json.loads(TARGET.read_text()) if TARGET.exists() else {}
    for name in wanted:
        spec, started = load_model(name), time.perf_counter()
        seen = any(tower.media is MediaType.IMAGE for tower in spec.towers)
        phases = (Phase.PREFILL, Phase.VISION) if seen else (Phase.PREFILL,)
        try:
            made = trace_curves(entries()[name].config, name=name, phases=phases, dtype=str(spec.dtype))
        except CannotTrace as error:
            print(f"{name:24} not traced: {error}", flush=True)
            continue
        for phase, curve in made.items():
            curves[fingerprint(spec, phase)] = sealed(spec, curve)
            print(f"{name:24} {phase:8} {len(curve.points)} points, {curve.held_back_error:.4%}", flush=True)
        print(f"{name:24} {time.perf_counter() - started:.1f} s", flush=True)
        lines = (f" {json.dumps(key)}: {json.dumps(curves[key], separators=(',', ':'))}" for key in sorted(curves))
        TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
