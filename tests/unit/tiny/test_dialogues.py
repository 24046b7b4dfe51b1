"""The conversations that the tiny model learns from: right, repeatable, and without what it is evaluated on."""

from __future__ import annotations

import re
from random import Random

import pytest

from models.tiny import cases
from models.tiny.conversation import WEIGHTS, conversation
from models.tiny.dialogue import Memory, Style
from models.tiny.manner import AFTER, BEFORE
from models.tiny.phrasing import Phrases
from models.tiny.skills import copying, facts, sums, system
from models.tiny.words import HELD_OUT_NAMES, NAMES


def plain(text: str) -> str:
    """Without what `casually` may change."""
    return text.lower().rstrip(".?!")


def bare(text: str) -> set[str]:
    """The text, and what is left of it without words that `chattily` may have added."""
    text = plain(text)
    before = {text[len(words) + 2 :] for words in BEFORE.all if re.match(f"{words.lower()}[,:.] ", text)}
    after = {text.removesuffix(words) for words in AFTER.all}
    return {text, *before, *after}


def overlap(asked: Phrases, trained: Phrases) -> set[str]:
    return {found for text in asked.all for found in bare(text)} & {plain(text) for text in trained.all}


def test_a_seed_makes_one_conversation() -> None:
    assert conversation(Random("a"), 4000) == conversation(Random("a"), 4000)
    assert conversation(Random("a"), 4000) != conversation(Random("b"), 4000)


def test_turns_take_turns() -> None:
    for seed in range(50):
        roles = "".join(turn.role[0] for turn in conversation(Random(seed), 3000))
        assert re.fullmatch("s?(u(at)?t?a)+", roles), roles


def test_every_skill_is_learned() -> None:
    for skill in WEIGHTS:
        memory = Memory()
        facts.tell(Random(0), memory)
        memory.last_answer = "I see."
        made = [skill(Random(seed), memory) for seed in range(20)]
        assert any(exchange is not None and exchange.user and exchange.answer for exchange in made), skill


def test_the_last_thing_told_is_the_answer() -> None:
    memory = Memory()
    name = facts.FACTS[0]
    memory.told[name.key] = name, "Ada"
    assert facts.known(memory, name) == "Your name is Ada."
    correction = facts.correct(Random(1), memory)
    assert correction is not None
    assert facts.known(memory, name) != "Your name is Ada."
    facts.forget(Random(1), memory)
    assert facts.known(memory, name) == "I don't know your name."


def test_styles_change_every_answer() -> None:
    assert Style(case="upper", last_word="over")("Your name is Ada.") == "YOUR NAME IS ADA. OVER"
    assert Style(first_word="well")("I see.") == "well I see."


def test_sums_are_right() -> None:
    for seed in range(300):
        a, sign, b, result = re.fullmatch(
            r"(\d+) (.) (\d+) = (-?\d+)\.", sums.add_up(Random(seed), Memory()).answer
        ).groups()  # type: ignore[union-attr]
        expected = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b), "/": int(a) / max(1, int(b))}
        assert expected[sign] == int(result)


@pytest.mark.parametrize("wording", cases.WORDINGS)
def test_the_evaluation_was_not_in_training(wording: str) -> None:
    words = cases.WORDINGS[wording]
    assert not set(NAMES) & set(HELD_OUT_NAMES)
    assert not overlap(words.tell, facts.TELL)
    for sign, phrases in words.sums.items():
        assert not overlap(phrases, sums.ASKS[sign])
    assert not overlap(words.copy, copying.REPEAT)
    assert not overlap(words.upper, system.UPPER)
    assert not overlap(words.last, system.LAST)
    assert not overlap(words.named, system.NAMED)
    nouns = ("name", "favourite colour", "code")
    asked = {found for text in words.ask.all for noun in nouns for found in bare(text.format(noun=noun))}
    trained = {plain(text) for fact in facts.FACTS for text in getattr(fact.asks, "all", ())}
    assert not asked & trained
