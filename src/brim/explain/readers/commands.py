"""Commands and arguments in a log: the flags that decide about memory, as they were written."""

from __future__ import annotations

import re
from typing import ClassVar

from brim.explain.findings import Findings
from brim.explain.readers.lines import LogLine

_LAUNCHERS = {
    "vllm": re.compile(r"\bvllm serve|vllm\.entrypoints"),
    "sglang": re.compile(r"sglang\.launch_server|sglang serve"),
    "lightllm": re.compile(r"lightllm\.server"),
    "trtllm": re.compile(r"trtllm-serve|gptManagerBenchmark"),
    "tgi": re.compile(r"text-generation-launcher"),
    "llama.cpp": re.compile(r"llama-server|llama-cli"),
}
_DECISIVE = (
    *("model", "model-path", "model_dir", "model-id", "gpu-memory-utilization", "max-model-len", "max-num-seqs"),
    *("max-num-batched-tokens", "tensor-parallel-size", "kv-cache-dtype", "kv-cache-memory-bytes", "enforce-eager"),
    *("limit-mm-per-prompt", "mm-processor-kwargs", "speculative-config", "speculative-model", "speculative_model"),
    *("num-speculative-tokens", "mem-fraction-static", "chunked-prefill-size", "max-running-requests", "tp"),
    *("cuda-graph-max-bs", "disable-cuda-graph", "speculative-algorithm", "speculative-draft-model-path"),
    *("max-total-token-num", "max_total_token_num", "mem_fraction", "max-batch-prefill-tokens", "max-total-tokens"),
    *("cuda-memory-fraction", "max-batch-size", "max_batch_size", "kv_cache_free_gpu_mem_fraction", "swap-space"),
    *("kv_cache_free_gpu_memory_fraction", "max_num_tokens", "n-gpu-layers", "ngl", "ctx-size", "ubatch-size"),
    *("cpu-offload-gb", "prompt_logprobs", "limit_mm_per_prompt", "gpu_memory_utilization", "max_model_len"),
    *("num_speculative_tokens", "max_num_seqs", "max_num_batched_tokens", "quantization", "cache-type-k"),
)
_NAMES = "|".join(sorted({re.escape(name) for name in _DECISIVE}, key=len, reverse=True))
_DASHED = re.compile(
    rf"(?:^|\s)--?({_NAMES})(?:[ =]+([^\s,'\"-][^\s'\"]{{0,199}}|'[^']{{1,300}}'|\"[^\"]{{1,300}}\"))?(?=\s|$)"
)
_SHORT = re.compile(r"\s-(c|ub|b|ngl|np)[ =](\d{1,9})\b")
_KEYWORD = re.compile(
    rf"\b({_NAMES.replace('-', '_')})=({{[^}}]{{0,200}}}}|'[^']{{0,200}}'|\"[^\"]{{0,200}}\"|[^\s,)]{{1,100}})"
)
_SERVED = re.compile(r"\bvllm serve +([^\s-][^\s]{0,199})")
_NOTHING = ("None", "none", "null", "")


class Commands:
    words: ClassVar[tuple[str, ...]] = ("--", "=", " -")

    def read(self, line: LogLine, found: Findings) -> None:
        text = line.text[:20_000]
        for engine, launcher in _LAUNCHERS.items():
            if launcher.search(text):
                found.engine(engine)
        if "'--" in text or "`--" in text:  # advice of an engine, not its command
            return
        if served := _SERVED.search(text):
            self._flag("model", served[1], line, found)
        for match in _DASHED.finditer(text):
            self._flag(match[1], match[2] or "true", line, found)
        for match in _SHORT.finditer(text):
            self._flag(match[1], match[2], line, found)
        for match in _KEYWORD.finditer(text):
            self._flag(match[1], match[2], line, found)

    def _flag(self, name: str, value: str, line: LogLine, found: Findings) -> None:
        value = value.strip("'\"")
        if value not in _NOTHING:
            found.flag(name.replace("-", "_"), value, line.evidence)
