"""A fit of vLLM without serving: the exact `--kv-cache-memory-bytes` that stock vLLM can be given.

    python -m brim.vllm.stock.advice FILE '{"model": …}'      # arguments of vllm.LLM; writes the report as JSON

In a process of its own, which ends with its engine.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from brim.vllm import WORKER


def advised(given: dict[str, Any]) -> dict[str, Any]:
    """The report of the first rank; `kv_cache_memory_bytes` is the same on all of them."""
    from vllm import LLM

    llm = LLM(**given, worker_cls=WORKER)
    found: dict[str, Any] = llm.collective_rpc("brim_report")[0]
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(advised(json.loads(sys.argv[2]))), encoding="utf-8")
