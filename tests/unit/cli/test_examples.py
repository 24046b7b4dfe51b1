"""The examples that end each help are commands that the parsers take."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from brim.cli.examples import EXAMPLES, OVERVIEW
from brim.cli.main import COMMANDS, read_options, run
from brim.model.source import load_config
from brim.planning.devices import find_devices

LINES = [(name, line) for name, examples in EXAMPLES.items() for line, _ in examples]


@pytest.mark.parametrize(("name", "line"), [*LINES, *((line.split()[1], line) for line, _ in OVERVIEW)])
def test_every_example_is_read(name: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "serve.toml").write_text("port = 8000")
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line.partition(" > ")[0])
    assert words[:2] == ["brim", name]
    options = read_options(words[1:])
    named = getattr(options, "model", None) if name in ("plan", "trace") else None
    for model in [named] if isinstance(named, str) else named or []:
        assert model.startswith("./") or load_config(model)
    if name == "plan" and options.gpu:
        assert all(find_devices(one) for text in options.gpu for one in text.split(","))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_ends_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run([command, "--help"])
    _, _, examples = capsys.readouterr().out.partition("\nexamples:\n")
    lines = [line for line in examples.splitlines() if line.startswith(f"  brim {command}")]
    assert len(lines) == len(EXAMPLES[command]) >= 2
