"""Encoders of an engine that is split over ranks: one rank has them, and all get the same features."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.serve.ranks import free_port, rank_environment
from tests.integration.encoder_ranks import KIND, answers
from tests.integration.rank_processes import forked, on_ranks, said_of
from tests.integration.test_engine_vision import model_of


def test_two_ranks_answer_as_one_that_encodes_by_itself_also_after_their_encoder_was_killed(tmp_path: Path) -> None:
    folder = str(tmp_path / "model")
    model_of(KIND).save_pretrained(folder)
    alone = answers(0, folder, "inline", False)
    reports = on_ranks(forked(), 2, tmp_path, ("process", answers, folder, "process", True), limit_seconds=240)
    first, second = said_of(reports, "process")
    assert first["tokens"] == second["tokens"] == alone["tokens"]
    assert (first["parts"], second["parts"]) == (5, 0)  # two of seven were shown before, and one rank encodes
    assert first["features"] == second["features"] > 0


SMALL = ("--max-seqs", "2", "--batch-tokens", "64", "--max-len", "128", "--scaling", "off", "--canary", "1MiB")


@pytest.mark.soak  # two fits of two ranks: a minute
def test_each_rank_accounts_for_the_encoder_on_its_own_device(tmp_path: Path) -> None:
    """By default that of the first rank; or the budget of another, which then waits for it and leaves it as much."""
    folder = str(tmp_path / "model")
    model_of(KIND).save_pretrained(folder)
    default = fitted(tmp_path, folder)
    moved = fitted(tmp_path, folder, "--encoder-gpus", "cpu:rank-1:32MiB")
    assert _neighbours(default).startswith("vision encoder of ranks at")
    assert _neighbours(moved) == ""
    assert moved["kv_tokens"] == default["kv_tokens"] < fitted(tmp_path, folder, "--encoder", "inline")["kv_tokens"]


def fitted(folder: Path, model: str, *options: str) -> dict[str, Any]:
    """What the first of two ranks reports, each on a budget of its own."""
    port = free_port()
    command = [sys.executable, "-m", "brim.cli.main", "fit", model, *SMALL, "--tp", "2", "--encoder", "process"]
    environment = {**os.environ, "BRIM_LEASES": str(folder / "leases"), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [*command, *options, "--no-store", "--json", "--device", f"cpu:rank-{rank}:32MiB"],
            env={**environment, **rank_environment(rank, 2, port)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=180)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0]
    return dict(json.loads(said[0]))


def _neighbours(report: dict[str, Any]) -> str:
    return next((str(item["note"]) for item in report["items"] if item["name"] == "neighbours"), "")
