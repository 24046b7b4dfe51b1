"""From files to an explanation: facts, a cause, the ledger, fixes, and what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from brim.errors import BrimError
from brim.explain.causes import MemoryCause
from brim.explain.diagnose import Diagnosis, diagnose
from brim.explain.facts import Evidence, GivenFlag, Incident
from brim.explain.fixes import BRIM_WOULD, LEDGER, Fix, fixes_for
from brim.explain.ledger import LedgerRow, ledger_of, who_took
from brim.explain.model_plan import known_model, plan_of
from brim.explain.reading import read_incident
from brim.explain.replay import StepReplay, replay
from brim.explain.timeline import timeline_of
from brim.units import format_bytes

_STEPS = frozenset(
    {MemoryCause.LARGE_STEP, MemoryCause.SCORED_PROMPTS, MemoryCause.SAMPLING, MemoryCause.MEDIA, MemoryCause.DRAFTS}
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What `brim explain` says."""

    incident: Incident
    diagnosis: Diagnosis
    timeline: tuple[Evidence, ...]
    ledger: tuple[LedgerRow, ...]
    fixes: tuple[Fix, ...]
    unknown: tuple[str, ...]
    replays: tuple[StepReplay, ...] = ()  # of the last steps, where it was asked for

    @property
    def brim_would(self) -> str:
        return BRIM_WOULD.get(self.diagnosis.cause, "")

    @property
    def difference(self) -> str:
        """Who took more than planned, in words; empty where that is not known."""
        row = who_took(self.ledger)
        if row is None or row.should_bytes is None or row.took_bytes is None:
            return ""
        return f"{row.name} took {format_bytes(row.took_bytes)}; {format_bytes(row.should_bytes)} were planned for it"

    def to_json(self) -> dict[str, Any]:
        """The stable keys of `brim explain --json`."""
        return {
            "cause": str(self.diagnosis.cause),
            "confidence": round(self.diagnosis.confidence, 2),
            "why": self.diagnosis.why,
            "engine": self.incident.engine or None,
            "evidence": [one.to_json() for one in self.diagnosis.evidence],
            "timeline": [one.to_json() for one in self.timeline],
            "ledger": [row.to_json() for row in self.ledger],
            "fixes": [fix.to_json() for fix in self.fixes],
            "brim_would": self.brim_would,
            "unknown": list(self.unknown),
            "replay": [one.to_json() for one in self.replays],
        }


def explain(
    paths: Sequence[Path], *, model: str | None = None, replayed: bool = False, with_timeline: bool = False
) -> Explanation:
    """`model`: what was served, where the files do not say; `replayed`: the last steps run again on the meta device."""
    incident = read_incident(paths)
    if model is not None:
        told = GivenFlag("model", model, Evidence("--model", 0, model))
        incident = replace(incident, flags=(*incident.flags, told))
    diagnosis = diagnose(incident)
    plan = plan_of(incident)
    fixes = fixes_for(diagnosis.cause, incident, plan)
    unknown = (*diagnosis.open_questions, *_not_known(incident, diagnosis, fixes), *incident.unread)
    found = Explanation(incident, diagnosis, timeline_of(incident), ledger_of(incident, plan), fixes, unknown)
    return _replayed(found, with_timeline) if replayed else found


def _replayed(found: Explanation, with_timeline: bool) -> Explanation:
    try:
        return replace(found, replays=replay(found.incident, with_timeline=with_timeline))
    except BrimError as error:  # all else that is known is said all the same
        return replace(found, unknown=(*found.unknown, f"how the last step fills memory: {error}"))


def _not_known(incident: Incident, diagnosis: Diagnosis, fixes: tuple[Fix, ...]) -> list[str]:
    if diagnosis.cause is MemoryCause.UNKNOWN:
        return []
    found = []
    if not incident.engine:
        found.append("which engine wrote this: no flag can be named")
    elif not fixes and diagnosis.cause not in (MemoryCause.HOST, MemoryCause.LEAK):
        missing = "the model" if known_model(incident) is None else "the size of the pool and of the device"
        found.append(f"{missing}: no number could be checked, so that none is given; give the log from its start")
    if diagnosis.cause in _STEPS and any(fix.checked_by == LEDGER for fix in fixes):
        found.append("what the step would have asked for after the allocation that failed: the number may be too high")
    return found
