"""For tests of engines that use Brim: honest fakes, and checks of what Brim expects of an engine (docs/authors.md).

A `FakeDevice` counts what is allocated and refuses what does not fit; a `FakeEngine` has weights, a KV pool and
requests, and its answers depend on what is in the pool. Neither needs torch; `CpuProbe` does, and counts real tensors.
`check_sizable` and `check_rescuable` raise `NotConforming` with what an engine does wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brim.exports import lazily

if TYPE_CHECKING:
    from brim.probes.cpu import CpuProbe
    from brim.testing.conformance import NotConforming, RefusingProbe
    from brim.testing.device import FakeDevice, FakeTensor
    from brim.testing.engine import FakeEngine, FakeRequest
    from brim.testing.rescuable import RescueLoad, check_rescuable
    from brim.testing.sizable import check_sizable

__all__ = [
    "CpuProbe",
    "FakeDevice",
    "FakeEngine",
    "FakeRequest",
    "FakeTensor",
    "NotConforming",
    "RefusingProbe",
    "RescueLoad",
    "check_rescuable",
    "check_sizable",
]

__getattr__ = lazily(
    __name__,
    {
        "CpuProbe": "brim.probes.cpu",
        "FakeDevice": "brim.testing.device",
        "FakeEngine": "brim.testing.engine",
        "FakeRequest": "brim.testing.engine",
        "FakeTensor": "brim.testing.device",
        "NotConforming": "brim.testing.conformance",
        "RefusingProbe": "brim.testing.conformance",
        "RescueLoad": "brim.testing.rescuable",
        "check_rescuable": "brim.testing.rescuable",
        "check_sizable": "brim.testing.sizable",
    },
)
