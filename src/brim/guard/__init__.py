"""Policies: which request is admitted, which is preempted, what is run again. Pure functions, and a driver.

For authors of engines: a `RescueDriver` serves whatever is a `brim.ports.RescuableEngine` (docs/authors.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brim.exports import lazily

if TYPE_CHECKING:
    from brim.guard.admission import AdmissionSettings, AdmissionView, Cause, Decision, may_overtake, may_start
    from brim.guard.driver import OneRank, RescueDriver
    from brim.guard.future import Claim, Future
    from brim.guard.growth import ExpectedGrowth, Growth, WorstGrowth
    from brim.guard.rescue import Condition, RescuePolicy, RetryPart, smaller_parts
    from brim.records.health import Health, Status

__all__ = [
    "AdmissionSettings",
    "AdmissionView",
    "Cause",
    "Claim",
    "Condition",
    "Decision",
    "ExpectedGrowth",
    "Future",
    "Growth",
    "Health",
    "OneRank",
    "RescueDriver",
    "RescuePolicy",
    "RetryPart",
    "Status",
    "WorstGrowth",
    "may_overtake",
    "may_start",
    "smaller_parts",
]

__getattr__ = lazily(
    __name__,
    {
        "AdmissionSettings": "brim.guard.admission",
        "AdmissionView": "brim.guard.admission",
        "Cause": "brim.guard.admission",
        "Claim": "brim.guard.future",
        "Condition": "brim.guard.rescue",
        "Decision": "brim.guard.admission",
        "ExpectedGrowth": "brim.guard.growth",
        "Future": "brim.guard.future",
        "Growth": "brim.guard.growth",
        "Health": "brim.records.health",
        "OneRank": "brim.guard.driver",
        "RescueDriver": "brim.guard.driver",
        "RescuePolicy": "brim.guard.rescue",
        "RetryPart": "brim.guard.rescue",
        "Status": "brim.records.health",
        "WorstGrowth": "brim.guard.growth",
        "may_overtake": "brim.guard.admission",
        "may_start": "brim.guard.admission",
        "smaller_parts": "brim.guard.rescue",
    },
)
