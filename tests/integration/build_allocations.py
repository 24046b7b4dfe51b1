"""What `Engine.build` asks a device for: every allocation in order, with what is live after it.

Out: traces of builds of tiny models of each kind (windows, recurrent states, latents, drafts, a draft model). On a GPU
the order decides how tensors fill the allocator's segments, and with that the largest KV cache that fits.

    python -m tests.integration.build_allocations    # after a change that is meant: writes `build_allocations.json`
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from brim.engine.engine import Engine
from brim.engine.settings import EngineSettings
from brim.engine.weights.load import LoadedModel, load
from brim.probes.cpu import CpuProbe
from tests.integration.tiny_models import tiny_config

RECORDED = Path(__file__).with_name("build_allocations.json")
BUDGET = 2**30
SETTINGS: dict[str, Any] = {
    "max_batch": 4,
    "max_batch_tokens": 24,
    "block_size": 8,
    "host_memory": 0,  # to measure what a copy costs, a step of the model is run: its temporaries are not the engine's
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "gemma3_text": ("gemma3_text", {}),
    "deepseek_v3": ("deepseek_v3", {}),
    "granitemoehybrid": ("granitemoehybrid", {}),
    "qwen3_next, drafts found in the text": ("qwen3_next", {"speculate": "lookup", "draft_tokens": 3}),
    "llama, a draft model": ("llama", {"draft_tokens": 3}),
}
Trace = list[list[int]]  # of each operation: bytes that it allocated, bytes that are live afterwards


class BuildProbe(CpuProbe):
    """Counts like a device; while `noting`, writes down what each operation allocates."""

    def __init__(self) -> None:
        super().__init__(BUDGET)
        self.trace: Trace | None = None

    def made(self, results: Any, arguments: Any) -> None:
        before = self.reading().allocated_bytes
        super().made(results, arguments)
        after = self.reading().allocated_bytes
        if self.trace is not None and after != before:
            self.trace.append([after - before, after])

    @contextmanager
    def noting(self) -> Iterator[Trace]:
        trace: Trace = []
        self.trace = trace
        try:
            yield trace
        finally:
            self.trace = None


def _loaded(kind: str) -> LoadedModel:
    return load(tiny_config(kind, tie_word_embeddings=False), load_format="dummy", dtype="fp32", attention="eager")


def build_trace(case: str) -> Trace:
    """Of a build, and of one at another size after a teardown."""
    kind, settings = CASES[case]
    probe = BuildProbe()
    with (
        Engine(
            _loaded(kind),
            draft=_loaded(kind) if case.endswith("a draft model") else None,
            kv_tokens=0,
            settings=EngineSettings(**SETTINGS, **settings),
            device="cpu",
            probe=probe,
        ) as engine,
        probe.noting() as trace,
    ):
        for kv_tokens in (256, 192):
            engine.build(kv_tokens)
            engine.teardown()
    return trace


def build_traces() -> dict[str, Trace]:
    return {case: build_trace(case) for case in CASES}


if __name__ == "__main__":
    lines = [f"{json.dumps(case)}: {json.dumps(trace)}" for case, trace in build_traces().items()]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
