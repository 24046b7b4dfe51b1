"""Facts to a cause: every rule is asked, and the surest suspicion counts, unless another contradicts it.

Two suspicions of the same cause make it surer. Below `_DECIDES`, and where the second is nearly as sure as the first,
the answer is that it is not known, with both as what is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from brim.explain.causes import MemoryCause, Suspicion
from brim.explain.facts import Evidence, Incident
from brim.explain.rules.figures import from_fragments, from_others, from_start, from_usage_over_time
from brim.explain.rules.placed import from_flags, from_fraction, from_places, from_serving
from brim.explain.rules.recorded import from_recordings
from brim.explain.rules.said import from_host, from_pool

Rule = Callable[[Incident], Iterator[Suspicion]]
RULES: tuple[Rule, ...] = (
    *(from_recordings, from_places, from_flags, from_serving, from_fraction),
    *(from_others, from_fragments, from_start, from_usage_over_time, from_pool, from_host),
)
_DECIDES = 0.5
_APART = 0.04  # less than this between the first and the second decides nothing
_SURER = 0.05
_SHOWN_EVIDENCE = 12


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A cause, how sure it is, and what else was suspected."""

    cause: MemoryCause
    confidence: float
    why: str
    evidence: tuple[Evidence, ...]
    others: tuple[Suspicion, ...] = ()
    open_questions: tuple[str, ...] = ()


def diagnose(incident: Incident) -> Diagnosis:
    by_cause = _by_cause([one for rule in RULES for one in rule(incident)])
    if not by_cause:
        return Diagnosis(MemoryCause.UNKNOWN, 0.0, MemoryCause.UNKNOWN.words, (), (), (_missing(incident),))
    first, *others = by_cause
    unclear = [one for one in others if first.confidence - one.confidence < _APART]
    if first.confidence < _DECIDES or unclear:
        said = tuple(f"it may be {one.cause}: {one.why}" for one in (first, *unclear))
        evidence = tuple(one for suspicion in (first, *unclear) for one in suspicion.evidence)[:_SHOWN_EVIDENCE]
        return Diagnosis(MemoryCause.UNKNOWN, 0.0, MemoryCause.UNKNOWN.words, evidence, tuple(by_cause), said)
    return Diagnosis(first.cause, first.confidence, first.why, first.evidence[:_SHOWN_EVIDENCE], tuple(others))


def _by_cause(found: list[Suspicion]) -> list[Suspicion]:
    """One for each cause, the surest first; several rules that agree raise it a little."""
    best: dict[MemoryCause, Suspicion] = {}
    rules: dict[MemoryCause, set[str]] = {}
    for one in found:
        rules.setdefault(one.cause, set()).add(one.why)
        if one.cause not in best or one.confidence > best[one.cause].confidence:
            best[one.cause] = one
    surer = [
        Suspicion(cause, min(0.97, one.confidence + _SURER * (len(rules[cause]) > 1)), one.evidence, one.why)
        for cause, one in best.items()
    ]
    return sorted(surer, key=lambda one: one.confidence, reverse=True)


def _missing(incident: Incident) -> str:
    if incident.refusals:
        return "an allocation was refused, and nothing says in which part: give the log from its start"
    if incident.recordings:
        return "no step was refused and nobody was preempted: what ended the server is not in its recording"
    return "nothing in these files says that memory ran out"
