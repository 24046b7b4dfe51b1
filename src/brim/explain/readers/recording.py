"""A recording of Brim's as facts: its start, who was there, refusals, and the steps themselves for the rules."""

from __future__ import annotations

from datetime import UTC, datetime

from brim.explain.facts import Evidence, HolderFact, RecordedFact, RefusedAllocation, Sign
from brim.explain.findings import Findings, evidence_of
from brim.explain.readers.lines import LogLine
from brim.explain.readers.torch_messages import refusal_from
from brim.record.entries import Note, NoteKind, Recorded, StepEntry, StepState
from brim.units import format_bytes

_SIGNS = {
    NoteKind.PREEMPTED: Sign.PREEMPTED,
    NoteKind.REFUSED: Sign.SERVING,
}
_SAID = {str(sign): sign for sign in Sign}  # what a watched log said
_MOST_REFUSALS = 100


def read_recorded(recorded: Recorded, name: str, found: Findings) -> None:
    found.recording(RecordedFact(name, recorded))
    if recorded.truncated:
        found.unread(f"{name}: the file is cut off; what is there was read")
    start = recorded.start
    if start is not None:
        found.engine(start.engine, 5)
        where = evidence_of(name, 0, f"started: {start.engine} {start.version}, {start.model} on {start.device}")
        for flag, value in (("model", start.model), ("engine_version", start.version), *start.settings):
            found.flag(flag, value, where)
        for figure, size in (
            ("total_bytes", start.total_bytes),
            ("kv_tokens", start.kv_tokens),
            ("kv_bytes", start.kv_bytes),
            *((f"{line.name}_bytes", line.measured_bytes) for line in start.ledger if line.name != "kv"),
        ):
            if size:
                found.figure(figure, size, where)
    for note in recorded.notes:
        _note(note, name, recorded, found)
    failed = [step for step in recorded.steps if step.state is StepState.OUT_OF_MEMORY]
    for step in failed[-_MOST_REFUSALS:]:
        found.refusal(_refusal(step, name, recorded))
    if recorded.steps:
        _preemptions(recorded, name, found)


def _note(note: Note, name: str, recorded: Recorded, found: Findings) -> None:
    evidence = evidence_of(name, 0, f"{note.kind}: {note.text}" if note.text else str(note.kind), clock(note.time))
    if note.kind in _SIGNS:
        found.sign(_SIGNS[note.kind], evidence, note.count)
    elif note.kind is NoteKind.HOLDER:
        found.holder(HolderFact(note.count, note.text, note.first, evidence, note.count == recorded.pid))
    elif note.kind is NoteKind.OUT_OF_MEMORY and not recorded.steps_were_refused:
        found.refusal(refusal_from(LogLine(name, 0, note.text)))
    elif note.kind is NoteKind.LOG and note.text in _SAID:
        found.sign(_SAID[note.text], evidence)
    elif note.kind is NoteKind.HOST:
        found.figure("host_available_bytes", note.second, evidence)


def _refusal(step: StepEntry, name: str, recorded: Recorded) -> RefusedAllocation:
    text = f"a step of {described(step)} ran out of memory"
    total = recorded.start.total_bytes if recorded.start else None
    unused = max(0, step.reserved_bytes - step.allocated_bytes)
    return RefusedAllocation(
        evidence_of(name, 0, text, clock(step.time)),
        total_bytes=total,
        free_bytes=step.free_bytes,
        allocated_bytes=step.allocated_bytes,
        unused_bytes=unused,
        process_bytes=step.reserved_bytes,
    )


def _preemptions(recorded: Recorded, name: str, found: Findings) -> None:
    first, last = recorded.steps[0], recorded.steps[-1]
    count = last.preemptions - first.preemptions
    if count > 0:
        text = f"{count:,} preemptions in {last.time - first.time:,.0f} s"
        found.sign(Sign.PREEMPTED, evidence_of(name, 0, text, clock(last.time)), count)


def described(step: StepEntry) -> str:
    """A step's shape in words, and what was free."""
    return f"{described_step(step)}, {format_bytes(step.free_bytes)} free"


def described_step(step: StepEntry) -> str:
    """A step's shape in words."""
    parts = (
        (step.decodes, "decodes"),
        (step.prompt_tokens, "prompt tokens"),
        (step.media_tokens, "of them of images or audio"),
        (step.scored_rows, "scored rows"),
        (step.draft_tokens, "drafted tokens"),
    )
    return ", ".join(f"{count:,} {words}" for count, words in parts if count) or "nothing"


def clock(time: float) -> str:
    """As ISO 8601, in UTC; empty where it is no time."""
    try:
        return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return ""


def evidence_at(name: str, text: str, time: float) -> Evidence:
    return evidence_of(name, 0, text, clock(time))
