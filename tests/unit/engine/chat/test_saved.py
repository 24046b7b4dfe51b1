"""Conversations on disk: what was saved comes back, and damage is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.engine.chat.conversation import Conversation
from brim.engine.chat.media_files import MediaFile
from brim.engine.chat.saved import SavedChat, read_chat, write_chat
from brim.engine.chat.turns import Turn, exchanges_of
from brim.engine.requests.grammar import Grammar
from brim.engine.requests.params import SamplingParams
from brim.errors import InvalidRequest

CAT, MEOW = MediaFile("cat.png", b"a cat"), MediaFile("cat.wav", b"meow")
TURNS = (
    Turn("user", "Who is it?", images=(CAT, b"\x00png"), audios=(MEOW, b"\x00wav")),
    Turn("assistant", "", tool_calls=({"function": {"name": "look"}},)),
    Turn("tool", "a cat"),
    Turn("assistant", "A cat – ещё."),
    Turn("user", "Thanks.", pinned=True),
)
CHAT = SavedChat(
    Conversation("Be kind.", ({"name": "look"},), exchanges_of(TURNS), "They met."),
    100,
    40,
    "evict",
    SamplingParams(3, 0.7, seed=5, stop=("x",), logit_bias=((1, 2.0),), grammar=Grammar.regex("a+"), speculate=False),
)


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    write_chat(tmp_path / "chat.json", CHAT)
    assert read_chat(tmp_path / "chat.json") == CHAT
    assert [path.name for path in tmp_path.iterdir()] == ["chat.json"]


def test_defaults_are_saved_as_defaults(tmp_path: Path) -> None:
    chat = SavedChat(Conversation(), None, None, "evict", None)
    write_chat(tmp_path / "chat.json", chat)
    assert read_chat(tmp_path / "chat.json") == chat


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"brim_chat": 2}, "brim_chat is 2"),
        ({"low_water": 101}, "low_water is 101"),
        ({"rolling_threshold": "8k"}, "rolling_threshold is '8k'"),
        ({"rolling_threshold": True}, "rolling_threshold is True"),
        ({"rolling_threshold": None, "low_water": 0}, "low_water is 0"),
        ({"params": {"top_p": 7}}, "top_p is 7"),
        ({"params": {"luck": 7}}, "params: 'luck'"),
        ({"params": {"grammar": {"kind": "verse", "text": "a"}}}, "params: grammar"),
        ({"turns": "none"}, "turns is 'none'"),
        ({"turns": [{"role": "assistant", "content": "Hi"}]}, "begins with the user"),
        ({"turns": [{"role": "king", "content": "Hi"}]}, "turn 0: role is 'king'"),
        ({"turns": [{"role": "user"}]}, "turn 0: content"),
        ({"turns": [{"role": "user", "content": "", "images": [{"base64": "!"}]}]}, "turn 0: images"),
        ({"turns": [{"role": "user", "content": "", "audios": [{"samples": "AAAA"}]}]}, "turn 0: audios"),
        ({"turns": [{"role": "user", "content": "", "images": [{"path": "/none.png"}]}]}, "'/none.png' cannot be"),
        (
            {"turns": [{"role": "user", "content": "", "audios": [{"samples": "AAAAAA==", "rate": float("inf")}]}]},
            "turn 0: audios",
        ),
        ({"turns": [{"role": "user", "content": "\ud800"}]}, "turn 0: content: its character 0"),
        ({"turns": [{"role": "user", "content": "", "tool_calls": [5]}]}, "turn 0: tool_calls: one is a int"),
        ({"tools": ["look"]}, "tools: one is a str"),
        ({"system": 3}, "system is 3"),
    ],
)
def test_damage_is_named(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    path = tmp_path / "chat.json"
    write_chat(path, CHAT)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InvalidRequest, match=named):
        read_chat(path)


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=30))
def test_other_files_are_refused(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("chat") / "chat.json"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match="is not a saved conversation"):
        read_chat(path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be written"):
        write_chat(tmp_path / "none" / "chat.json", CHAT)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_chat(tmp_path / "none.json")


def test_a_file_that_never_ends_its_brackets_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat.json").write_text("[" * 100_000)
    with pytest.raises(InvalidRequest, match="is not a saved conversation"):
        read_chat(tmp_path / "chat.json")


@pytest.mark.parametrize(
    ("path", "conversation"),
    [
        ("folder", Conversation("Be kind.")),
        ("a.json", Conversation("\ud800")),
        ("a.json", Conversation(None, ({"x": {1}},))),
    ],
)
def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, path: str, conversation: Conversation) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidRequest, match="cannot be written"):
        write_chat(tmp_path / path, SavedChat(conversation, None, None, "evict"))
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]
