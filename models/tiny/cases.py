"""The fixed prompts of the evaluation, in three wordings. Names, phrasings and texts were not in training.

Only filler, the questions behind a wish for a style, and counting and the calendar (which has few phrasings) are drawn
as in training. A case is a conversation up to the assistant's turn, and the answer that is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from models.tiny.conversation import Conversation
from models.tiny.dialogue import Exchange, Fact, Memory, Style, Turn
from models.tiny.phrasing import Phrases, capitalised, pick
from models.tiny.skills import sequences, smalltalk, sums
from models.tiny.skills.facts import mine
from models.tiny.words import COLOURS, FOODS, HELD_OUT_NAMES, PLAIN_WORDS, any_word

if TYPE_CHECKING:
    from tokenizers import Tokenizer

COPIED_TOKENS = 64
MOST_FILLER = 20


@dataclass(frozen=True, slots=True)
class Wording:
    """How the cases are put."""

    tell: Phrases
    ask: Phrases
    sums: Mapping[str, Phrases]
    upper: Phrases
    last: Phrases
    named: Phrases
    copy: Phrases


# Not in training; but phrasings near the ones that failed were added to it: these are a development set.
DEVELOPMENT = Wording(
    tell=Phrases(
        "Let me tell you that {clause}.",
        "You may want to know that {clause}.",
        "Just so you know, {clause}.",
        "I have something to say: {clause}.",
    ),
    ask=Phrases(
        "Could you say what my {noun} is?",
        "Please tell me again: what is my {noun}?",
        "Hey, do you still know what my {noun} is?",
        "Before I go, what was my {noun}?",
        "I would like to know what my {noun} is.",
        "Can you say my {noun} again?",
    ),
    sums={
        "+": Phrases(
            "What number is {a} plus {b}?",
            "Please tell me how much {a} plus {b} is.",
            "I need the sum of {a} and {b}.",
            "Can you work out {a} + {b} for me?",
            "How much do I get when I add {a} and {b}?",
        ),
        "-": Phrases(
            "What number is {a} minus {b}?",
            "Please tell me how much {a} minus {b} is.",
            "I need the difference between {a} and {b}.",
            "Can you work out {a} - {b} for me?",
        ),
        "*": Phrases(
            "What number is {a} times {b}?",
            "Please tell me how much {a} times {b} is.",
            "I need the product of {a} and {b}.",
            "Can you work out {a} * {b} for me?",
        ),
    },
    upper=Phrases("Please answer in capital letters only.", "You must write every answer in capitals."),
    last=Phrases("You must end each answer with the word {v}.", "Please finish all answers with the word {v}."),
    named=Phrases(
        "You are {v}, a friendly robot.", "Please play the role of {v}.", "In this conversation you are {v}."
    ),
    copy=Phrases(
        "Please say this back to me: {text}", "Read this and repeat it: {text}", "Now copy the following text: {text}"
    ),
)
# Written after the first data and measured once with it; then the data was widened, with these known to its writer.
SECOND = Wording(
    tell=Phrases(
        "It matters to me that you know this: {clause}.",
        "Please keep in mind that {clause}.",
        "By the way, in case you wonder, {clause}.",
    ),
    ask=Phrases(
        "So, my {noun}? What is it?",
        "Think back: what did I say my {noun} was?",
        "I forgot, what is my {noun}?",
        "Say, what was my {noun} again?",
    ),
    sums={
        "+": Phrases(
            "Tell me what {a} and {b} make together.",
            "What do you get if you put {a} and {b} together?",
            "If I have {a} and get {b} more, how many is that?",
        ),
        "-": Phrases(
            "What remains of {a} if I subtract {b}?",
            "Tell me what {a} less {b} is.",
            "If I have {a} and lose {b}, how many is that?",
        ),
        "*": Phrases(
            "Tell me what {a} multiplied by {b} is.",
            "How many are {b} rows of {a}?",
        ),
    },
    upper=Phrases("Only use capital letters.", "Whatever I ask, reply in capitals."),
    last=Phrases("The last word of each reply is {v}."),
    named=Phrases("Your role: you are {v}.", "People here call you {v}, so go by that."),
    copy=Phrases("Give me this text again: {text}", "Write the same text once more: {text}"),
)
# Written by somebody who had not seen the data, after it was last changed; what was in it by chance was taken out.
UNSEEN = Wording(
    tell=Phrases(
        "Just so you know, {clause}.",
        "Before we start, I should mention that {clause}.",
        "Hi there! I want you to know that {clause}.",
        "Please keep in mind that {clause}.",
        "By the way, {clause}. Don't forget it, okay?",
        "Can you make a note that {clause}?",
        "I'm going to tell you something about me: {clause}.",
        "For later, {clause}. I will ask you about it soon.",
    ),
    ask=Phrases(
        "Can you remind me what my {noun} is?",
        "Okay, now tell me my {noun}.",
        "I forgot my {noun}. Can you help me?",
        "Let's see if you were listening. What is my {noun}?",
    ),
    sums={
        "+": Phrases(
            "What do I get if I add {a} and {b}?",
            "Can you work out {a} plus {b} for me?",
            "I have {a} apples and I get {b} more. How many do I have now?",
            "Please find the sum of {a} and {b}.",
            "If you put {a} and {b} together, what is the total?",
        ),
        "-": Phrases(
            "What is left if I take {b} away from {a}?",
            "Can you work out {a} minus {b} for me?",
            "I had {a} coins and spent {b} of them. How many are left?",
            "If I start with {a} and lose {b}, how many do I still have?",
        ),
        "*": Phrases(
            "Can you work out {a} times {b} for me?",
            "I have {a} bags with {b} sweets in each. How many sweets is that?",
            "Please tell me the product of {a} and {b}.",
        ),
    },
    upper=Phrases(
        "Write everything you say in capital letters.",
        "All of your replies must be in upper case.",
        "Only use capital letters when you answer the user.",
        "You always talk in all caps, no matter what the user says.",
        "Never use small letters. Every word you write has to be in capitals.",
    ),
    last=Phrases(
        "The last word of each reply must be {v}.",
        "Whatever the user says, always end your message with {v}.",
        "You must close all of your answers with the word {v}.",
        "Each time you reply, make sure that {v} is the very last word.",
    ),
    named=Phrases(
        "Your name is {v}. If someone asks who you are, say so.",
        "In this chat you play a character named {v}.",
        "From now on you go by the name {v}.",
        "Act as {v}, an assistant who likes to help people.",
    ),
    copy=Phrases(
        "Repeat this back to me exactly: {text}",
        "Please say the following, word for word: {text}",
        "Can you copy this text without changing anything? {text}",
        "Write this down just as it is: {text}",
        "I want you to send me back the same words: {text}",
    ),
)
WORDINGS = {"development": DEVELOPMENT, "second": SECOND, "unseen": UNSEEN}


@dataclass(frozen=True, slots=True)
class Case:
    """`wanted` must be the whole answer, or only in it."""

    group: str
    turns: tuple[Turn, ...]
    wanted: str
    whole: bool = True

    def passed(self, answer: str) -> bool:
        return answer == self.wanted if self.whole else self.wanted in answer

    @property
    def messages(self) -> list[dict[str, str]]:
        return [turn.message for turn in self.turns]


def _asked(
    exchanges: list[Exchange], question: str, system: str | None = None, style: Style | None = None
) -> tuple[Turn, ...]:
    """A conversation of these exchanges that ends with a question."""
    made = Conversation(Memory(), system, style or Style())
    for exchange in exchanges:
        made.add(exchange)
    return (*made.turns, Turn("user", question))


def _filler(rng: Random) -> Exchange:
    skills = (smalltalk.remark, smalltalk.remark, smalltalk.courtesy, sums.add_up, sequences.calendar)
    return pick(rng, skills)(rng, Memory())


def _facts(rng: Random) -> tuple[Fact, str, str]:
    """A fact, its noun, and a value for it."""
    noun, value = pick(
        rng,
        (
            ("name", pick(rng, HELD_OUT_NAMES)),
            ("code", str(rng.randint(10, 9999))),
            ("favourite colour", pick(rng, COLOURS)),
            ("favourite food", pick(rng, FOODS)),
            ("lucky number", str(rng.randint(10, 9999))),
            ("room number", str(rng.randint(10, 9999))),
        ),
    )
    return mine(noun, lambda _: value), noun, value


def _told(rng: Random, words: Wording, fact: Fact, value: str) -> Exchange:
    thanks = "Nice to meet you, {v}." if fact.key == "your name" else f"Okay, I will remember that {fact.yours}."
    return Exchange(words.tell.say(rng, clause=fact.mine.format(v=value)), thanks.format(v=value))


def recall(rng: Random, words: Wording, turns_of_filler: int) -> Case:
    """Two things told, filler, and one of them asked for."""
    (fact, noun, value), (other, other_noun, other_value) = _facts(rng), _facts(rng)
    exchanges = [_told(rng, words, fact, value)]
    if other_noun != noun:
        exchanges.append(_told(rng, words, other, other_value))
    exchanges += [_filler(rng) for _ in range(turns_of_filler)]
    return Case("recall", _asked(exchanges, words.ask.say(rng, noun=noun)), value, whole=False)


def unknown(rng: Random, words: Wording) -> Case:
    """Asked for something that nobody told, with something else told."""
    (fact, noun, value), (_, asked, _) = _facts(rng), _facts(rng)
    exchanges = [] if noun == asked else [_told(rng, words, fact, value)]
    exchanges += [_filler(rng) for _ in range(rng.randint(0, 6))]
    return Case("unknown", _asked(exchanges, words.ask.say(rng, noun=asked)), f"I don't know your {asked}.")


def at_once(rng: Random, words: Wording) -> Case:
    """Told and asked in one turn."""
    fact, noun, value = _facts(rng)
    user = f"{capitalised(fact.mine.format(v=value))}. {words.ask.say(rng, noun=noun)}"
    return Case("at once", (Turn("user", user),), value, whole=False)


def _question(rng: Random) -> Exchange:
    """With an answer of known words, for the styles."""
    if rng.random() < 0.5:
        return pick(rng, (smalltalk.courtesy, sums.add_up, sequences.calendar))(rng, Memory())
    colour = pick(rng, COLOURS)
    user = f"My favourite colour is {colour}. What is my favourite colour?"
    return Exchange(user, f"Your favourite colour is {colour}.")


def instruction(rng: Random, words: Wording) -> Case:
    """One wish of a system prompt, after up to four exchanges that follow it."""
    kind = pick(rng, ("upper", "last", "name"))
    if kind == "name":
        name = pick(rng, HELD_OUT_NAMES)
        turns = _asked(
            [_filler(rng) for _ in range(rng.randint(0, 4))], "What is your name?", words.named.say(rng, v=name)
        )
        return Case("system", turns, f"My name is {name}.")
    if kind == "upper":
        system, style = words.upper.say(rng), Style(case="upper")
    else:
        word = pick(rng, PLAIN_WORDS)
        system, style = words.last.say(rng, v=word), Style(last_word=word)
    asked = _question(rng)
    turns = _asked([_question(rng) for _ in range(rng.randint(0, 4))], asked.user, system, style)
    return Case("system", turns, style(asked.answer))


def copying(rng: Random, words: Wording, tokenizer: Tokenizer) -> Case:
    """A text of 64 tokens, of words that follow each other by chance."""
    chosen: list[str] = []
    while True:
        longer = [*chosen, any_word(rng)]
        size = len(tokenizer.encode(" ".join(longer)).ids)
        if size > COPIED_TOKENS:
            continue
        chosen = longer
        if size == COPIED_TOKENS:
            text = " ".join(chosen)
            return Case("copying", (Turn("user", words.copy.say(rng, text=text)),), text)


def one_digit_sums(rng: Random, words: Wording) -> list[Case]:
    """Every sum, difference and product of two digits, each in one of the phrasings. The number must be right."""
    pairs = [(a, b) for a in range(10) for b in range(10)]
    return [
        Case("sums", (Turn("user", phrases.say(rng, a=a, b=b)),), f" = {sums.result_of(sign, a, b)}.", whole=False)
        for sign, phrases in words.sums.items()
        for a, b in pairs
    ]


def calendar_and_counting(rng: Random) -> Case:
    asked = pick(rng, (sequences.count, sequences.calendar))(rng, Memory())
    return Case("sequences", (Turn("user", asked.user),), asked.answer)


def tool_result(rng: Random) -> Case:
    city, degrees = pick(rng, HELD_OUT_NAMES), rng.randint(0, 40)
    turns = (Turn("user", f"What is the weather in {city}?"), Turn("tool", f"{degrees} degrees"))
    return Case("tools", turns, f"The weather in {city} is {degrees} degrees.")


def cases(tokenizer: Tokenizer, share: float = 1.0, words: Wording = DEVELOPMENT) -> list[Case]:
    """All cases, or a share of each group."""

    def some(count: int) -> range:
        return range(max(1, round(count * share)))

    def group(name: str, make: Callable[[Random, Wording], Case], count: int) -> list[Case]:
        return [make(Random(f"evaluate {name} {index}"), words) for index in some(count)]

    recalled = [recall(Random(f"evaluate recall {index}"), words, 1 + index * 7 % MOST_FILLER) for index in some(200)]
    summed = one_digit_sums(Random("evaluate sums"), words)
    return [
        *recalled,
        *group("system", instruction, 200),
        *group("copying", lambda rng, words: copying(rng, words, tokenizer), 100),
        *Random("evaluate order").sample(summed, len(some(len(summed)))),
        *group("unknown", unknown, 100),
        *group("at once", at_once, 100),
        *group("sequences", lambda rng, _: calendar_and_counting(rng), 100),
        *group("tools", lambda rng, _: tool_result(rng), 50),
    ]
