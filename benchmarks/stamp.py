"""What every file of results begins with: the device, the versions, the commit."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

UNKNOWN = "unknown"


def stamp(commit: str = UNKNOWN) -> dict[str, Any]:
    """Where and with what something was measured. A commit is given where the sources are a copy without history."""
    import torch
    import transformers

    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        **found_commit(commit),
    }


def found_commit(commit: str) -> dict[str, Any]:
    """The commit of the tree that this file is in, and whether the tree differs from it; else the given one."""
    own, changed = git("rev-parse", "--short", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    if own is None or changed is None:
        return {"commit": commit, "dirty": None}
    return {"commit": own, "dirty": bool(changed)}


def git(*words: str) -> str | None:
    """What git says of this tree; None where there is no git, or no history."""
    try:
        done = subprocess.run(
            ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
