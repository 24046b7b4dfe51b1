"""What processes on a device were promised, for one that has no lease itself: stock vLLM."""

from __future__ import annotations

from pathlib import Path

from brim.folders import leases_folder
from brim.reserve.devices import LeasedDevice
from brim.reserve.hold import check_known
from brim.reserve.ledger import Ledger


def promised_bytes(device: LeasedDevice, folder: Path | None = None) -> int:
    """Claimed by leases and not yet counted as used: free by the driver's figure, and not there for others."""
    ledger = Ledger(leases_folder() if folder is None else folder, device.key)
    if not ledger.has_holders:
        return 0
    with ledger.opened() as page:
        check_known("vLLM", page)
        leases = page.leases
    now = device.now(leases)
    return sum(now.outstanding(lease) for lease in leases)
