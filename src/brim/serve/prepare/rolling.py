"""A dialogue as the text of a prompt, and what is kept of one that rolls.

It loses its oldest exchanges by Brim's policy (`brim.guard.rolling`), with exact counts: the template is applied to
what would be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from brim.engine.front.chat_template import ChatTemplate
from brim.engine.requests.control_tokens import ChatText
from brim.errors import InvalidRequest, PromptTooLong
from brim.guard.rolling import RollingSettings, roll
from brim.serve.prepare.jobs import ChatJob
from brim.serve.prepare.variables import template_variables
from brim.serve.requests.dialogue import Dialogue
from brim.surrogates import half_pair_at


def written(template: ChatTemplate, dialogue: Dialogue) -> ChatText:
    """Templates that take one instruction, at the beginning, get all of them there."""
    asked, messages = dialogue.template, [dict(message.entry) for message in dialogue.messages]
    render = partial(
        template.render,
        tools=dialogue.tools,
        answering=asked.opens_answer,
        continuing=asked.continues,
        variables=template_variables(asked, template.variables)[0],
    )
    try:
        text = render(messages)
    except InvalidRequest:
        gathered = _gathered(messages)
        if gathered == messages:
            raise
        text = render(gathered)
    check_unicode(text.shown)
    return text


def _gathered(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All instructions as one, before the rest."""
    said = [one["content"] for one in messages if one["role"] == "system" and isinstance(one["content"], str)]
    others = [one for one in messages if one["role"] != "system" or not isinstance(one["content"], str)]
    return [{"role": "system", "content": "\n\n".join(said)}, *others] if said else messages


def rolled(job: ChatJob, count: Callable[[Dialogue], int]) -> tuple[Dialogue, int, int]:
    """(what is kept, messages dropped, tokens dropped)."""
    asked = job.dialogue
    if job.room is None or not asked.exchanges:
        return asked, 0, 0

    def tokens(numbers: Sequence[int]) -> int:
        return count(asked.with_exchanges(numbers))

    settings = RollingSettings(job.threshold, max(1, job.threshold // 2))
    found = roll([False] * len(asked.exchanges), tokens, job.room, settings)
    if not found.fits:
        raise PromptTooLong(
            f"messages: the last turn and the instruction have {found.tokens} tokens, and {job.room} are wanted for "
            f"the answer: {found.tokens + job.room - job.threshold} more than the {job.threshold} of one request; "
            "shorten them, or ask for fewer max_tokens"
        )
    turns = sum(len(asked.exchanges[number]) for number in found.dropped)
    return asked.with_exchanges(found.kept), turns, found.tokens_before - found.tokens


def check_unicode(text: str, field: str = "prompt") -> None:
    place = half_pair_at(text)
    if place is not None:
        raise InvalidRequest(f"{field}: its character {place} is half of a surrogate pair; send text")
