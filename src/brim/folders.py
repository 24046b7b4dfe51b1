"""Where Brim keeps what it has found out, traced curves and proven fits, and where processes leave their leases.

The commands and the Python API use the same folders.
"""

from __future__ import annotations

import os
from pathlib import Path


def curves_folder() -> Path:
    """Where traced curves are kept."""
    return _own_folder() / "curves"


def fits_folder() -> Path:
    """Where proven fits are kept."""
    return _own_folder() / "fits"


def history_file() -> Path:
    """What was typed in conversations."""
    return _own_folder() / "chat_history"


def recordings_folder() -> Path:
    """Where servers write their last steps and events."""
    return _own_folder() / "recordings"


def leases_folder() -> Path:
    """$BRIM_LEASES, else /tmp/brim-UID.

    Not $TMPDIR or $XDG_RUNTIME_DIR: all processes of a user must look at the same place, and in a service, a cron job
    or a container those are set differently, or not at all. The second also vanishes at logout, under what still runs.
    """
    own = os.environ.get("BRIM_LEASES")
    return Path(own).absolute() if own else Path(f"/tmp/brim-{os.getuid()}")


def _own_folder() -> Path:
    """$BRIM_CACHE, else $XDG_CACHE_HOME/brim, else ~/.cache/brim."""
    own = os.environ.get("BRIM_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "brim"
