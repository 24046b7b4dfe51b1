"""What every file of results begins with: the device, the versions, the commit."""

from __future__ import annotations

import platform
from typing import Any


def stamp(commit: str) -> dict[str, Any]:
    """Where and with what something was measured."""
    import torch
    import transformers

    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "commit": commit,
    }
