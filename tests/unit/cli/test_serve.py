"""The log of `brim serve`, where it cannot be written."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from brim.cli.serve import _write
from brim.serve.log import RequestLog, RequestLogEntry

if TYPE_CHECKING:
    import pytest


def test_a_log_on_a_full_disk_ends_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[RequestLogEntry] = []
    request_log = RequestLog(partial(_write, ""), counted.append)
    full = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115 - closing it fails too
    monkeypatch.setattr(sys, "stderr", full)
    entries = [request_log.entry("/v1/completions", "") for _ in range(200)]  # more than its buffer holds
    for entry in entries:
        request_log.write(entry)
    monkeypatch.undo()
    with suppress(OSError):
        full.close()
    assert counted == entries
    assert not request_log.under_way
