"""A fit of vLLM without serving: the exact `--kv-cache-memory-bytes` that stock vLLM can be given.

    python -m brim.vllm.stock.advice FILE '{"model": …}' DEVICE      # arguments of vllm.LLM; auto, cpu or cuda

Writes the report as JSON, null where Brim's worker left the size to stock vLLM. In a process of its own, which ends
with its engine.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from brim.errors import BrimError, InvalidRequest
from brim.vllm import WORKER

_NEIGHBOURS = ("share", "expect_neighbours", "wait_neighbours")


def advised(given: dict[str, Any], wanted: str) -> dict[str, Any] | None:
    """The report of the first rank; `kv_cache_memory_bytes` is the same on all of them."""
    from vllm import LLM
    from vllm.platforms import current_platform

    check_device(given["additional_config"]["brim"], wanted, "cpu" if current_platform.is_cpu() else "cuda")
    llm = LLM(**given, worker_cls=WORKER)
    found: dict[str, Any] | None = llm.collective_rpc("brim_report")[0]
    return found


def check_device(settings: dict[str, Any], wanted: str, found: str) -> None:
    """Refuse settings that would have no effect on the device that this vLLM was built for."""
    if wanted not in ("auto", found):
        raise InvalidRequest(f"device is {wanted}, and this vLLM was built for {found}; leave it out")
    if found != "cpu" and "budget" in settings:
        raise InvalidRequest("memory is a budget for the CPU only; on a GPU use --keep-free or --memory-fraction")
    asked = [name for name in _NEIGHBOURS if name in settings]
    if found == "cpu" and asked and "budget_name" not in settings:
        option = asked[0].replace("_", "-")
        raise InvalidRequest(f"{option}: nobody shares this budget; name it, such as --device cpu:lab:4GiB")


def main(file: str, given: str, wanted: str) -> None:
    try:
        report = advised(json.loads(given), wanted)
    except BrimError as error:
        raise SystemExit(f"brim fit: {error}") from None
    Path(file).write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
