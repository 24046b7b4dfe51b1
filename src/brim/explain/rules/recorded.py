"""What a recording shows: the steps before a refusal, and what else changed on the device.

First what makes a step fail that always fitted (a neighbour, a leak, fragments), by figures that changed; then the
shape of the failed step, against those that ran.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from brim.explain.causes import MemoryCause, Suspicion
from brim.explain.facts import Evidence, Incident, RecordedFact
from brim.explain.readers.recording import described, evidence_at
from brim.explain.rules import PLACED, SAID, USUAL
from brim.record.entries import Note, NoteKind, Recorded, StepEntry, StepState
from brim.units import MIB, format_bytes

_REMARKABLE_BYTES = 16 * MIB
_REMARKABLE_PART = 0.02  # of the device
_QUIET_STEPS = 8  # that a trend needs


def from_recordings(incident: Incident) -> Iterator[Suspicion]:
    for fact in incident.recordings:
        recorded = fact.recorded
        failed = next((step for step in recorded.steps if step.state is StepState.OUT_OF_MEMORY), None)
        if failed is None:
            yield from _without_refusal(fact)
            continue
        ran = [step for step in recorded.steps if step.state is StepState.LAUNCHED and step.time <= failed.time]
        yield from _taken_by_others(fact, failed)
        yield from _grown(fact, ran, failed)
        yield from _fragments(fact, failed)
        yield from _by_shape(fact, ran, failed)


def _remarkable(recorded: Recorded) -> int:
    total = recorded.start.total_bytes if recorded.start else 0
    return max(_REMARKABLE_BYTES, int(total * _REMARKABLE_PART))


def _taken_by_others(fact: RecordedFact, failed: StepEntry) -> Iterator[Suspicion]:
    """What others held rose before the refusal, by the device's own figures or by who came."""
    notes = [note for note in fact.recorded.notes if note.time <= failed.time + 2]
    devices = [note for note in notes if note.kind is NoteKind.DEVICE]
    grown = devices[-1].third - devices[0].third if devices else 0
    came = [note for note in notes if note.kind is NoteKind.ARRIVED and note.first >= _REMARKABLE_BYTES]
    held = _held_by_others(notes, fact.recorded.pid)
    if grown >= _remarkable(fact.recorded) or came:
        who = ", ".join(f"{note.text or 'a process'} (pid {note.count})" for note in (came or held)[-3:])
        size = max(grown, *(note.first for note in came)) if came else grown
        evidence = tuple(_evidence(fact, note) for note in (came or devices)[-3:])
        yield Suspicion(
            MemoryCause.NEIGHBOUR, SAID, evidence, f"others took {format_bytes(size)} while it served: {who}"
        )


def _held_by_others(notes: Sequence[Note], own_pid: int) -> list[Note]:
    latest = {note.count: note for note in notes if note.kind is NoteKind.HOLDER and note.count != own_pid}
    return sorted(latest.values(), key=lambda note: note.first)


def _grown(fact: RecordedFact, ran: Sequence[StepEntry], failed: StepEntry) -> Iterator[Suspicion]:
    """Allocated memory that rises from step to step, whatever the steps are, with a pool of one size."""
    if len(ran) < _QUIET_STEPS:
        return
    quarter = len(ran) // 4
    least = [min(step.allocated_bytes for step in ran[part * quarter : (part + 1) * quarter]) for part in range(4)]
    rises = all(later > earlier for earlier, later in itertools.pairwise(least))
    grown = least[-1] - least[0]
    if rises and grown >= _remarkable(fact.recorded):
        first, last = ran[0], failed
        evidence = (
            evidence_at(fact.source, f"{format_bytes(first.allocated_bytes)} allocated", first.time),
            evidence_at(fact.source, f"{format_bytes(last.allocated_bytes)} allocated", last.time),
        )
        why = f"the least that was allocated between steps grew by {format_bytes(grown)}"
        yield Suspicion(MemoryCause.LEAK, PLACED + 0.05, evidence, why)


def _fragments(fact: RecordedFact, failed: StepEntry) -> Iterator[Suspicion]:
    unused = failed.reserved_bytes - failed.allocated_bytes
    if unused >= _remarkable(fact.recorded) and unused > failed.free_bytes:
        evidence = evidence_at(fact.source, f"{format_bytes(unused)} reserved and unused", failed.time)
        why = f"{format_bytes(unused)} were reserved and unused when a step was refused"
        yield Suspicion(MemoryCause.FRAGMENTATION, PLACED, (evidence,), why)


def _by_shape(fact: RecordedFact, ran: Sequence[StepEntry], failed: StepEntry) -> Iterator[Suspicion]:
    """What the failed step had more of than any that ran."""
    evidence = (evidence_at(fact.source, f"refused: {described(failed)}", failed.time), *_largest(fact, ran))
    for name, cause, words in (
        ("scored_rows", MemoryCause.SCORED_PROMPTS, "scored rows"),
        ("media_tokens", MemoryCause.MEDIA, "tokens of images or audio"),
        ("draft_tokens", MemoryCause.DRAFTS, "drafted tokens"),
        ("tokens", MemoryCause.LARGE_STEP, "tokens"),
    ):
        count, most = getattr(failed, name), max((getattr(step, name) for step in ran), default=0)
        if count > most:
            why = f"the refused step had {count:,} {words}; the most that ran before were {most:,}"
            yield Suspicion(cause, PLACED if cause is not MemoryCause.LARGE_STEP else USUAL + 0.1, evidence, why)
            return


def _largest(fact: RecordedFact, ran: Sequence[StepEntry]) -> tuple[Evidence, ...]:
    if not ran:
        return ()
    largest = max(ran, key=lambda step: step.tokens)
    return (evidence_at(fact.source, f"the largest that ran: {described(largest)}", largest.time),)


def _without_refusal(fact: RecordedFact) -> Iterator[Suspicion]:
    """Nothing was refused on the device: the host, where it ended without a word and the machine was low."""
    recorded = fact.recorded
    hosts = [note for note in recorded.notes if note.kind is NoteKind.HOST]
    if recorded.ended_in_order or len(hosts) < 2:
        return
    first, last = hosts[0], hosts[-1]
    if last.second < max(256 * MIB, first.second // 20) and last.third > first.third:
        evidence = tuple(
            evidence_at(
                fact.source, f"{format_bytes(note.second)} available, {format_bytes(note.third)} ours", note.time
            )
            for note in (first, last)
        )
        why = "it ended without a word while the machine had hardly any memory left"
        yield Suspicion(MemoryCause.HOST, USUAL + 0.1, evidence, why)


def _evidence(fact: RecordedFact, note: Note) -> Evidence:
    return evidence_at(fact.source, f"{note.kind}: {note.text} {format_bytes(note.first)}".strip(), note.time)
