"""Where turns end in a prompt: as one prompt for each turn says, for templates of several kinds, or not at all."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers")

from brim.engine.chat.conversation import Conversation
from brim.engine.chat.turn_ends import turn_ends
from brim.engine.chat.turns import Turn, exchanges_of
from brim.engine.front.chat_template import ChatTemplate, chat_tokens
from brim.model.packaged import packaged_folder

PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
TRIMMED = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}{{ '</s>' if m.role == 'assistant' }}{% endfor %}"
)
FORGETS = (  # reasoning of all answers but the last
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and not loop.last %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
)
CUTS = "{% for m in messages %}{{ m.role }}: {{ m.content[:3] }}\n{% endfor %}"


@cache
def tokenizer(template: str) -> Any:
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(str(packaged_folder("brim-tiny")))
    found.chat_template = template
    return found


def tokens(template: str, conversation: Conversation) -> int:
    return len(chat_tokens(tokenizer(template), conversation.messages, answering=False))


def talk(*said: str, system: str | None = "Be kind.") -> Conversation:
    turns = [Turn(("user", "assistant")[number % 2], text) for number, text in enumerate(said)]
    return Conversation(system, exchanges=exchanges_of(turns))


WORDS = st.text(alphabet="ab \n.é😀\ue000", max_size=12)


@given(said=st.lists(WORDS, min_size=1, max_size=6), system=st.sampled_from([None, "Be kind."]))
@settings(max_examples=40, deadline=None)
def test_ends_are_those_of_growing_prompts(said: list[str], system: str | None) -> None:
    conversation = talk(*said, system=system)
    opening = replace(conversation, exchanges=())
    wanted = [tokens(PLAIN, opening) if opening.messages else 0]
    wanted += [tokens(PLAIN, conversation.until(turn)) for turn in range(1, len(said) + 1)]
    assert turn_ends(ChatTemplate(tokenizer(PLAIN)), conversation) == wanted


def test_spaces_that_a_template_cuts_off() -> None:
    conversation = talk("one  ", "two\n", "three")
    wanted = [tokens(TRIMMED, conversation.until(turn)) for turn in range(1, 4)]
    found = turn_ends(ChatTemplate(tokenizer(TRIMMED)), conversation)
    assert found is not None
    assert found[1:] == wanted


def test_turns_that_a_template_rewrites_count_as_they_stand_in_the_prompt() -> None:
    """The reasoning of an earlier answer is not in it, and that of the last is."""
    thought = "<think>long and deep</think>yes"
    found = turn_ends(ChatTemplate(tokenizer(FORGETS)), conversation := talk("a?", thought, "b?", thought))
    assert found is not None
    assert found[-1] == tokens(FORGETS, conversation)
    first, last = found[2] - found[1], found[4] - found[3]
    assert first < last


def test_a_template_that_cuts_contents_is_not_guessed_at() -> None:
    assert turn_ends(ChatTemplate(tokenizer(CUTS)), talk("abcdef", "ghijkl")) is None
