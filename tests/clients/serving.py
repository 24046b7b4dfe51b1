"""A `brim serve` process of a test, with folders and a key of its own; and what is asked of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from brim.cli.demo.server import demo_server

MODEL = "brim-tiny"
KEY = "sk-brim-of-the-tests"
ADA, ADA_ANSWER = "My name is Ada. What is my name?", "Your name is Ada."
ROOM = 256  # tokens of an answer that follows a schema: such a small model puts many spaces into it
WEATHER_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "London"]}},
    "required": ["city"],
    "additionalProperties": False,
}


@contextmanager
def serving(options: str, folder: Path) -> Iterator[str]:
    """The address of that server, while the block runs."""
    own = {"BRIM_CACHE": str(folder / "cache"), "BRIM_LEASES": str(folder / "leases"), "OMP_NUM_THREADS": "1"}
    options = f"{options} --device cpu --memory 1GiB --api-key {KEY} --record off"
    with patch.dict(os.environ, own), demo_server(options) as server:
        asyncio.run(server.ready())
        yield server.url
