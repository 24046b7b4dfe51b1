"""`nvidia-smi`: memory of each GPU, and the processes that hold it. Several tables in one file are moments in time."""

from __future__ import annotations

import re
from typing import ClassVar

from brim.explain.facts import HolderFact
from brim.explain.findings import Findings
from brim.explain.readers.lines import LogLine
from brim.units import MIB

_MEMORY = re.compile(r"(\d{1,7})MiB / +(\d{1,7})MiB")
_PROCESS = re.compile(r"^\| +\d{1,3} +\S{1,6} +\S{1,6} +(\d{1,10}) +[CGM+]{1,4} +(.{1,80}?) +(\d{1,7})MiB +\|")
_QUERY = re.compile(r"^ ?(\d{1,10}), ?([^,]{1,120}), ?(\d{1,7}) MiB")


class NvidiaSmi:
    words: ClassVar[tuple[str, ...]] = ("MiB",)

    def read(self, line: LogLine, found: Findings) -> None:
        text = line.text
        if match := _MEMORY.search(text):
            found.figure("used_by_device_bytes", int(match[1]) * MIB, line.evidence)
            found.figure("total_bytes", int(match[2]) * MIB, line.evidence)
        elif match := (_PROCESS.search(text) or _QUERY.search(text)):
            found.holder(HolderFact(int(match[1]), match[2].strip(), int(match[3]) * MIB, line.evidence))
