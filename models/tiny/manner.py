"""How people type: with words around a question that mean nothing, without full stops, without capitals."""

from __future__ import annotations

from random import Random

from models.tiny.phrasing import Phrases, pick
from models.tiny.words import words

BEFORE = Phrases(
    "[Please|Now please|And please|Okay|Ok|So|Well|Now|Next|Then|Right|Alright|Good|Fine|Again|And now]",
    "[Quick question|One question|A question|A small question|My question|Another one|Next question|One more]",
    "[I wonder|I would like to ask|Let me ask|May I ask|I have to ask|Help me|Help me out|You tell me|Be honest]",
    "[Hey|Hi|Hello|Okay|So|Well] [you|there|friend|assistant|robot]",
)
AFTER = Phrases(
    "[, please| please| for me|, thanks| now| then| today|, my friend|, if you can|, do you know|, can you say|, okay]"
)
_OPENERS = words(
    "what what's which how who when where do did can could would will tell say name give add subtract multiply divide "
    "take compute calculate work repeat copy write echo if sum are is count find solve"
)


def chattily(rng: Random, text: str) -> str:
    """Sometimes with words before or behind it that mean nothing: *Okay, what is my name?*"""
    kind = rng.random()
    if kind < 0.14 and text.split()[0].lower() in _OPENERS:
        mark = pick(rng, (",", ",", ":", "."))
        return f"{BEFORE.say(rng)}{mark} {text if mark == '.' else text[0].lower() + text[1:]}"
    if 0.14 <= kind < 0.22 and text[-1] in ".?":
        return text[:-1] + AFTER.say(rng) + text[-1]
    return text


def casually(rng: Random, text: str) -> str:
    """As people type: sometimes without the last full stop or question mark, sometimes without the first capital."""
    if rng.random() < 0.2 and text[-1] in ".?!":
        text = text[:-1]
    if rng.random() < 0.12:
        text = text[:1].lower() + text[1:]
    return text
