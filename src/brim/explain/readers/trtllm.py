"""TensorRT-LLM's log: allocations of its runtime and of the paged KV cache."""

from __future__ import annotations

import re
from typing import ClassVar

from brim.explain.facts import RefusedAllocation, Sign
from brim.explain.findings import Findings
from brim.explain.readers.lines import SIZE, LogLine, size_bytes

_REFUSED = re.compile(r"CUDA runtime error in .{0,120}: out of memory")
_POOL = re.compile(rf"Allocated {SIZE} for max tokens in paged KV cache \((\d{{1,12}})\)")
_SEEN = re.compile(rf"paged kv cache: total: {SIZE}, available: {SIZE}")
_RUNTIME = re.compile(r"tensorrt_llm::runtime::(?:BufferManager|TllmRuntime|GptDecoder|RuntimeBuffers)")
_KV = re.compile(r"KVCacheManager|kv_cache_manager|kvCacheManager")


class TrtllmLog:
    words: ClassVar[tuple[str, ...]] = (
        "TensorRT-LLM",
        "tensorrt_llm",
        "trtllm",
        "paged KV cache",
        "paged kv cache",
        "CUDA runtime error",
    )

    def __init__(self) -> None:
        self._refused = False

    def read(self, line: LogLine, found: Findings) -> None:
        found.engine("trtllm")
        text = line.text
        if _REFUSED.search(text):
            self._refused = True
            found.refusal(RefusedAllocation(line.evidence))
        if match := _POOL.search(text):
            found.figure("kv_bytes", size_bytes(match[1], match[2]), line.evidence)
            found.figure("kv_tokens", int(match[3]), line.evidence)
        if match := _SEEN.search(text):
            found.figure("total_bytes", size_bytes(match[1], match[2]), line.evidence)
            found.figure("free_bytes", size_bytes(match[3], match[4]), line.evidence)
        if self._refused and _KV.search(text):
            found.sign(Sign.POOL_ALLOCATION, line.evidence)
        elif self._refused and _RUNTIME.search(text):
            found.sign(Sign.STEP, line.evidence)
