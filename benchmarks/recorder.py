"""Cost of the black box on the host: microseconds a step at 256 running requests.

    python benchmarks/recorder.py [--running 256] [--steps 2000] [--write]

The serving loop of `benchmarks/scheduler.py`, which plans and records real requests and computes nothing, with a
recorder that observes it and without one; both alternate, and differences are of medians. `direct` is the time inside
the recorder's own calls. The reading of the allocator and the driver, ten times a second, is a budget's on the CPU:
what it takes on a GPU is not measured here. One core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import scheduler
import stamp

from brim.probes.cpu import CpuProbe
from brim.record.writer import open_recording
from brim.serve.recording import ServeRecorder

RESULT = Path(__file__).parent / "results" / "recorder.json"
BAR_PERCENT, STEP_MILLISECONDS = 0.5, 10.0  # of a step of 256 decodes of an 8B model


class Timed:
    """A recorder, and the seconds inside it."""

    def __init__(self, recorder: ServeRecorder) -> None:
        self._recorder = recorder
        self.seconds: list[float] = []

    def planned(self, *given: Any) -> None:
        began = time.perf_counter()
        self._recorder.planned(*given)
        self._in_planned = time.perf_counter() - began

    def launched(self) -> None:
        began = time.perf_counter()
        self._recorder.launched()
        self.seconds.append(self._in_planned + time.perf_counter() - began)

    def failed(self, error: BaseException) -> None:
        raise AssertionError(error)


def measure(running: int, steps: int, file: Path) -> dict[str, Any]:
    case = next(one for one in scheduler.CASES)
    loop = scheduler.loop_of(case, running, 2 * steps)
    writer = open_recording(file)
    timed = Timed(ServeRecorder(writer, CpuProbe(1 << 34)))
    took: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * steps):
        recorded = number % 2 == 1
        loop.observer = timed if recorded else None
        began = time.perf_counter()
        loop.step()
        took[recorded].append(time.perf_counter() - began)
    writer.close()
    direct = sorted(timed.seconds)
    medians = {recorded: statistics.median(times) * 1e6 for recorded, times in took.items()}
    return {
        "running": running,
        "steps": steps,
        "direct_us_median": round(statistics.median(direct) * 1e6, 2),
        "direct_us_p99": round(direct[int(len(direct) * 0.99)] * 1e6, 2),
        "step_us_median_without": round(medians[False], 1),
        "step_us_median_with": round(medians[True], 1),
        "percent_of_a_10_ms_step": round(statistics.median(direct) * 1e5 / STEP_MILLISECONDS, 4),
        "file_bytes": file.stat().st_size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with TemporaryDirectory() as folder:
        found = measure(options.running, options.steps, Path(folder) / "recording")
    result = {**stamp.stamp(), **found}
    print(json.dumps(result, indent=2))
    if options.write:
        RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if found["percent_of_a_10_ms_step"] > BAR_PERCENT:
        raise SystemExit(f"more than {BAR_PERCENT} % of a step")


if __name__ == "__main__":
    main()
