"""Whole conversations: a system prompt or none, and then one exchange after another, each of a randomly drawn skill.

How often a skill is drawn differs from one conversation to the next, so that some are all remarks with a few facts
between them, and others all sums.
"""

from __future__ import annotations

from random import Random

from models.tiny.dialogue import Exchange, Memory, Skill, Style, Turn
from models.tiny.skills import copying, facts, sequences, smalltalk, sums, tools
from models.tiny.skills.system import ask_own_name, system_prompt

WEIGHTS: dict[Skill, float] = {
    facts.tell: 2.5,
    facts.tell_two: 0.6,
    facts.tell_and_ask: 1.6,
    facts.correct: 0.6,
    facts.correct_it: 0.5,
    facts.forget: 0.3,
    facts.ask: 4.5,
    facts.ask_anything: 1.5,
    facts.check: 0.5,
    facts.recap: 0.2,
    sums.add_up: 2.2,
    sums.compare: 0.2,
    copying.repeat: 1.6,
    copying.repeat_list: 0.5,
    copying.count_list: 0.3,
    copying.reverse_list: 0.3,
    copying.nth_item: 0.3,
    copying.say_again: 0.3,
    sequences.count: 0.6,
    sequences.calendar: 0.9,
    smalltalk.remark: 4.0,
    smalltalk.courtesy: 1.4,
    smalltalk.unanswerable: 0.6,
    ask_own_name: 0.7,
    smalltalk.ask_about_self: 0.4,
    tools.use_tool: 0.6,
}
_SYSTEM_SHARE = 0.55


class Conversation:
    """One conversation as it grows: the turns so far, and what answers depend on."""

    def __init__(self, memory: Memory, system: str | None, style: Style) -> None:
        self.memory, self._style = memory, style
        self.turns: list[Turn] = [] if system is None else [Turn("system", system)]

    def continue_for(self, characters: int, rng: Random) -> None:
        """Add exchanges until there are so many more characters."""
        skills = list(WEIGHTS)
        weights = [weight * rng.expovariate(1.0) for weight in WEIGHTS.values()]
        while characters > 0:
            skill = rng.choices(skills, weights)[0]
            exchange = skill(rng, self.memory)
            if exchange is not None:
                characters -= self.add(exchange)
                if skill not in facts.ABOUT_ONE_FACT:
                    self.memory.subject = None

    def add(self, exchange: Exchange) -> int:
        """Add one exchange; the number of characters it has."""
        self.memory.last_answer = exchange.answer
        new = [Turn("user", exchange.user)]
        if exchange.call is not None:
            new.append(Turn("assistant", exchange.call))
        if exchange.tool is not None:
            new.append(Turn("tool", exchange.tool))
        new.append(Turn("assistant", self._style(exchange.answer)))
        self.turns += new
        return sum(len(turn.text) for turn in new)


def conversation(rng: Random, characters: int) -> list[Turn]:
    """The turns of a conversation of about so many characters."""
    memory = Memory()
    system, style = system_prompt(rng, memory) if rng.random() < _SYSTEM_SHARE else (None, Style())
    made = Conversation(memory, system, style)
    made.continue_for(characters, rng)
    return made.turns
