"""The log of text-generation-inference: its warm-up, and what its router says of a shard's errors."""

from __future__ import annotations

import re
from typing import ClassVar

from brim.explain.facts import Sign
from brim.explain.findings import Findings
from brim.explain.readers.lines import LogLine

_NOT_ENOUGH = re.compile(r"Not enough memory to handle (\d{1,9}) prefill tokens")
_POOL = re.compile(r"[Ss]etting max batch total tokens to (\d{1,12})")
_SERVING = re.compile(r":prefill\{|:decode\{|Success$")


class TgiLog:
    words: ClassVar[tuple[str, ...]] = (
        "text_generation",
        "text-generation",
        "Warmup",
        "warmup",
        "prefill tokens",
        "max batch total tokens",
    )

    def read(self, line: LogLine, found: Findings) -> None:
        found.engine("tgi")
        text = line.text
        if match := _NOT_ENOUGH.search(text):
            found.sign(Sign.STEP, line.evidence)
            found.figure("step_tokens", int(match[1]), line.evidence)
        if "Method Warmup" in text or "in warmup" in text or "Warming up model" in text:
            found.sign(Sign.WARM_UP, line.evidence)
        if match := _POOL.search(text):
            found.figure("kv_tokens", int(match[1]), line.evidence)
        if _SERVING.search(text):
            found.sign(Sign.SERVING, line.evidence)
