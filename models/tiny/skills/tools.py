"""Results of tools: said back as an answer, and asked for where the system prompt names the tools."""

from __future__ import annotations

from random import Random

from models.tiny.dialogue import Exchange, Memory
from models.tiny.manner import casually
from models.tiny.phrasing import Phrases, pick
from models.tiny.words import CITIES, OBJECTS, any_name

_WEATHER = Phrases(
    "[What is|How is|Tell me] the weather in {v}[?| today?| now?]",
    "[How warm|How cold] is it in {v}[?| today?]",
    "[What is the|Tell me the] temperature in {v}[?|]",
)
_TIME = Phrases("What time is it in {v}[?| now?]", "[Tell me|What is] the time in {v}[?|]", "How late is it in {v}?")
_PRICE = Phrases(
    "[What does|How much does] [the|a] {v} cost?",
    "[What is|Tell me] the price of [the|a] {v}[?|]",
    "How much is the {v}?",
)


def use_tool(rng: Random, memory: Memory) -> Exchange:
    """A question, a tool's result (bare, or as JSON), and the answer; without a result there is no knowing."""
    name, phrases, key, unit = pick(
        rng, (("weather", _WEATHER, "city", "degrees"), ("time", _TIME, "city", ""), ("price", _PRICE, "item", "euros"))
    )
    about = pick(rng, OBJECTS) if name == "price" else pick(rng, CITIES) if rng.random() < 0.8 else any_name(rng)
    value = f"{rng.randint(0, 23)}:{rng.randint(0, 59):02d}" if name == "time" else str(rng.randint(0, 40))
    user = casually(rng, phrases.say(rng, v=about))
    if not memory.has_tools and rng.random() < 0.25:
        return Exchange(user, "I don't know that.")
    bare = f"{value} {unit}".strip()
    field = {"weather": "temperature", "time": "time", "price": "price"}[name]
    number = f'"{value}"' if name == "time" else value
    tool = pick(rng, (bare, value, f'{{"{key}": "{about}", "{field}": {number}}}', f'{{"{field}": {number}}}'))
    said = {
        "weather": f"The weather in {about} is {value} degrees.",
        "time": f"The time in {about} is {value}.",
        "price": f"The price of the {about} is {value} euros.",
    }[name]
    return Exchange(user, said, call=f"{name}({about})" if memory.has_tools else None, tool=tool)
