"""Small arithmetic: sums, differences, products and quotients, in signs, in words and in stories."""

from __future__ import annotations

from random import Random

from models.tiny.dialogue import Exchange, Memory
from models.tiny.manner import casually, chattily
from models.tiny.phrasing import Phrases, pick
from models.tiny.words import FRUITS, NAMES, NUMBER_WORDS, OBJECTS

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
        "[What|How much|How many] [do|does|will|would] {a} [and|plus|+] {b} [make|give|give me|add up to|come to]?",
        "[Sum up|Total|Add up|Add together|Count together|Put together] {a} [and|plus|with] {b}[.|]",
        "[What is|What's|Tell me|Give me|Find|Say] the [total|result|value|answer] of {a} [and|plus|+|added to] {b}[?|.]",
        "[Start with|Begin with|Take|I take|You have|We have|Here are] {a}[, then|, and| and|, now] add {b}[.|:| to it.]",
        "[Increase|Raise] {a} by {b}[.|, what is it?|]",
        "[The sum|The total|The answer] of {a} and {b}[?|, please.| is what?]",
        "{start} has {a} {things}[ and|, and then|. Then {start}] [gets|buys|finds|is given] {b} more. How many [{things} |][is that|are there|in all|now]?",
        "[There are|I see|We see|Here are] {a} {things} [and|and then] {b} more[ come|]. How many [{things} |][is that|are there|in all|now]?",
        "[I had|I got|I bought|I found|She had|He had] {a} {things} [and then|and later|and] {b} more[.|:] [How many|What number|What] is that?",
        "[Solve|Solve this|The task|Sum|Find|Find out|Answer][:|] {a} [+|plus] {b}[.|?|]",
        "{a} added to {b}[?| is what?| makes what?| gives what?]",
        "[How many|How much] [is|are|would be] {a} [with|and] {b} [added|more|on top|extra]?",
    ),
    "-": Phrases(
        f"{_START} {{a}} [-|minus] {{b}}[?|]",
        "[Subtract|Take|Take away|Please subtract] {b} from {a}[.|]",
        "[What is|Compute|Give me|Tell me|Calculate|] the difference [between|of] {a} and {b}[?|.|]",
        "{a} [-|minus] {b}[?| is what?| =| equals| = ?]",
        "{a}-{b}[?|=|]",
        "[What do you get|What is the result|What is left] [if|when] you [take|subtract] {b} from {a}?",
        "If I have {a} {things} and give away {b}, how many {things} do I have?",
        "[What|How much|How many] [do|does|will|would] {a} [minus|-|less] {b} [make|give|give me|leave|come to]?",
        "[What is|What's|How much is|How many is|Tell me|Say|Compute] {a} [less|take away|without|reduced by] {b}[?|]",
        "[What is|What's|Tell me|Give me|Find|Say] the [result|value|answer|rest] of {a} [minus|-|less] {b}[?|.]",
        "[Start with|Begin with|Take|I take|You have|We have|Here are] {a}[, then|, and| and|, now] [take away|subtract|remove|take off] {b}[.|:|]",
        "[Decrease|Lower|Reduce] {a} by {b}[.|, what is it?|]",
        "[How much|How many|What] [is left|remains|stays|is the rest] [of {a} after|when {a} loses|from {a} without|of {a} if we remove] {b}?",
        "{start} has {a} {things} and [loses|sells|eats|gives away|drops] {b}[ of them|]. How many [{things} |][are left|remain|is that|stay]?",
        "[There are|I see|We see|Here are] {a} {things} and {b} [go away|leave|get lost|are taken]. How many [{things} |][are left|remain|stay]?",
        "[I had|She had|He had|We had] {a} {things} and [lost|sold|ate|used|gave away] {b}[.|:] [How many|What] [is left|are left|remains]?",
        "[Solve|Solve this|The task|Find|Find out|Answer][:|] {a} [-|minus] {b}[.|?|]",
        "[From {a} take|From {a} subtract|Off {a} take] {b}[.|, what is left?|]",
        "[How much|How many] more is {a} than {b}?",
    ),
    "*": Phrases(
        f"{_START} {{a}} [*|times|multiplied by|x] {{b}}[?|]",
        "[Multiply|Please multiply|Can you multiply] {a} [and|by|with] {b}[.|?|]",
        "[What is|Compute|Give me|Tell me|Calculate|] the product of {a} and {b}[?|.|]",
        "{a} [*|times|x] {b}[?| is what?| =| equals| = ?]",
        "{a}*{b}[?|=|]",
        "[What do you get|What is the result] [if|when] you multiply {a} [and|by|with] {b}?",
        "If I have {a} bags with {b} {things} each, how many {things} do I have?",
        "[What|How much|How many] [do|does|will|would] {a} [times|x|*|multiplied by] {b} [make|give|give me|come to]?",
        "[What is|What's|Tell me|Give me|Find|Say] the [result|value|answer] of {a} [times|*|x|multiplied by] {b}[?|.]",
        "[Start with|Begin with|Take|I take|You have|We have] {a}[, then|, and| and|, now] multiply[ it|] by {b}[.|:|]",
        "[What|How much|How many] is {a} taken {b} times?",
        "[There are|I see|We have|I have|She has] {a} [boxes|rows|groups|bags|baskets|tables] [of|with] {b}[ {things}|][ each|][. How many|, how many] [{things} |][is that|are there|in all|altogether]?",
        "{start} has {a} [boxes|rows|groups|bags|baskets] [of|with] {b} {things}. How many [{things} |][is that|are there|in all]?",
        "[How many|How much] [is|are|makes] {a} [rows of|groups of|boxes of|lots of|bags of] {b}?",
        "[Solve|Solve this|The task|Find|Find out|Answer][:|] {a} [*|times|x] {b}[.|?|]",
        "[The product|The answer] of {a} [and|times] {b}[?|, please.| is what?]",
        "{a} [multiplied by|multiplied with|by] {b}[?| is what?| gives what?| makes what?]",
        "[Each of {a} {things} costs|All of {a} {things} cost] {b}. [What do they cost|What is the price of all]?",
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


def result_of(sign: str, a: int, b: int) -> int:
    return {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[sign]


def sum_answer(sign: str, a: int, b: int) -> str:
    return f"{a} {sign} {b} = {result_of(sign, a, b)}."


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
    user = (
        ASKS[sign].say(rng, a=_written(a, words), b=_written(b, words), things=things, start=pick(rng, NAMES)).strip()
    )
    return Exchange(casually(rng, chattily(rng, user[0].upper() + user[1:])), sum_answer(sign, a, b))


def compare(rng: Random, memory: Memory) -> Exchange | None:
    a, b = rng.randint(0, 99), rng.randint(0, 99)
    if a == b:
        return None
    word = pick(rng, ("larger", "bigger", "greater", "smaller", "less"))
    found = min(a, b) if word in ("smaller", "less") else max(a, b)
    return Exchange(casually(rng, _LARGER.say(rng, a=a, b=b, word=word)), f"{found} is {word}.")
