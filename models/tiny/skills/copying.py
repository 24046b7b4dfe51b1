"""Repeating a text or a list word for word, and small questions about lists."""

from __future__ import annotations

from random import Random

from models.tiny.dialogue import Exchange, Memory
from models.tiny.manner import casually
from models.tiny.phrasing import Phrases, capitalised, pick
from models.tiny.skills.smalltalk import statement
from models.tiny.words import (
    ANIMALS,
    CITIES,
    COLOURS,
    FRUITS,
    NAMES,
    OBJECTS,
    ORDINALS,
    SHOPPING,
    any_code,
    any_name,
    any_number,
    any_string,
    any_word,
    listed,
)

_THIS = "[this|the following|the text|this text|the words|these words|exactly this|what follows|the next words]"
REPEAT = Phrases(
    "[Repeat|Copy|Say|Echo|Write][:|] {text}",
    "[Please repeat|Please copy|Please say|Repeat after me|Say after me|Now repeat|Now say|Just say][:|] {text}",
    f"[Repeat|Copy|Say|Write down|Echo|Write] {_THIS}:[ |\n]{{text}}",
    f"[Please|Now|Now please|Next,] [repeat|copy|say|write|echo] {_THIS}:[ |\n]{{text}}",
    f"[You should|You must|I want you to|Your task is to|Can you|Could you please] [repeat|copy|say] {_THIS}: {{text}}",
    "[Can|Could] you [repeat|copy|say] this[?|:] {text}",
    "[Repeat|Copy|Say|Read|Send] [this|it|the following] [word for word|exactly|back|aloud|once more|for me]: {text}",
    "[Listen|Look|Take this|Look at this|Hear this|Here it comes][, then| and] [repeat|copy|say|echo][ it|]: {text}",
    "[Here is|This is|I have] [a text|a sentence|something|a line] [to repeat|to copy|to say|for you to copy]: {text}",
    "[Say what I say|Repeat what I say|Write what I write|Copy what I write|You repeat what I say][:|.] {text}",
    "[Text|Words|Sentence|Line] to [repeat|copy|say]: {text}",
    "[Give|Read|Send|Say|Hand] [it|this|that|me this|the text|the words] [back|back to me|again|to me|out loud]: {text}",
    "[I say it, you repeat it|I write, you copy|You are a parrot|Parrot this|Be my echo|Play echo][:|.] {text}",
    "[Write|Type|Print|Output|Return|Reproduce|Recite|Quote|Restate] [this|it|the text|the following|the same][:| exactly:] {text}",
    f"[Would you|Will you|Can you please|Please would you|I need you to|I ask you to] [repeat|copy|write|say] {_THIS}: {{text}}",
    "[Answer with|Reply with|Respond with|Your answer should be|Your reply is|Say only|Write only|Answer only] [this|these words|this text|the following]: {text}",
    "[What I say is|My text is|The text is|My words are|This is it|Here it is][:| ,] {text}[\n| ][Repeat it|Copy it|Say it again].",
    '[Repeat|Copy|Say|Write][:|] "{text}"',
    "{text}\n[Repeat that|Repeat this|Copy this|Say that|Repeat the text above|Copy the text above].",
)
_REPEAT_LIST = Phrases(
    "[Repeat|Copy|Say|Read back|Give me back][| this| the] list: {text}[.|]",
    "[This is my list|My list|Here is a list|The list]: {text}. [Repeat it|Say it|Copy it|Repeat the list].",
)
_COUNT_LIST = Phrases(
    "How many [items|words|things] are in [this|the] list: {text}?",
    "[Count|How many are there in] [this list|the items|these]: {text}[.|?]",
    "How many words: {text}?",
)
_REVERSE = Phrases(
    "[Reverse|Turn around|Say backwards|Repeat backwards][| this list| the list]: {text}[.|]",
    "[Repeat|Say] [this|the list] in reverse[ order|]: {text}[.|]",
)
_NTH = Phrases(
    "What is the {nth} [item|word|thing] [in|of] [this|the] list: {text}?",
    "[Say|Tell me|Give me|Name] the {nth} [item|word|one] [of|in]: {text}[.|]",
)
_AGAIN = Phrases(
    "[Say|Repeat] [that|it] [again|once more|one more time][.|, please.|]",
    "[Again|Once more|Pardon|What did you say|Sorry, what][?|, please?]",
    "[Repeat your|What was your] last answer[.|?]",
)
_LISTS = (ANIMALS, CITIES, COLOURS, FRUITS, NAMES, OBJECTS, SHOPPING)


def _words(rng: Random, count: int) -> str:
    return " ".join(any_word(rng) for _ in range(count))


def _sentences(rng: Random, count: int) -> str:
    return " ".join(statement(rng) for _ in range(count))


def _items(rng: Random, least: int, most: int) -> list[str]:
    """Of one kind, or invented; each once."""
    count = rng.randint(least, most)
    if rng.random() < 0.65:
        return rng.sample(pick(rng, _LISTS), count)
    make = pick(rng, (any_number, any_word, any_name, any_code, any_string))
    return list(dict.fromkeys(make(rng) for _ in range(count)))


def any_text(rng: Random) -> str:
    """Short ones are more likely than long ones, and there are some of a hundred tokens."""
    size = pick(rng, (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64))
    kind = rng.random()
    if kind < 0.45:
        return _words(rng, size)
    if kind < 0.6:
        return capitalised(_words(rng, size)) + "."
    if kind < 0.85:
        return _sentences(rng, max(1, size // 8))
    if kind < 0.9:
        return " ".join(any_number(rng) for _ in range(max(1, size // 2)))
    return " ".join(pick(rng, (any_name, any_code, any_word, any_string))(rng) for _ in range(max(1, size // 3)))


def repeat(rng: Random, memory: Memory) -> Exchange:
    text = any_text(rng)
    return Exchange(REPEAT.say(rng, text=text), text)


def repeat_list(rng: Random, memory: Memory) -> Exchange:
    text = listed(_items(rng, 2, 12))
    return Exchange(_REPEAT_LIST.say(rng, text=text), text)


def count_list(rng: Random, memory: Memory) -> Exchange:
    items = _items(rng, 2, 9)
    return Exchange(_COUNT_LIST.say(rng, text=listed(items)), f"There are {len(items)}." if len(items) > 1 else "One.")


def reverse_list(rng: Random, memory: Memory) -> Exchange:
    items = _items(rng, 2, 6)
    return Exchange(_REVERSE.say(rng, text=listed(items)), listed(items[::-1]))


def nth_item(rng: Random, memory: Memory) -> Exchange:
    items = _items(rng, 2, 6)
    at = rng.randrange(len(items))
    nth = "last" if at == len(items) - 1 and rng.random() < 0.7 else ORDINALS[at]
    return Exchange(_NTH.say(rng, nth=nth, text=listed(items)), items[at])


def say_again(rng: Random, memory: Memory) -> Exchange | None:
    if not memory.last_answer or len(memory.last_answer) > 200:
        return None
    return Exchange(casually(rng, _AGAIN.say(rng)), memory.last_answer)
