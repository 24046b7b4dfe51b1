"""SGLang's log: memory before and after each part of its start, and requests that are retracted for others."""

from __future__ import annotations

import re
from typing import ClassVar

from brim.explain.facts import RefusedAllocation, Sign
from brim.explain.findings import Findings
from brim.explain.readers.lines import SIZE, LogLine, size_bytes

_SIGNS = (
    (re.compile(r"Load weight begin"), Sign.LOADING),
    (re.compile(r"Capture (?:[\w ]{0,30})?[Cc][Uu][Dd][Aa] graph begin"), Sign.CAPTURING),
    (re.compile(r"The server is fired up|Prefill batch|Decode batch"), Sign.SERVING),
    (re.compile(r"KV cache pool is full|Retract requests|[Dd]ecode out of memory happened"), Sign.PREEMPTED),
    (re.compile(r"(?:Prefill|Decode) out of memory\. Try to lower your batch size"), Sign.POOL_FULL),
    (re.compile(r"Not enough memory\. Please try to increase --mem-fraction-static"), Sign.NO_POOL),
)
_AVAILABLE = re.compile(rf"avail mem={SIZE}")
_WEIGHTS = re.compile(rf"Load weight end\.[^\n]{{0,160}}mem usage={SIZE}")
_GRAPHS = re.compile(rf"Capture cuda graph end\.[^\n]{{0,80}}mem usage={SIZE}")
_POOL = re.compile(
    rf"KV Cache (?:is )?allocated\.?[^\n]{{0,40}}#tokens: (\d{{1,12}}), K (?:size: )?{SIZE}, V (?:size: )?{SIZE}"
)
_FRACTION = re.compile(r"mem_fraction_static=(0?\.\d{1,6})")
_WORKSPACE = re.compile(r"Failed to allocate memory for (\S{1,60}) with size (\d{1,18}) and alignment")


class SglangLog:
    words: ClassVar[tuple[str, ...]] = (
        *(
            "sglang",
            "sgl-",
            "Load weight",
            "Memory pool",
            "raph begin",
            "raph end",
            "KV Cache",
            "Retract",
            "pool is full",
        ),
        *(
            "avail mem",
            "mem_fraction_static",
            "mem-fraction-static",
            "Prefill",
            "Decode",
            "AlignedAllocator",
            "fired up",
        ),
        *("Decode out of memory", "batch size"),
    )

    def read(self, line: LogLine, found: Findings) -> None:
        text = line.text
        if "sglang" in text or "mem_fraction_static" in text or "avail mem=" in text:
            found.engine("sglang")
        for pattern, sign in _SIGNS:
            if pattern.search(text):
                found.sign(sign, line.evidence)
        for pattern, name in ((_AVAILABLE, "free_bytes"), (_WEIGHTS, "weights_bytes"), (_GRAPHS, "graphs_bytes")):
            if match := pattern.search(text):
                found.figure(name, size_bytes(match[1], match[2]), line.evidence)
        if match := _POOL.search(text):
            found.figure("kv_tokens", int(match[1]), line.evidence)
            kv = size_bytes(match[2], match[3]) + size_bytes(match[4], match[5])
            found.figure("kv_bytes", kv, line.evidence)
        if match := _FRACTION.search(text):
            found.figure("fraction", float(match[1]), line.evidence)
        if match := _WORKSPACE.search(text):
            found.refusal(RefusedAllocation(line.evidence, tried_bytes=int(match[2])))
            found.sign(Sign.STEP, line.evidence)
