"""Small arithmetic: sums, differences, products and quotients, in signs, in words and in stories."""

from __future__ import annotations

from random import Random

from models.tiny.dialogue import Exchange, Memory
from models.tiny.phrasing import Phrases, casually, pick
from models.tiny.words import FRUITS, NUMBER_WORDS, OBJECTS

_START = (
    "[What is|What's|How much is|Calculate|Compute|Work out|Tell me|Say|Can you tell me|Do you know|Please compute|]"
)
ASKS = {
    "+": Phrases(
        f"{_START} {{a}} [+|plus] {{b}}[?|]",
        "[Add|Please add|Can you add] {a} [and|to] {b}[.|?|]",
        "[What is|Compute|Give me|Tell me|Calculate|] the sum of {a} and {b}[?|.|]",
        "{a} [+|plus] {b}[?| is what?| =| equals| = ?| makes what?]",
        "{a}+{b}[?|=|]",
        "[What do you get|What is the result] [if|when] you add {a} and {b}?",
        "[How much|What] [is|are|do we get from|makes] {a} and {b}[ together|]?",
        "If I have {a} {things} and get {b} more, how many {things} do I have?",
    ),
    "-": Phrases(
        f"{_START} {{a}} [-|minus] {{b}}[?|]",
        "[Subtract|Take|Take away|Please subtract] {b} from {a}[.|]",
        "[What is|Compute|Give me|Tell me|Calculate|] the difference [between|of] {a} and {b}[?|.|]",
        "{a} [-|minus] {b}[?| is what?| =| equals| = ?]",
        "{a}-{b}[?|=|]",
        "[What do you get|What is the result|What is left] [if|when] you [take|subtract] {b} from {a}?",
        "If I have {a} {things} and give away {b}, how many {things} do I have?",
    ),
    "*": Phrases(
        f"{_START} {{a}} [*|times|multiplied by|x] {{b}}[?|]",
        "[Multiply|Please multiply|Can you multiply] {a} [and|by|with] {b}[.|?|]",
        "[What is|Compute|Give me|Tell me|Calculate|] the product of {a} and {b}[?|.|]",
        "{a} [*|times|x] {b}[?| is what?| =| equals| = ?]",
        "{a}*{b}[?|=|]",
        "[What do you get|What is the result] [if|when] you multiply {a} [and|by|with] {b}?",
        "If I have {a} bags with {b} {things} each, how many {things} do I have?",
    ),
    "/": Phrases(
        f"{_START} {{a}} [/|divided by] {{b}}[?|]",
        "[Divide|Please divide] {a} by {b}[.|]",
        "{a} [/|divided by] {b}[?| is what?| =| equals| = ?]",
        "[What do you get|What is the result] [if|when] you divide {a} by {b}?",
    ),
}
_LARGER = Phrases(
    "[Which|What] [number |][is|of them is] {word}[,|:] {a} or {b}?",
    "[Tell me|Say] which is {word}[,|:] {a} or {b}[.|]",
    "Is {a} or {b} {word}?",
)
_THINGS = tuple(word for word in (*FRUITS, *OBJECTS) if word[-1] not in "yhsxef")


def sum_answer(sign: str, a: int, b: int) -> str:
    result = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[sign]
    return f"{a} {sign} {b} = {result}."


def _numbers(rng: Random, sign: str) -> tuple[int, int]:
    """Mostly of one digit; sums and differences also of two."""
    if sign == "/":
        b = rng.randint(1, 10)
        return b * rng.randint(0, 10), b
    most = 99 if sign != "*" and rng.random() < 0.2 else 10
    a, b = rng.randint(0, most), rng.randint(0, most)
    return (max(a, b), min(a, b)) if sign == "-" and rng.random() < 0.8 else (a, b)


def _written(number: int, words: bool) -> str:
    return NUMBER_WORDS[number] if words and number < len(NUMBER_WORDS) else str(number)


def add_up(rng: Random, memory: Memory) -> Exchange:
    sign = pick(rng, "+++--**/")
    a, b = _numbers(rng, sign)
    words = rng.random() < 0.15
    things = pick(rng, _THINGS) + "s"
    user = ASKS[sign].say(rng, a=_written(a, words), b=_written(b, words), things=things).strip()
    return Exchange(casually(rng, user[0].upper() + user[1:]), sum_answer(sign, a, b))


def compare(rng: Random, memory: Memory) -> Exchange | None:
    a, b = rng.randint(0, 99), rng.randint(0, 99)
    if a == b:
        return None
    word = pick(rng, ("larger", "bigger", "greater", "smaller", "less"))
    found = min(a, b) if word in ("smaller", "less") else max(a, b)
    return Exchange(casually(rng, _LARGER.say(rng, a=a, b=b, word=word)), f"{found} is {word}.")
