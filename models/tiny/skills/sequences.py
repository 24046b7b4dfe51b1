"""Counting, and the days and months."""

from __future__ import annotations

from random import Random

from models.tiny.dialogue import Exchange, Memory
from models.tiny.manner import casually
from models.tiny.phrasing import Phrases, pick
from models.tiny.words import DAYS, MONTHS, NUMBER_WORDS, ORDINALS, listed

_COUNT = Phrases(
    "[Count|Please count|Can you count|Now count|Let us count] from {a} to {b}[.|!|]",
    "[Count|List|Say|Name|Write] [the|all|all the] numbers from {a} to {b}[.|]",
    "[Count|Go] {direction}from {a} to {b}[.|]",
)
_COUNT_TO = Phrases("[Count|Please count|Can you count|Now count] to {b}[.|!|?|]", "Count up to {b}[.|]")
_ALL = Phrases(
    "[Name|List|Say|Tell me|Write|What are|Give me] [all |][the |]{what}[ in order|][.|?|]",
    "[Can you|Could you|Please] [name|list|say] [all |]the {what}[?|.|]",
    "[Which|What] {what} are there?",
)
_NEXT = Phrases(
    "[What|Which] {unit} [comes|is] {side} {it}[?|]",
    "[Tell me|Say|Name] the {unit} {side} {it}[.|]",
    "[What|Which] is the {unit} {side} {it}?",
    "[What comes|Which one comes] {side} {it}?",
)
_NTH = Phrases(
    "[What|Which] is the {nth} {unit}[ of the {whole}|]?", "[Name|Say|Tell me] the {nth} {unit} of the {whole}[.|]"
)
_HOW_MANY = Phrases("How many {units} [are|are there] in a {whole}[?|]", "How many {units} does a {whole} have?")


def _counted(a: int, b: int) -> str:
    step = 1 if a <= b else -1
    return listed([str(number) for number in range(a, b + step, step)]) + "."


def _written(number: int, words: bool) -> str:
    return NUMBER_WORDS[number] if words and number < len(NUMBER_WORDS) else str(number)


def count(rng: Random, memory: Memory) -> Exchange:
    words = rng.random() < 0.1
    if rng.random() < 0.3:
        last = rng.randint(2, 20)
        return Exchange(casually(rng, _COUNT_TO.say(rng, b=_written(last, words))), _counted(1, last))
    a = rng.randint(0, 20) if rng.random() < 0.7 else rng.randint(0, 85)
    b = a + rng.randint(1, 12)
    if rng.random() < 0.25:
        a, b = b, a
    direction = "down " if a > b else pick(rng, ("", "up "))
    user = _COUNT.say(rng, a=_written(a, words), b=_written(b, words), direction=direction)
    return Exchange(casually(rng, user), _counted(a, b))


def calendar(rng: Random, memory: Memory) -> Exchange:
    """All of the days or months, the next or the last one, the n-th, or how many there are."""
    names, unit, whole = pick(rng, ((DAYS, "day", "week"), (MONTHS, "month", "year")))
    kind = rng.random()
    if kind < 0.2:
        what = pick(rng, (f"{unit}s", f"{unit}s of the {whole}"))
        return Exchange(casually(rng, _ALL.say(rng, what=what)), listed(names) + ".")
    if kind < 0.75:
        at, side = rng.randrange(len(names)), pick(rng, ("after", "before"))
        found = names[(at + (1 if side == "after" else -1)) % len(names)]
        user = _NEXT.say(rng, unit=unit, side=side, it=names[at])
        return Exchange(casually(rng, user), f"{found} comes {side} {names[at]}.")
    if kind < 0.92:
        at = rng.randrange(len(names))
        nth = "last" if at == len(names) - 1 else ORDINALS[at]
        return Exchange(casually(rng, _NTH.say(rng, nth=nth, unit=unit, whole=whole)), f"{names[at]}.")
    user = _HOW_MANY.say(rng, units=f"{unit}s", whole=whole)
    return Exchange(casually(rng, user), f"There are {len(names)} {unit}s in a {whole}.")
