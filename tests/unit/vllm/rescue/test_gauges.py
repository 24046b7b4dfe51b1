"""Rescues as a file for the front process."""

from __future__ import annotations

from pathlib import Path

from brim.guard.rescue import Condition
from brim.vllm.report import read_report
from brim.vllm.rescue.gauges import RescueFile


def figures(path: Path) -> dict[str, int]:
    report = read_report(path)
    assert report is not None
    return {name: value for name, value in report.items() if name != "process"}


def test_a_file_follows_the_rescues_and_is_written_only_then(tmp_path: Path) -> None:
    file = RescueFile(tmp_path / "vllm-a-0.rescues")
    file.write(Condition(512))
    assert figures(file.path) == {"rescues": 0, "ended_requests": 0, "step_token_limit": 512}
    file.path.unlink()
    file.write(Condition(512, changed_at=7))
    assert not file.path.exists()
    file.write(Condition(256, rescues=2, ended_requests=1))
    assert figures(file.path) == {"rescues": 2, "ended_requests": 1, "step_token_limit": 256}
    file.remove()
    file.remove()
    assert list(tmp_path.iterdir()) == []
