"""Files as facts: what a file is, which readers it is shown to, and how much of it is in memory at once.

In: paths. Out: an `Incident`. A text is read in pieces and never held whole; a line is cut at 16 KiB; lines that have
none of a reader's words are not shown to it. A file that is compressed with gzip is read as what is in it. Anything
that cannot be read is an error where nothing else could be read either, and else a line in what is not known.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from brim.errors import InputError, InvalidRequest
from brim.explain.facts import Incident
from brim.explain.findings import Findings
from brim.explain.readers.brim_log import BrimLog
from brim.explain.readers.commands import Commands
from brim.explain.readers.kubernetes import HostKills
from brim.explain.readers.lightllm import LightllmLog
from brim.explain.readers.lines import LineReader, LogLine, plain
from brim.explain.readers.llama_cpp import LlamaCppLog
from brim.explain.readers.nvidia_smi import NvidiaSmi
from brim.explain.readers.ollama import OllamaLog
from brim.explain.readers.recording import read_recorded
from brim.explain.readers.sglang import SglangLog
from brim.explain.readers.snapshot import is_pickle, read_snapshot
from brim.explain.readers.tgi import TgiLog
from brim.explain.readers.torch_messages import TorchMessages
from brim.explain.readers.trtllm import TrtllmLog
from brim.explain.readers.vllm import VllmLog
from brim.record.reader import is_recording, read_recording, unpacked

READERS: tuple[type[LineReader], ...] = (
    *(TorchMessages, VllmLog, SglangLog, LightllmLog, TrtllmLog, TgiLog, LlamaCppLog, OllamaLog),
    *(NvidiaSmi, HostKills, BrimLog),
    Commands,  # the last: its words are in many lines
)
_PIECE = 1 << 20
_LONGEST_LINE = 16 << 10
_MOST_LINES_SHOWN = 2_000_000  # of one file, to readers: a log in which every line is about memory
_GZIP = b"\x1f\x8b"
_MOST_UNCOMPRESSED = 4 << 30
_MOST_RECORDING = 32 << 20


def read_incident(paths: Sequence[Path]) -> Incident:
    """The facts of all files."""
    found = Findings()
    problems: list[str] = []
    for path in paths:
        try:
            read_file(path, found)
        except InputError as error:
            problems.append(str(error))
    if problems and found.is_empty:
        raise InvalidRequest("; ".join(problems))
    for problem in problems:
        found.unread(problem)
    return found.incident()


def read_file(path: Path, found: Findings) -> None:
    name = path.name
    try:
        if path.is_dir():
            raise InvalidRequest(f"'{path}' is a folder; name the files in it")
        with path.open("rb") as file:
            head = file.read(64)
            file.seek(0)
            if not head:
                raise InvalidRequest(f"'{path}' is empty")
            found.source(name)
            if is_recording(head):
                read_recorded(read_recording(path), name, found)
            elif is_pickle(head):
                read_snapshot(path, name, found)
            elif head.startswith(_GZIP):
                with gzip.open(file) as inside:
                    _read_inside(inside, name, found)
            else:
                read_text(file, name, found)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidRequest(f"'{path}' cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _read_inside(inside: gzip.GzipFile, name: str, found: Findings) -> None:
    """A compressed file: a recording, or a text."""
    head = inside.read(64)
    inside.seek(0)
    if is_recording(head):
        read_recorded(unpacked(inside.read(_MOST_RECORDING), name), name, found)
    else:
        read_text(cast("BinaryIO", inside), name, found)


def read_text(file: BinaryIO, name: str, found: Findings) -> None:
    readers = [(_any_of(reader.words), reader()) for reader in READERS]
    interesting = _any_of(word for reader in READERS[:-1] for word in reader.words)
    shown = 0
    for number, raw in _lines(file, name, found):
        if interesting.search(raw) is None and b"--" not in raw:
            continue
        shown += 1
        if shown > _MOST_LINES_SHOWN:
            found.unread(f"{name}: only the first {_MOST_LINES_SHOWN:,} lines about memory were read")
            return
        line = LogLine(name, number, plain(raw.decode("utf-8", "replace")))
        for words, reader in readers:
            if words.search(raw):
                reader.read(line, found)


def shown_to_readers(raw: bytes, found: Findings) -> None:
    """One line of a log that is still written, for readers that need no line before it."""
    line = LogLine("log", 1, plain(raw[:_LONGEST_LINE].decode("utf-8", "replace")))
    for words, reader in _FOLLOWING:
        if words.search(raw):
            reader().read(line, found)


def _any_of(words: Iterable[str]) -> re.Pattern[bytes]:
    return re.compile(b"|".join(sorted({re.escape(word.encode()) for word in words})))


def _lines(file: BinaryIO, name: str, found: Findings) -> Iterator[tuple[int, bytes]]:
    """Numbered from 1; of a longer line the beginning."""
    number, pending, read = 1, b"", 0
    while piece := file.read(_PIECE):
        read += len(piece)
        if read > _MOST_UNCOMPRESSED:
            found.unread(f"{name}: only its first 4 GiB were read")
            break
        first, *others = piece.split(b"\n")
        pending += first[: _LONGEST_LINE - len(pending)]
        for line in others:
            yield number, pending
            number, pending = number + 1, line[:_LONGEST_LINE]
    if pending:
        yield number, pending


_FOLLOWING = tuple((_any_of(reader.words), reader) for reader in READERS[:-1])
