"""Torch's out-of-memory messages, in the wordings of its versions, and the tracebacks around them.

Up to 2.0 a message lists figures in brackets, later in sentences; since 2.1 it names processes, and "this process"
where NVML says which one that is. A traceback's frames say in which part of a server it happened.
"""

from __future__ import annotations

import re
from typing import ClassVar

from brim.explain.facts import RefusedAllocation, Sign
from brim.explain.findings import Findings
from brim.explain.readers.lines import SIZE, LogLine, size_bytes, sizes

_OUT = re.compile(
    r"(?:CUDA|HIP|XPU|MPS|NPU)(?: backend)?(?: error:)? out of memory|CUDA error: out of memory|OutOfMemoryError"
)
_UNDER_TORCH = re.compile(
    r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|CUDA_ERROR_OUT_OF_MEMORY"
    r"|NCCL WARN Cuda failure 2 'out of memory'"
)
_TRIED = re.compile(rf"[Tt]ried to allocate {SIZE}")
_TOTAL = re.compile(rf"total capac(?:ity|ty) of {SIZE}")
_FREE = re.compile(rf"of which {SIZE} is free")
_OWN = re.compile(rf"this process has {SIZE} memory in use")
_PROCESS = re.compile(rf"Process (\d{{1,10}}) has {SIZE} memory in use")
_ALLOCATED = re.compile(rf"[Oo]f the allocated memory {SIZE} is allocated")
_UNUSED = re.compile(rf"{SIZE} is reserved by PyTorch but unallocated")
_OLD_TOTAL = re.compile(rf"{SIZE} total capacity")
_OLD_ALLOCATED = re.compile(rf"{SIZE} already allocated")
_OLD_FREE = re.compile(rf"{SIZE} free")
_OLD_RESERVED = re.compile(rf"{SIZE} reserved in total")
_HOST = re.compile(r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|std::bad_alloc|Cannot allocate memory")

# In frames of a traceback and the lines of code below them: who was at work.
_FRAMES = (
    (re.compile(r"prompt_?log_?probs|log_softmax|compute_logprobs|_get_prompt_logprobs|get_logprobs"), Sign.SCORING),
    (
        re.compile(r"_dummy_sampler_run|warming up sampler|top_k_top_p|/sample[rs]?/|sampler\.py|self\.sampler\("),
        Sign.SAMPLING,
    ),
    (
        re.compile(
            r"capture_model|capture_end|capture_begin|[Cc]uda_?[Gg]raph_?[Rr]unner|init_cuda_graph|torch/cuda/graphs\.py|capture_one_batch_size"
        ),
        Sign.CAPTURING,
    ),
    (
        re.compile(
            r"_execute_mm_encoder|embed_multimodal|get_multimodal|_process_image|_process_video|visual\(|vision_tower|image_embeds|audio_tower|get_image_features"
        ),
        Sign.MEDIA,
    ),
    (re.compile(r"eagle|spec_decode|speculat|draft_model|propose_draft|medusa|/mtp"), Sign.DRAFTS),
    (
        re.compile(
            r"load_weights|weight_utils|weight_loader|create_weights|_initialize_model|model_loader|load_model\b"
        ),
        Sign.LOADING,
    ),
    (
        re.compile(
            r"_allocate_kv_cache|allocate_kv_cache|initialize_kv_cache|init_memory_pool|value_buffer|key_buffer|kv_buffer|_init_kv"
        ),
        Sign.POOL_ALLOCATION,
    ),
    (
        re.compile(r"profile_run|determine_available_memory|determine_num_available_blocks|profile_cudagraph"),
        Sign.PROFILING,
    ),
    (
        re.compile(
            r"in (?:execute_model|forward_(?:extend|decode|batch_generation)|generate_token)|forward_fill_batch"
        ),
        Sign.SERVING,
    ),
)


class TorchMessages:
    """Refusals, and the parts of a server that a traceback names."""

    words: ClassVar[tuple[str, ...]] = (
        *("out of memory", "OutOfMemory", "ALLOC_FAILED", "ERROR_OUT_OF_MEMORY", "CPUAllocator", "bad_alloc"),
        *("Cannot allocate memory", "prompt_logprobs", "log_softmax", "logprobs", "sampler", "apture", "raph"),
        *("multimodal", "mm_encoder", "visual(", "vision_tower", "image_embeds", "eagle", "spec", "draft", "medusa"),
        *("weight", "model_loader", "load_model", "kv_cache", "memory_pool", "_buffer", "profile_run", "determine_"),
        *("execute_model", "forward_", "generate_token", "_process_", "_init_kv", "top_k_top_p", "audio_tower"),
        *("image_features", "/mtp", "_initialize_model"),
    )

    def read(self, line: LogLine, found: Findings) -> None:
        text = line.text
        if _OUT.search(text) or _UNDER_TORCH.search(text):
            found.refusal(refusal_from(line))
        if _HOST.search(text):
            found.sign(Sign.HOST_LOW, line.evidence)
        if _is_of_traceback(text):
            for pattern, sign in _FRAMES:
                if pattern.search(text):
                    found.sign(sign, line.evidence)


def _is_of_traceback(text: str) -> bool:
    """A frame, or a line of code below one; other lines of logs use the same words for what goes well."""
    return 'File "' in text or "self." in text or "return " in text or " = " in text or "OutOfMemory" in text


def refusal_from(line: LogLine) -> RefusedAllocation:
    text = line.text[:4000]
    total, free = sizes(_TOTAL, text) or sizes(_OLD_TOTAL, text), _free(text)
    allocated = sizes(_ALLOCATED, text) or sizes(_OLD_ALLOCATED, text)
    reserved = sizes(_OLD_RESERVED, text)
    unused = sizes(_UNUSED, text)
    if unused is None and reserved is not None and allocated is not None:
        unused = max(0, reserved - allocated)
    own, others = _processes(text, allocated, unused)
    return RefusedAllocation(line.evidence, sizes(_TRIED, text), total, free, allocated, unused, own, others)


def _free(text: str) -> int | None:
    found = sizes(_FREE, text)
    return sizes(_OLD_FREE, text) if found is None and "total capacity;" in text else found


def _processes(text: str, allocated: int | None, unused: int | None) -> tuple[int | None, int | None]:
    """(This process, all others). Of those that are only numbered, the one that holds what torch has is ours."""
    listed = [size_bytes(match[2], match[3]) for match in _PROCESS.finditer(text)][:64]
    own = sizes(_OWN, text)
    if own is not None:
        return own, sum(listed) if listed else None
    if not listed:
        return None, None
    torch_bytes = (allocated or 0) + (unused or 0)
    ours = min((one for one in listed if one >= torch_bytes), default=None)
    if ours is None:
        return None, sum(listed)
    return ours, sum(listed) - ours if len(listed) > 1 else None
