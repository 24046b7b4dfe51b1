"""What the host has left: the least of what the machine and its container say."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.probes import host


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(host, "_CGROUPS", ((tmp_path / "max", tmp_path / "current"),))
    (tmp_path / "meminfo").write_text("MemTotal: 4000 kB\nMemAvailable:    3000 kB\n")
    return tmp_path


def test_the_machine_alone(system: Path) -> None:
    assert host.available_host_bytes() == 3000 * 1024
    (system / "max").write_text("max\n")
    (system / "current").write_text("1000\n")
    assert host.available_host_bytes() == 3000 * 1024


def test_a_container_with_less(system: Path) -> None:
    (system / "max").write_text("1000000\n")
    (system / "current").write_text("400000\n")
    assert host.available_host_bytes() == 600000
    (system / "current").write_text("1000001\n")
    assert host.available_host_bytes() == 0


def test_a_system_that_says_nothing(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (system / "meminfo").unlink()
    monkeypatch.setattr(host.os, "sysconf", lambda name: {"SC_AVPHYS_PAGES": 10, "SC_PAGE_SIZE": 4096}[name])
    assert host.available_host_bytes() == 40960
    monkeypatch.delattr(host.os, "sysconf")
    assert host.available_host_bytes() == 0
