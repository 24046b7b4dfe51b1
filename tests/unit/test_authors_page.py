"""docs/authors.md: its code runs as it is, with public names only, and a public name costs no heavy import."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from brim.records.health import Status
from tests.authors_page import page_blocks, run_page

PUBLIC = ("brim.ports", "brim.probes", "brim.fit", "brim.guard", "brim.reserve", "brim.errors", "brim.testing")


def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BRIM_LEASES", str(tmp_path))
    names = run_page()
    report, health, finished = names["report"], names["health"], names["finished"]
    assert report.kv_tokens % 4 == 0
    assert report.kv_bytes + 64 * 1024 + report.canary_bytes < 1 << 20
    assert report.attempts[-1].outcome == "proven"
    assert (health.ended_requests, health.rebuilds, health.status) == (1, 0, Status.DEGRADED)
    assert health.canary_held
    assert "40 tokens of this request do not fit in a step even alone, with the canary" in finished["huge"].error
    others = [finished[name] for name in "abcdef"]
    assert {(len(one.answer), one.error) for one in others} == {(8, "")}
    assert len({tuple(one.answer) for one in others}) == 1  # the same prompt, the same answer, disturbed or not
    assert capsys.readouterr().out.startswith(f"{report.kv_tokens:,} KV tokens, ")


def test_the_adapter_has_60_lines_at_most() -> None:
    block = page_blocks()[0]
    adapter = [line for line in block[block.index("class Adapter") :].splitlines() if line.strip()]
    assert 40 < len(adapter) <= 60


def test_the_page_uses_public_names_only() -> None:
    for block in page_blocks():
        for node in ast.walk(ast.parse(block)):
            assert not isinstance(node, ast.Import)
            if isinstance(node, ast.ImportFrom):
                assert node.module in PUBLIC
                assert {name.name for name in node.names} <= set(importlib.import_module(node.module).__all__)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_there(module: str) -> None:
    found = importlib.import_module(module)
    assert len(set(found.__all__)) == len(found.__all__)
    for name in found.__all__:
        assert getattr(found, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        found.no_such_name  # noqa: B018 - that it raises


def test_public_modules_are_imported_without_torch_and_numpy() -> None:
    check = f"import sys, {', '.join(PUBLIC)}; print([one for one in ('torch', 'numpy') if one in sys.modules])"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_page_runs_without_torch(tmp_path: Path) -> None:
    """An engine that is tested on a fake device needs no more than a plain install."""
    check = (
        "import sys; sys.modules['torch'] = None; from tests.authors_page import run_page; "
        "print(run_page()['health'].rescues)"
    )
    root = Path(__file__).parents[2]
    found = subprocess.run(
        [sys.executable, "-c", check],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
        env={"BRIM_LEASES": str(tmp_path), "PYTHONPATH": f"{root / 'src'}"},
    )
    assert int(found.stdout.splitlines()[-1]) > 0
