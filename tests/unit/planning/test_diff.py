"""The diff of two plans: what changed in the ledger, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import brim
from brim.cli.main import run
from brim.errors import InvalidRequest
from brim.model.catalogue import entries
from brim.planning.devices import catalogue
from brim.planning.diff import diff_plans, view
from brim.planning.engines import ENGINES

ASKED = {
    "gpu": st.sampled_from([device.key for device in catalogue()]),
    "engine": st.sampled_from([None, *ENGINES]),
    "max_len": st.none() | st.integers(1024, 1 << 17),
    "kv_dtype": st.sampled_from([None, "fp8"]),
}


@settings(max_examples=40, deadline=None)
@given(model=st.sampled_from(sorted(entries())), one=st.fixed_dictionaries(ASKED), other=st.fixed_dictionaries(ASKED))
def test_the_rows_make_up_the_difference(model: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    try:
        before, after = brim.plan(model, **one), brim.plan(model, **other)
    except InvalidRequest:
        assume(False)
        return
    assert diff_plans(view(before), view(before)) == ()
    rows = diff_plans(view(before), view(after))
    changed = {row.item: row.after_bytes - row.before_bytes for row in rows}
    assert sum(size for item, size in changed.items() if item != "device") == changed.get("device", 0)
    assert all(row.why for row in rows)


def test_files_that_json_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "qwen3-8b", "--gpu", "h100", "--max-len", "8k", "--json"]
    files = []
    for name, more in (("a.json", []), ("b.json", ["--kv-dtype", "fp8", "--batch-tokens", "2048"])):
        run([*words, *more])
        files.append(tmp_path / name)
        files[-1].write_text(capsys.readouterr().out, encoding="utf-8")
    assert run(["plan", *map(str, files), "--diff", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["item"]: row for row in found["diff"]}
    assert set(rows) >= {"activation", "kv"}
    assert set(rows["kv"]) == {"item", "before_bytes", "after_bytes", "why"}
    assert "kv_dtype bf16 → fp8" in rows["kv"]["why"]
    assert "batch_tokens 8,192 → 2,048" in rows["activation"]["why"]
    assert run(["plan", str(files[0]), str(files[0]), "--diff", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["diff"] == []
    run(["plan", *map(str, files), "--diff"])
    assert "fp8" in capsys.readouterr().out


def test_two_models_with_the_same_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan qwen3-8b qwen3-14b --gpu h100 --diff --json".split()) == 0  # noqa: SIM905
    rows = {row["item"]: row for row in json.loads(capsys.readouterr().out)["diff"]}
    assert rows["weights"]["after_bytes"] > rows["weights"]["before_bytes"]
    assert "8.19 B parameters" in rows["weights"]["why"]


@pytest.mark.parametrize("words", ["plan qwen3-8b --gpu h100 --diff", "plan a b c --gpu h100 --diff"])
def test_two_are_compared(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words.split()) == 2
    assert "--diff compares two" in capsys.readouterr().err


def test_several_models_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "qwen3-8b", "qwen3-14b", "--gpu", "h100", "--json"]) == 0
    assert [plan["model"] for plan in json.loads(capsys.readouterr().out)["plans"]] == ["qwen3-8b", "qwen3-14b"]
    run(["plan", "qwen3-8b", "qwen3-14b", "--gpu", "h100"])
    said = capsys.readouterr().out
    assert "qwen3-8b" in said
    assert "qwen3-14b" in said
