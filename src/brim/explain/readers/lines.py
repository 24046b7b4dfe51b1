"""What readers of text share: a line, sizes and times in it, and what a reader is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Protocol

from brim.explain.facts import Evidence
from brim.explain.findings import Findings, evidence_of
from brim.units import GIB, KIB, MIB

SIZE = r"(\d{1,15}(?:\.\d{1,6})?) ?(bytes|B|KiB|MiB|GiB|TiB|KB|MB|GB|TB)\b"
_UNITS = {
    "bytes": 1,
    "B": 1,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": 1 << 40,
    "KB": KIB,
    "MB": MIB,
    "GB": GIB,
    "TB": 1 << 40,  # engines divide by powers of 1024 and write GB
}
_ANSI = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?Z?|\b\d\d-\d\d \d\d:\d\d:\d\d"
    r"|\b[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a text, cut where it is very long."""

    source: str
    number: int
    text: str

    @property
    def evidence(self) -> Evidence:
        found = _TIME.search(self.text[:200])
        return evidence_of(self.source, self.number, self.text, found[0] if found else "")


class LineReader(Protocol):
    """Reads one kind of log. A new one is made for every file, and is shown the lines with one of its words."""

    words: ClassVar[tuple[str, ...]]  # a line with none of them says nothing to this reader

    def read(self, line: LogLine, found: Findings) -> None: ...


def plain(text: str) -> str:
    """Without the colours of a terminal."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def size_bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])


def sizes(pattern: re.Pattern[str], text: str) -> int | None:
    """The size that a pattern with `SIZE` in it finds."""
    match = pattern.search(text)
    return None if match is None else size_bytes(match[1], match[2])


def whole(text: str) -> int:
    """A count with or without separators."""
    return int(text.replace(",", "").replace("_", ""))
