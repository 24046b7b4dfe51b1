"""`python -m brim.cli.demo`."""

from __future__ import annotations

import sys

from brim.cli.demo.commands import show_commands
from brim.cli.demo.story import show_serving

if __name__ == "__main__":
    show_commands()
    sys.exit(show_serving())
