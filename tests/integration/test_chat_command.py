"""`brim chat` without a terminal: turns and commands line by line, one process for each way of speaking."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.conftest import needs_image_files


def chat(lines: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "brim.cli.main", "chat", "--quiet", "--device", "cpu", *options]
    said = "".join(f"{line}\n" for line in lines)
    return subprocess.run(command, input=said, capture_output=True, text=True, check=False, timeout=300)


def test_a_conversation_and_its_commands(tmp_path: Path) -> None:
    saved = str(tmp_path / "talk.json")
    done = chat(
        [
            "My name is Ada.",
            "/pin",
            *["What is 2 + 3?"] * 8,
            "What is my name?",
            "/undo",
            "/nonsense",
            "/save",
            f"/save {saved}",
            "/system Answer in capitals.",
            "What is my name?",
            f"/load {saved}",
            "/image none.png",
            "/usage",
            "/help",
            "/quit",
            "never reached",
        ],
        "--rolling-threshold",
        "130",
        "--max-tokens",
        "24",
    )
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    assert answers[0] == "Nice to meet you, Ada."
    assert answers.count("2 + 3 = 5.") == 8
    assert "Your name is Ada." in answers  # the pinned turn is still there
    assert "YOUR NAME IS ADA." in answers
    assert "tokens) were dropped to make room]" in done.stderr
    for told in ("is no command", "/save needs FILE", "turns loaded]", "there is no such file"):
        assert told in done.stderr
    assert "the oldest go at 130 tokens, down to 65" in done.stdout
    assert json.loads(Path(saved).read_text())["rolling_threshold"] == 130
    assert "never reached" not in done.stdout + done.stderr


def test_json_lines_and_images(tmp_path: Path) -> None:
    needs_image_files()
    pillow = pytest.importorskip("PIL.Image")
    image = tmp_path / "red.png"
    pillow.new("RGB", (64, 48), (200, 30, 30)).save(image)
    lines = [f"/image {image}", "What is it?", "word " * 3000, "And now?", "/usage", "/retry"]
    done = chat(lines, "--json", "--max-tokens", "4", "--load-format", "auto", "brim-tiny-vl")
    assert done.returncode == 0, done.stderr
    first, refused, second, usage, again = (json.loads(line) for line in done.stdout.splitlines())
    assert first["prompt_tokens"] > 6
    assert second["reused_tokens"] + 32 > first["prompt_tokens"]
    assert "rolling_threshold of 2048" in refused["error"]
    assert [turn["role"] for turn in usage["turns"]] == ["user", "assistant"] * 2
    assert (again["text"], again["prompt_tokens"]) == (second["text"], second["prompt_tokens"])
