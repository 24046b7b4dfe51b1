"""vLLM's log: its start (flags, weights, profile, pool, graphs), how it runs, and what it says before it ends."""

from __future__ import annotations

import re
from typing import ClassVar

from brim.explain.facts import Sign
from brim.explain.findings import Findings
from brim.explain.readers.lines import SIZE, LogLine, size_bytes, whole

_SIGNS = (
    (re.compile(r"Starting to load model|Loading (?:safetensors|model) |Loading pt checkpoint"), Sign.LOADING),
    (re.compile(r"Capturing (?:the model for CUDA graphs|cudagraphs|CUDA graph)"), Sign.CAPTURING),
    (
        re.compile(r"Starting vLLM API server|Application startup complete|Avg prompt throughput|Processed prompts"),
        Sign.SERVING,
    ),
    (re.compile(r"out of memory occurred when warming up sampler"), Sign.SAMPLING),
    (re.compile(r"is preempted by PreemptionMode|Preempting request"), Sign.PREEMPTED),
    (re.compile(r"max seq len \(\d{1,9}\) is larger than the maximum number of tokens"), Sign.POOL_BELOW_REQUEST),
    (re.compile(r"needed, which is larger than the available KV cache memory"), Sign.POOL_BELOW_REQUEST),
    (re.compile(r"No available memory for the cache blocks"), Sign.NO_POOL),
    (re.compile(r"on startup is less than desired GPU memory utilization"), Sign.TOO_LITTLE_FREE),
)
_SIZED = (
    (
        re.compile(rf"[Mm]odel (?:weights take|loading took|weights took) {SIZE}|Loading model weights took {SIZE}"),
        "weights_bytes",
    ),
    (re.compile(rf"non_torch_memory takes {SIZE}"), "other_bytes"),
    (re.compile(rf"activation peak memory takes {SIZE}"), "activation_bytes"),
    (re.compile(rf"reserved for KV Cache is {SIZE}|Available KV cache memory: {SIZE}"), "kv_bytes"),
    (re.compile(rf"Graph capturing finished in [\d.]{{1,9}} secs, took {SIZE}"), "graphs_bytes"),
    (re.compile(rf"total_gpu_memory \({SIZE}\)"), "total_bytes"),
)
_COUNTED = (
    (re.compile(r"GPU KV cache size: ([\d,]{1,15}) tokens"), "kv_tokens"),
    (re.compile(r"max seq len \((\d{1,9})\)"), "max_len"),
    (re.compile(r"can be stored in KV cache \((\d{1,12})\)"), "kv_tokens"),
    (re.compile(r"total_num_scheduled_tokens=(\d{1,9})\b"), "step_tokens"),
    (re.compile(r"To serve at least one request with the models?'s max seq len \((\d{1,9})\)"), "max_len"),
)
_FRACTION = re.compile(r"gpu_memory_utilization(?: \(|=|: ?)(0?\.\d{1,6}|1(?:\.0)?)")
_BLOCKS = re.compile(r"# (?:GPU|cuda) blocks: (\d{1,9})")
_AT_START = re.compile(
    r"Free memory on device \S{0,12} ?\((\d{1,6}(?:\.\d{1,3})?)/(\d{1,6}(?:\.\d{1,3})?) GiB\)"
    r"[^(]{0,80}\((\d?\.\d{1,4}), "
)
_PREEMPTIONS = re.compile(r"total_num_cumulative_preemption=(\d{1,12})")
_SHARDS = re.compile(r"checkpoint shards: +(\d{1,3})% Completed")
_MODEL = re.compile(r"Initializing an? (?:LLM|V\d LLM) engine[^\n]{0,40}with config:[^\n]{0,20}model='([^']{1,200})'")
_SCHEDULED = re.compile(r"\bnum_scheduled_tokens=\{([^}]{1,20000})\}")
_VERSION = re.compile(r"vLLM (?:API server )?version v?(\d[\w.+]{0,40})|LLM engine \(v(\d[\w.+]{0,40})\)")
_BLOCK_TOKENS = 16


class VllmLog:
    words: ClassVar[tuple[str, ...]] = (
        *("vLLM", "vllm", "load", "Load", "apturing", "throughput", "preempted", "Preempting", "KV cache", "KV Cache"),
        *("cache blocks", "gpu_memory_utilization", "GPU blocks", "cuda blocks", "non_torch", "Free memory on device"),
        *(
            "checkpoint shards",
            "num_scheduled_tokens",
            "sampler",
            "Processed prompts",
            "startup complete",
            "total_gpu_memory",
            "max seq len",
            "limit_mm",
            "limit-mm",
            "speculative",
        ),
    )

    def read(self, line: LogLine, found: Findings) -> None:
        text = line.text
        if "vllm" in text or "vLLM" in text or "gpu_memory_utilization" in text or "model_runner.py" in text:
            found.engine("vllm")
        self._signs(line, found)
        for pattern, name in _SIZED:
            match = pattern.search(text)
            if match:
                number, unit = [part for part in match.groups() if part][:2]
                found.figure(name, size_bytes(number, unit), line.evidence)
        for pattern, name in _COUNTED:
            match = pattern.search(text)
            if match:
                found.figure(name, whole(match[1]), line.evidence)
        self._others(line, found)

    def _signs(self, line: LogLine, found: Findings) -> None:
        for pattern, sign in _SIGNS:
            if pattern.search(line.text):
                said = _PREEMPTIONS.search(line.text)
                found.sign(sign, line.evidence, int(said[1]) if said else 1)
                found.engine("vllm")

    def _others(self, line: LogLine, found: Findings) -> None:
        text, evidence = line.text, line.evidence
        if match := _FRACTION.search(text):
            found.figure("fraction", float(match[1]), evidence)
        if match := _BLOCKS.search(text):
            found.figure("kv_tokens", int(match[1]) * _BLOCK_TOKENS, evidence)
            found.engine("vllm")
        if match := _AT_START.search(text):
            for name, written in (("free_at_start_bytes", match[1]), ("total_bytes", match[2])):
                found.figure(name, size_bytes(written, "GiB"), evidence)
            found.figure("fraction", float(match[3]), evidence)
        if (match := _SHARDS.search(text)) and int(match[1]) < 100:
            found.sign(Sign.LOADING, evidence)
        if match := _SCHEDULED.search(text):  # what the step that failed was to compute, by request
            found.figure("step_requests", match[1].count(":"), evidence)
        if match := _MODEL.search(text):
            found.flag("model", match[1], evidence)
        if match := _VERSION.search(text):
            found.flag("engine_version", match[1] or match[2], evidence)
