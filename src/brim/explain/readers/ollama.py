"""Ollama's log: what it knew of the GPUs, how many layers it placed there, and how its runner ended.

The runner's own lines are llama.cpp's, and are read as such.
"""

from __future__ import annotations

import re
from typing import ClassVar

from brim.explain.facts import Sign
from brim.explain.findings import Findings
from brim.explain.readers.lines import SIZE, LogLine, size_bytes

_GPU = re.compile(rf'total="{SIZE}" available="{SIZE}"')
_HOST = re.compile(rf"model requires more system memory \({SIZE}\) than is available \({SIZE}\)")
_ENDED = re.compile(r"llama runner process (?:has terminated|no longer running)")
_KILLED = re.compile(r"llama runner[^\n]{0,80}signal: killed|llama runner[^\n]{0,40}exit status 137")


class OllamaLog:
    words: ClassVar[tuple[str, ...]] = ("ollama", "llama runner", "system memory", 'available="')

    def read(self, line: LogLine, found: Findings) -> None:
        text = line.text
        if "ollama" in text or "llama runner" in text:
            found.engine("ollama", 2)  # its log is full of llama.cpp's lines
        if match := _GPU.search(text):
            found.figure("total_bytes", size_bytes(match[1], match[2]), line.evidence)
            found.figure("free_at_start_bytes", size_bytes(match[3], match[4]), line.evidence)
        if _HOST.search(text):
            found.sign(Sign.HOST_LOW, line.evidence)
        if _KILLED.search(text):
            found.sign(Sign.HOST_KILL, line.evidence)
        elif _ENDED.search(text):
            found.sign(Sign.ENDED, line.evidence)
