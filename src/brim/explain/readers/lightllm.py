"""LightLLM's log: a pool whose tokens the operator gives (`--max_total_token_num`), or that it sizes itself."""

from __future__ import annotations

import re
from typing import ClassVar

from brim.explain.facts import Sign
from brim.explain.findings import Findings
from brim.explain.readers.lines import LogLine

_TOKENS = re.compile(r"max_total_token_num(?:[ =:]{1,3}|.{0,10}? is )(\d{1,12})")
_OVER = re.compile(r"check max_len_infer fail|please try to decrease")


class LightllmLog:
    words: ClassVar[tuple[str, ...]] = (
        "lightllm",
        "LightLLM",
        "max_total_token_num",
        "load model error",
        "max_len_infer",
    )

    def read(self, line: LogLine, found: Findings) -> None:
        if "lightllm" in line.text or "max_total_token_num" in line.text:
            found.engine("lightllm")
        if match := _TOKENS.search(line.text):
            found.figure("given_kv_tokens", int(match[1]), line.evidence)
        if "load model error" in line.text:
            found.sign(Sign.POOL_ALLOCATION, line.evidence)  # weights are not checked there, the pool is
            found.engine("lightllm")
        if _OVER.search(line.text):
            found.sign(Sign.STEP, line.evidence)
