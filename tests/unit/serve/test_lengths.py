"""Texts that are too long are refused before they are tokenised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("transformers")

from brim.errors import InvalidRequest
from brim.serve.prepare.jobs import ChatJob, TokenizerSource
from brim.serve.prepare.lengths import ROLLED_CHARACTERS
from brim.serve.prepare.preparer import PromptPreparer
from brim.serve.requests.chat import read_chat
from brim.serve.requests.types import ServedModel
from brim.serve.settings import RequestLimits
from tests.unit.serve.parse.marked import END, marked_tokenizer

LONGEST = 100


class Counted:
    """A tokenizer that counts the characters that it is given."""

    def __init__(self) -> None:
        self._tokenizer = marked_tokenizer()
        self.characters = 0

    def __call__(self, text: str, **options: Any) -> Any:
        self.characters += len(text)
        return self._tokenizer(text, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def desk(monkeypatch: pytest.MonkeyPatch) -> tuple[PromptPreparer, Counted]:
    counted = Counted()
    monkeypatch.setattr("brim.serve.prepare.preparer._find", lambda source: counted)
    return PromptPreparer(TokenizerSource(None)), counted


def job(*said: str) -> ChatJob:
    turns = [{"role": "user" if number % 2 == 0 else "assistant", "content": one} for number, one in enumerate(said)]
    limits = RequestLimits()
    return ChatJob(
        read_chat({"messages": turns}, ServedModel(longest=LONGEST, limits=limits)).dialogue, limits, LONGEST, room=10
    )


def test_a_text_of_more_characters_than_a_context_of_longest_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    made, counted = desk(monkeypatch)
    most = LONGEST * len(END)
    assert len(made.tokens(END * LONGEST, longest=LONGEST)) == LONGEST
    counted.characters = 0
    with pytest.raises(InvalidRequest, match=f"at most {most} characters"):
        made.tokens("x" * (most + 1), longest=LONGEST)
    assert counted.characters == 0


def test_a_conversation_that_rolls_is_not_counted_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    made, counted = desk(monkeypatch)
    found = made.chat(job("x" * 5000, "yes", "And?"))
    assert (found.evicted_turns, found.rolls) == (2, True)
    counted.characters = 0
    with pytest.raises(InvalidRequest, match=f"messages: .* more than the {ROLLED_CHARACTERS} "):
        made.chat(job("x" * ROLLED_CHARACTERS, "yes", "And?"))
    assert counted.characters == 0


def test_a_text_whose_start_is_too_long_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made, counted = desk(monkeypatch)
    with pytest.raises(InvalidRequest, match=r"context of 100 tokens: the first 800 are 800 already"):
        made.tokens("x" * 900, longest=LONGEST)
    assert counted.characters == 800
    assert len(made.tokens("x" * 900, longest=LONGEST, counted=True)) == 900  # to be counted, it may be longer


@pytest.mark.parametrize("room", [None, 10])
def test_a_conversation_of_too_many_characters_is_refused_before_its_template_writes_it(
    room: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, counted = desk(monkeypatch)
    monkeypatch.setattr(counted._tokenizer, "apply_chat_template", lambda *_, **__: pytest.fail("it was written"))
    asked = replace(job("x" * (ROLLED_CHARACTERS + 1)), room=room)
    with pytest.raises(InvalidRequest, match=r"^messages: (its )?2621\d\d characters"):
        made.chat(asked)
