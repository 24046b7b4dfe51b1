"""llama.cpp's log, also inside others: buffers of weights, KV and compute, and the one that was refused."""

from __future__ import annotations

import re
from typing import ClassVar

from brim.explain.facts import RefusedAllocation, Sign
from brim.explain.findings import Findings
from brim.explain.readers.lines import SIZE, LogLine, size_bytes

_REFUSED = re.compile(rf"allocating {SIZE} on device (\d{{1,3}}): cudaMalloc failed: out of memory")
_NO_BUFFER = re.compile(r"failed to allocate (?:CUDA|ROCm|Vulkan|Metal)\w{0,8} buffer of size (\d{1,18})")
_STEP = re.compile(r"gallocr_reserve|failed to allocate compute buffers|graph_reserve: failed")
_WEIGHTS = re.compile(
    r"alloc_tensor_range: failed|error loading model: unable to allocate|unable to allocate backend buffer"
)
_KV_REFUSED = re.compile(r"llama_kv_cache_init: failed|failed to allocate (?:buffer for kv cache|KV cache)")
_BUFFERS = (
    (re.compile(rf"(?:CUDA|ROCm|Vulkan|Metal)\d{{0,2}} +(?:model )?buffer size = +{SIZE}"), "weights_bytes"),
    (re.compile(rf"(?:CUDA|ROCm|Vulkan|Metal)\d{{0,2}} KV buffer size = +{SIZE}"), "kv_bytes"),
    (re.compile(rf"(?:CUDA|ROCm|Vulkan|Metal)\d{{0,2}} compute buffer size = +{SIZE}"), "activation_bytes"),
)
_POOL_FULL = re.compile(
    r"failed to find (?:free space in the KV cache|a (?:KV|memory) slot)|failed to find a memory slot for batch"
)
_CONTEXT = re.compile(r"n_ctx +=? +(\d{1,9})\b")
_MEDIA = re.compile(r"clip_|mtmd|mmproj")


class LlamaCppLog:
    words: ClassVar[tuple[str, ...]] = (
        *("llama", "ggml", "cudaMalloc", "buffer size", "compute buffer", "KV cache", "memory slot", "alloc_tensor"),
        *("unable to allocate", "n_ctx", "clip_", "mtmd", "mmproj", "llm_load"),
    )

    def read(self, line: LogLine, found: Findings) -> None:
        text = line.text
        if (
            "llama_" in text
            or "ggml_" in text
            or "llama-server" in text
            or "llama.cpp" in text
            or "update_slots" in text
        ):
            found.engine("llama.cpp")
        if match := _REFUSED.search(text):
            found.refusal(RefusedAllocation(line.evidence, tried_bytes=size_bytes(match[1], match[2])))
        elif match := _NO_BUFFER.search(text):
            found.refusal(RefusedAllocation(line.evidence, tried_bytes=int(match[1])))
        if _STEP.search(text):
            found.sign(Sign.MEDIA if _MEDIA.search(text) else Sign.STEP, line.evidence)
        if _WEIGHTS.search(text):
            found.sign(Sign.WEIGHTS, line.evidence)
        if _KV_REFUSED.search(text):
            found.sign(Sign.POOL_ALLOCATION, line.evidence)
        if _POOL_FULL.search(text):
            found.sign(Sign.POOL_FULL, line.evidence)
        for pattern, name in _BUFFERS:
            if match := pattern.search(text):
                found.figure(name, size_bytes(match[1], match[2]), line.evidence)
        if match := _CONTEXT.search(text):
            found.figure("kv_tokens", int(match[1]), line.evidence)
