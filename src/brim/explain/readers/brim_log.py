"""What `brim serve` says on standard error when it does not start, and when it is ready."""

from __future__ import annotations

import re
from typing import ClassVar

from brim.explain.facts import RefusedAllocation, Sign
from brim.explain.findings import Findings
from brim.explain.readers.lines import SIZE, LogLine, size_bytes

_LISTENING = re.compile(r"brim: listening on ")
_READY = re.compile(r"brim: ready: \S{1,200}, ([\d,]{1,15}) tokens of KV")
_REFUSED = re.compile(rf"the device is out of memory: {SIZE} requested, {SIZE} free")
_BELOW = re.compile(r"kv_tokens is (\d{1,12}); one request needs (\d{1,12})")


class BrimLog:
    words: ClassVar[tuple[str, ...]] = ("brim: ", "brim serve: ", "brim fit: ", "the device is out of memory")

    def read(self, line: LogLine, found: Findings) -> None:
        found.engine("brim")
        text = line.text
        if _LISTENING.search(text):
            found.sign(Sign.LOADING, line.evidence)  # the fit, which comes after, does not end with a refusal
        if match := _READY.search(text):
            found.sign(Sign.SERVING, line.evidence)
            found.figure("kv_tokens", int(match[1].replace(",", "")), line.evidence)
        if match := _REFUSED.search(text):
            tried, free = size_bytes(match[1], match[2]), size_bytes(match[3], match[4])
            found.refusal(RefusedAllocation(line.evidence, tried, free_bytes=free))
        if match := _BELOW.search(text):
            found.sign(Sign.POOL_BELOW_REQUEST, line.evidence)
            found.figure("kv_tokens", int(match[1]), line.evidence)
            found.figure("max_len", int(match[2]), line.evidence)
