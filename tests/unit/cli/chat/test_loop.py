"""The loop of `brim chat`: one bad line ends one turn; replies are JSON whatever was evicted."""

from __future__ import annotations

import json
import sys
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brim.cli.chat.commands import obey, with_common
from brim.cli.chat.loop import converse
from brim.cli.chat.reading import Lines
from brim.cli.chat.reply_entry import reply_entry
from brim.engine.chat.media_files import MediaFile
from brim.engine.chat.reply import Reply
from brim.engine.chat.turns import Turn


class Echo:
    """Says what it hears."""

    def __init__(self) -> None:
        self.chat = SimpleNamespace(system="Be kind.")

    def obey(self, line: str, as_json: bool) -> dict[str, Any] | None:
        return obey(self, line, with_common({}), as_json)

    def retry(self) -> None:
        raise AssertionError

    def reply_again(self) -> dict[str, Any]:
        return {"text": "again"}

    def answer(self, text: str) -> None:
        raise AssertionError(text)

    def reply(self, text: str) -> dict[str, Any]:
        return {"text": text}


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_line_that_is_not_utf8_is_left_out(
    errors: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = TextIOWrapper(BytesIO(b"hi\nno \xff\xfe\nhello\n"), encoding="utf-8", errors=errors)
    monkeypatch.setattr(sys, "stdin", given)
    converse(Echo(), Lines(), as_json=True)
    first, refused, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (first, last) == ({"text": "hi"}, {"text": "hello"})
    assert refused == {"error": "the line is not UTF-8 at its character 3; it was left out"}


def test_commands_answer_programs_in_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = "/retry\n/system\n/system Be short.\n/system\n/help\n/none\n"
    monkeypatch.setattr(sys, "stdin", StringIO(lines))
    converse(Echo(), Lines(), as_json=True)
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found[:3] == [{"text": "again"}, {"system": "Be kind."}, {"system": "Be short."}]
    assert "/retry" in found[3]["commands"]
    assert list(found[4]) == ["error"]


def test_evicted_media_are_named() -> None:
    turn = Turn("user", "see", images=(MediaFile("a.png", b""), Path("b.png"), b"\x00png"), audios=(([0.0], 16_000),))
    found = json.loads(json.dumps(reply_entry(Reply("Hi", (1, 2), 2, 30, 40, 8, "stop", (turn,)))))
    (evicted,) = found.pop("evicted")
    assert evicted["images"] == ["a.png", "b.png", "4 bytes"]
    assert evicted["audios"] == ["1 samples"]
    assert (evicted["role"], evicted["content"], evicted["pinned"]) == ("user", "see", False)
    assert found == {
        "text": "Hi",
        "tokens": [1, 2],
        "evicted_turns": 2,
        "evicted_tokens": 30,
        "prompt_tokens": 40,
        "reused_tokens": 8,
        "finish_reason": "stop",
    }
