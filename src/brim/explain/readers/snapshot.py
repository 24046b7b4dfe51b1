"""Torch's memory snapshots (`torch.cuda.memory._dump_snapshot`): what its allocator held, and where it was refused.

The pickle is read as plain containers (`plain_pickle`). Containers may refer to each other in any way, so no more than
a fixed number of segments, blocks and events is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from brim.explain.facts import RefusedAllocation
from brim.explain.findings import Findings, evidence_of
from brim.explain.readers.lines import LogLine
from brim.explain.readers.plain_pickle import MOST_BYTES, NotPlain, read_plain
from brim.explain.readers.torch_messages import TorchMessages
from brim.units import format_bytes

_MOST_SEGMENTS, _MOST_EVENTS, _MOST_FRAMES = 200_000, 500_000, 64
_LARGEST_SIZE = 1 << 50


def is_pickle(head: bytes) -> bool:
    return head[:1] == b"\x80" and len(head) > 1 and 2 <= head[1] <= 5


def read_snapshot(path: Path, name: str, found: Findings) -> None:
    if path.stat().st_size > MOST_BYTES:
        found.unread(f"{name}: a snapshot of more than {format_bytes(MOST_BYTES)}; dump one with fewer max_entries")
        return
    try:
        read = read_plain(path.read_bytes())
    except NotPlain as error:
        found.unread(f"{name}: {error}")
        return
    if read.problem:
        found.unread(f"{name}: {read.problem}; what could be read is used")
    segments = list(islice(_segments(read.roots), _MOST_SEGMENTS))
    if not segments:
        found.unread(f"{name}: a pickle without the segments of a memory snapshot")
        return
    reserved, allocated = _sum(segments, "total_size"), _sum(segments, "allocated_size")
    evidence = evidence_of(
        name, 0, f"{len(segments)} segments: {format_bytes(reserved)} reserved, {format_bytes(allocated)} allocated"
    )
    found.figure("reserved_bytes", reserved, evidence)
    found.figure("allocated_bytes", allocated, evidence)
    found.figure("largest_unused_bytes", _largest_unused(segments), evidence)
    refused = _last_refusal(read.roots)
    if refused is not None:
        tried, free = _size(refused.get("size")), _size(refused.get("device_free"))
        text = f"snapshot: {format_bytes(tried)} refused, {format_bytes(free)} free on the device"
        unused = max(0, reserved - allocated)
        where = evidence_of(name, 0, text)
        found.refusal(RefusedAllocation(where, tried, None, free, allocated, unused))
        _frames(refused, name, found)


def _frames(refused: dict[Any, Any], name: str, found: Findings) -> None:
    """The frames of the refusal, as a traceback would show them."""
    reader, frames = TorchMessages(), refused.get("frames")
    for frame in islice(frames, _MOST_FRAMES) if isinstance(frames, list) else ():
        if isinstance(frame, dict):
            file, function = str(frame.get("filename"))[:200], str(frame.get("name"))[:100]
            reader.read(LogLine(name, 0, f'  File "{file}", in {function}'), found)


def _segments(roots: Iterable[Any]) -> Iterator[dict[Any, Any]]:
    for root in roots:
        listed = root.get("segments") if isinstance(root, dict) else root
        for one in listed if isinstance(listed, list) else ():
            if isinstance(one, dict) and "total_size" in one:
                yield one


def _largest_unused(segments: Iterable[dict[Any, Any]]) -> int:
    largest = seen = 0
    for segment in segments:
        blocks = segment.get("blocks")
        for block in blocks if isinstance(blocks, list) else ():
            seen += 1
            if seen > _MOST_EVENTS:
                return largest
            if isinstance(block, dict) and block.get("state") == "inactive":
                largest = max(largest, _size(block.get("size")))
    return largest


def _last_refusal(roots: Iterable[Any]) -> dict[Any, Any] | None:
    last, seen = None, 0
    for root in roots:
        traces = root.get("device_traces") if isinstance(root, dict) else None
        for trace in islice(traces, 64) if isinstance(traces, list) else ():
            for event in trace if isinstance(trace, list) else ():
                seen += 1
                if seen > _MOST_EVENTS:
                    return last
                if isinstance(event, dict) and event.get("action") == "oom":
                    last = event
    return last


def _sum(segments: Iterable[dict[Any, Any]], name: str) -> int:
    return sum(_size(segment.get(name)) for segment in segments)


def _size(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value <= _LARGEST_SIZE else 0
