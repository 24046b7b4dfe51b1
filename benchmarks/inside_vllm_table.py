"""What was measured of Brim inside vLLM on an H200, as a table.

    python benchmarks/inside_vllm_table.py [--json]

In: the runs of `inside_vllm.py` in `results/`, one file each, and the throughput of vLLM's bench with Brim's worker and
without it. Out: a line for each. A start is timed from the call of `vllm.LLM` to its return; "added" is the part of the
fit that is not vLLM's own warm-up, which a start without Brim has too.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
THROUGHPUT = "inside_vllm_throughput_h200.json"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    files = sorted(RESULTS.glob("inside_vllm_*_h200.json"))
    runs = [run_row(file) for file in files if file.name != THROUGHPUT]
    loads = throughput_rows(read(RESULTS / THROUGHPUT))
    if options.json:
        print(json.dumps({"runs": runs, "throughput": loads}, indent=1))
        return
    for row in runs:
        print(row.pop("run") + ": " + ", ".join(f"{name} {value}" for name, value in row.items() if value is not None))
    for load in loads:
        print(f"{load['workload']}: stock {load['stock']:,}, Brim {load['brim']:,} tokens/s, {load['percent']:+.2f} %")


def run_row(file: Path) -> dict[str, Any]:
    found = read(file)
    fit, load = found.get("fit"), found.get("load") or {}
    return {
        "run": file.stem.removeprefix("inside_vllm_").removesuffix("_h200"),
        "runner": "V2" if ".gpu." in found["runner"] else "V1",
        "worker": "stock" if fit is None else "Brim",
        "KV tokens": f"{(fit or found)['kv_tokens']:,}",  # of Brim's: those that were proven
        "start s": found["start_seconds"],
        "fit s": fit and round(fit["seconds"]["total"], 1),
        "added s": fit and round(fit["seconds"]["total"] - fit["stock_seconds"], 1) if stated(fit) else None,
        "load s": load.get("seconds"),
        "answered": load.get("requests"),
        "failed": load.get("failed"),
        "out of memory": load.get("num_ooms"),
        "retries": load.get("num_alloc_retries"),
        "taken by another": (found.get("thief") or {}).get("takes"),
        "ended by": found["error"] and found["error"].split(".")[0],
    }


def stated(fit: dict[str, Any] | None) -> bool:
    """Earlier runs did not tell vLLM's own part."""
    return fit is not None and "stock_seconds" in fit


def throughput_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    stock, brim = (
        {row["workload"]: row["best_tok_s"] for row in found[worker]["workloads"]} for worker in ("stock", "brim")
    )
    return [
        {"workload": name, "stock": stock[name], "brim": brim[name], "percent": 100 * (brim[name] / stock[name] - 1)}
        for name in sorted(stock)
    ]


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
