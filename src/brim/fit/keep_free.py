"""How much memory a fit leaves free on a device: what the operator set, or a default for this device.

In: the operator's setting (None: not set), `DeviceFacts`, the size of the device. Out: a `KeepFree`, and what it says
about a report. Reads nothing itself: `brim.probes.facts` does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from brim.records.fit import FitReport
from brim.records.memory import DeviceFacts
from brim.units import MIB, ceil_div, format_bytes

DISPLAY_BYTES = 512 * MIB  # for windows that are opened later
_SPILLING_SHARE = 10  # a tenth of the device
_DISPLAY = "the card drives a display"
_SPILLING = "the driver spills to host memory"


@dataclass(frozen=True, slots=True)
class KeepFree:
    """Bytes to leave free, the reason for a default, and a warning about the device."""

    bytes: int
    note: str = ""
    warning: str = ""


def keep_free(asked_bytes: int | None, facts: DeviceFacts, total_bytes: int) -> KeepFree:
    """The operator's setting wins, also 0. The warning about a driver that spills is given in any case."""
    defaults = []
    if facts.drives_display:
        defaults.append((DISPLAY_BYTES, _DISPLAY))
    if facts.spills:
        defaults.append((ceil_div(total_bytes, _SPILLING_SHARE), _SPILLING))
    size, note = max(defaults, default=(0, ""))
    if asked_bytes is not None:
        size, note = asked_bytes, ""
    return KeepFree(size, note, _spilling(size) if facts.spills else "")


def with_device_warning(report: FitReport, facts: DeviceFacts, kept_free: KeepFree) -> FitReport:
    """The report of a fit on this device: where the driver spills it proves nothing, and says so."""
    found = (kept_free.warning,) if kept_free.warning else ()
    return replace(report, provable=not facts.spills, warnings=(*report.warnings, *found))


def _spilling(kept_bytes: int) -> str:
    return (
        "nothing can be proven here: under WSL the driver spills to host memory instead of failing an allocation, and "
        f"steps only become slow; {format_bytes(kept_bytes)} are kept free (keep_free)"
    )
