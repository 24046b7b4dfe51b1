"""How front processes find the report of a worker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brim.reserve.processes import identify
from brim.vllm.report import found_file, shared_file, signed, write_json


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_LEASES", str(tmp_path))


def test_the_only_front_process_has_the_worker_s_id() -> None:
    write_json(shared_file("17", 0), {"kv_tokens": 8})
    assert found_file("17", 0, fronts=1) == shared_file("17", 0)
    assert found_file("18", 0, fronts=1) is None
    assert found_file("17", 1, fronts=1) is None


def test_several_front_processes_find_what_was_started_beside_them() -> None:
    beside = signed({"kv_tokens": 8})  # by this process, as by a child of the process that started it
    write_json(shared_file("17", 1), beside)
    assert found_file("18", 1, fronts=2) == shared_file("17", 1)
    assert found_file("18", 0, fronts=2) is None
    assert found_file("18", 1, fronts=1) is None


def test_a_report_of_another_server_or_of_a_process_that_has_gone_is_not_theirs() -> None:
    mine = signed({"kv_tokens": 8})
    gone = {**mine["process"], "started_ticks": mine["process"]["started_ticks"] + 1}
    init = identify(1)
    elsewhere = {**mine["process"], "pid": 1, "started_ticks": init.started_ticks}
    write_json(shared_file("17", 0), {**mine, "process": gone})
    write_json(shared_file("18", 0), {**mine, "process": elsewhere})
    write_json(shared_file("19", 0), {"kv_tokens": 8})
    write_json(shared_file("21", 0), {**mine, "process": {**mine["process"], "started_ticks": "soon", "host": "a"}})
    shared_file("22", 0).write_text("[]")
    assert os.getppid() != 1
    assert found_file("20", 0, fronts=2) is None
