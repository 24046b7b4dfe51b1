"""A budget that notes where every allocation of a run comes from, so that each place can be refused once."""

from __future__ import annotations

import sys
from typing import Any

from brim.probes.cpu import CpuProbe

Site = tuple[tuple[Any, int], ...]  # (code, line) of every frame that is not the probe's or torch's
_NOT_OURS = ("/torch/", "/probes/", "/_pytest/", "/pluggy/")


class SiteProbe(CpuProbe):
    """Counts like a device; while `noting`, remembers the allocations of each site by number."""

    def __init__(self, budget_bytes: int) -> None:
        super().__init__(budget_bytes)
        self.noting = False
        self.sites: dict[Site, list[int]] = {}

    def made(self, results: Any, arguments: Any) -> None:
        before = self.allocations
        try:
            super().made(results, arguments)
        finally:
            if self.noting and self.allocations > before:
                self.sites.setdefault(_site(), []).append(self.allocations)


def _site() -> Site:
    found = []
    frame = sys._getframe(2)
    while frame is not None:
        if not any(part in frame.f_code.co_filename for part in _NOT_OURS):
            found.append((frame.f_code, frame.f_lineno))
        if frame.f_code.co_name == "advance":
            break
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)
