"""Where the turns of a conversation end in its prompt, in tokens, from one rendering and one pass of the tokenizer.

In: a conversation. Out: for its opening and for each turn the tokens of the prompt up to its end; every token of the
prompt is counted once, for the turn that it begins in. The template is a program and does not say which of its text
belongs to a turn: a private character behind each turn's text marks its place, and what the template writes behind that
is learned from the first turn of each role. Nothing is guessed: where the marks change the text (a template that cuts
contents apart), a turn spells control tokens, or the tokenizer knows no places, None says so.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from brim.engine.chat.conversation import Conversation
from brim.engine.chat.turns import Turn, exchanges_of
from brim.engine.front.chat_template import ChatTemplate
from brim.engine.requests.control_tokens import ChatText

_MARKS = tuple(chr(code) for code in range(0xE000, 0xE010))  # for private use: no template and hardly a text has them


def turn_ends(template: ChatTemplate, conversation: Conversation) -> list[int] | None:
    """Tokens up to the end of the opening, and of each turn; an image or audio is its placeholder."""
    tokenizer = template.tokenizer
    if not getattr(tokenizer, "is_fast", False):
        return None
    written = _written(template, conversation)
    text = written.marked
    ends = None if written.plain else _ends_in_text(template, conversation, text)
    if ends is None:
        return None
    places = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    starts = [start for start, _ in places]
    return [*(bisect_left(starts, end) for end in ends[:-1]), len(starts)]


def _ends_in_text(template: ChatTemplate, conversation: Conversation, text: str) -> list[int] | None:
    """Characters up to the end of the opening, and of each turn."""
    opening = replace(conversation, exchanges=())
    before = _rendered(template, opening) if opening.messages else ""
    mark = next((mark for mark in _MARKS if mark not in text), None)
    if mark is None or not text.startswith(before):
        return None
    pieces = _rendered(template, _marked(conversation, mark)).split(mark)
    if "".join(pieces) != text or len(pieces) != len(conversation.turns) + 1:
        return None
    closings = {role: _closing(template, conversation, role, mark) for role in {one.role for one in conversation.turns}}
    ends, place = [len(before)], 0
    for turn, piece, behind in zip(conversation.turns, pieces, pieces[1:], strict=False):
        place += len(piece)
        found = behind.find(closings[turn.role])
        if found < 0:
            return None
        ends.append(place + found + len(closings[turn.role]))
    return ends


def _closing(template: ChatTemplate, conversation: Conversation, role: str, mark: str) -> str:
    """What the template writes behind a turn of this role: the end of a conversation that ends with one."""
    first = next(number for number, turn in enumerate(conversation.turns) if turn.role == role)
    return _rendered(template, _marked(conversation.until(first + 1), mark)).rpartition(mark)[2].lstrip()


def _marked(conversation: Conversation, mark: str) -> Conversation:
    """With a mark behind the last letter of every turn: templates cut spaces off."""
    return replace(conversation, exchanges=exchanges_of(_with_mark(conversation.turns, mark)))


def _with_mark(turns: Sequence[Turn], mark: str) -> list[Turn]:
    found = []
    for turn in turns:
        said = turn.content.rstrip()
        found.append(replace(turn, content=said + mark + turn.content[len(said) :]))
    return found


def _rendered(template: ChatTemplate, conversation: Conversation) -> str:
    return _written(template, conversation).shown


def _written(template: ChatTemplate, conversation: Conversation) -> ChatText:
    return template.render(conversation.messages, conversation.tools, answering=False)
