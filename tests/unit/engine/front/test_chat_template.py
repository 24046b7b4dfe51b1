"""Conversations become prompts by the tokenizer's own template, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from brim.engine.front.chat_template import chat_tokens, conversation, has_chat_template
from brim.errors import InvalidRequest
from tests.chat_texts import chat_text


class Tokenizer:
    """A letter is a token; a text that was not made by a template gets a beginning."""

    chat_template = "written by the authors"

    def apply_chat_template(self, messages: list[Any], *, tokenize: bool, add_generation_prompt: bool) -> str:
        assert not tokenize
        turns = "".join(f"<{one['role']}>{one['content']}" for one in messages)
        return turns + ("<assistant>" if add_generation_prompt else "")

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [1] * add_special_tokens + [ord(letter) for letter in text]}


class Picky(Tokenizer):
    def apply_chat_template(self, messages: list[Any], **_: Any) -> str:
        raise ValueError("roles must alternate\nand more")


def test_an_instruction_comes_before_the_prompt() -> None:
    assert chat_text(Tokenizer(), conversation("Hi", "Be kind")) == "<system>Be kind<user>Hi<assistant>"
    assert chat_text(Tokenizer(), conversation("Hi")) == "<user>Hi<assistant>"


def test_the_template_has_written_all_special_tokens() -> None:
    assert chat_tokens(Tokenizer(), conversation("Hi")) == [ord(letter) for letter in "<user>Hi<assistant>"]


def test_images_are_parts_of_the_turn() -> None:
    (turn,) = conversation("What is this?", images=2)
    assert [part["type"] for part in turn["content"]] == ["image", "image", "text"]


def test_without_a_template_there_is_no_chat() -> None:
    assert not has_chat_template(None)
    with pytest.raises(InvalidRequest, match="no chat template; use --raw"):
        chat_text(object(), conversation("Hi"))


def test_what_a_template_refuses_is_said_in_one_line() -> None:
    with pytest.raises(InvalidRequest, match=r"refuses the conversation \(roles must alternate\)$"):
        chat_text(Picky(), conversation("Hi"))
