"""What happened, in a few lines: phases, signs and refusals in the order of their files, and notes of recordings."""

from __future__ import annotations

from itertools import groupby

from brim.explain.facts import Evidence, Incident
from brim.explain.readers.recording import clock, described
from brim.record.entries import NoteKind, StepState
from brim.units import format_bytes

_MOST = 40
_FIGURES = frozenset({NoteKind.DEVICE, NoteKind.HOLDER, NoteKind.HOST})


def timeline_of(incident: Incident) -> tuple[Evidence, ...]:
    """At most forty lines: the first half and the last half of them where there are more."""
    order = {name: number for number, name in enumerate(incident.sources)}
    found = [
        (order.get(one.evidence.source, 0), one.evidence.line, str(one.sign), one.evidence) for one in incident.seen
    ]
    found += [
        (order.get(one.evidence.source, 0), one.evidence.line, "refused", one.evidence)
        for one in incident.refusals
        if one.evidence.line
    ]
    found = [one for one in found if one[1]]
    found.sort(key=lambda one: one[:2])
    lines = [_said(name, list(group)) for name, group in groupby(found, key=lambda one: one[2])]
    lines += _recorded(incident)
    if len(lines) <= _MOST:
        return tuple(lines)
    return (*lines[: _MOST // 2], *lines[-_MOST // 2 :])


def _said(name: str, group: list[tuple[int, int, str, Evidence]]) -> Evidence:
    """Neighbouring lines that say the same are one."""
    first = group[0][3]
    times = f" ({len(group)} lines)" if len(group) > 1 else ""
    return Evidence(first.source, first.line, f"{name}{times}: {first.text}", first.time)


def _recorded(incident: Incident) -> list[Evidence]:
    """Notes and refused steps in the order of time; of those that say the same in a row, the first."""
    found: list[tuple[float, str, str]] = []
    for fact in incident.recordings:
        for note in fact.recorded.notes:
            if note.kind not in _FIGURES:
                size = f" {format_bytes(note.first)}" if note.kind in (NoteKind.ARRIVED, NoteKind.LEFT) else ""
                found.append((note.time, fact.source, f"{note.kind}: {note.text}{size}".rstrip(": ")))
        failed = [step for step in fact.recorded.steps if step.state is StepState.OUT_OF_MEMORY][:5]
        found += [(step.time, fact.source, f"refused: a step of {described(step)}") for step in failed]
        if fact.recorded.steps:
            last = fact.recorded.steps[-1]
            end = "ended in order" if fact.recorded.ended_in_order else "the last step before it ended"
            found.append((last.time, fact.source, f"{end}: {described(last)}"))
    found.sort(key=lambda one: one[0])
    lines = []
    for (source, text), group in groupby(found, key=lambda one: one[1:]):
        times = list(group)
        again = f" ({len(times)} times)" if len(times) > 1 else ""
        lines.append(Evidence(source, 0, text + again, clock(times[0][0])))
    return lines
