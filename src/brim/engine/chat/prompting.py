"""A conversation as the prompt of a request, and how many tokens that is, exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from brim.engine.chat.conversation import Conversation
from brim.engine.chat.media_files import given
from brim.engine.chat.turn_ends import turn_ends
from brim.engine.chat.turns import Turn
from brim.engine.front.chat_template import ChatTemplate, has_chat_template
from brim.engine.front.segments import SegmentTokenizer
from brim.engine.requests.control_tokens import ChatText
from brim.errors import InvalidRequest

if TYPE_CHECKING:
    from brim.engine.engine import Engine


class Prompts:
    """Makes prompts for one engine."""

    def __init__(self, engine: Engine) -> None:
        if not has_chat_template(engine.tokenizer):
            raise InvalidRequest("chat: the model's tokenizer has no chat template; it cannot tell turns apart")
        self._engine = engine
        self._template = ChatTemplate(engine.tokenizer)
        self._segments = SegmentTokenizer(engine.tokenizer, most_tokens=2 * engine.longest_request)
        self._media_tokens: dict[int, tuple[Any, int]] = {}  # by identity: an image or audio, and what it takes

    def prompt(self, conversation: Conversation) -> ChatText | list[int]:
        """What the engine is asked: tokens, or a text where the model's processor has to see or hear media."""
        if conversation.images or conversation.audios:
            return self._text(conversation)
        return self._tokens(conversation)

    def count(self, conversation: Conversation, answering: bool = True) -> int:
        """Tokens of that prompt, with the beginning of the answer or without it."""
        media = sum(self._tokens_of_media(turn) for turn in conversation.turns)
        return media + len(self._tokens(conversation, answering))

    def turn_ends(self, conversation: Conversation) -> list[int]:
        """Tokens up to the end of the opening, and up to that of each turn, in the prompt of the whole."""
        ends = turn_ends(self._template, conversation) if conversation.messages else [0]
        if ends is None:  # one prompt for each turn
            opening = replace(conversation, exchanges=())
            grown = (conversation.until(number) for number in range(1, len(conversation.turns) + 1))
            counted = [self.count(one, answering=False) for one in grown]
            return [self.count(opening, answering=False) if opening.messages else 0, *counted]
        media = accumulate(self._tokens_of_media(turn) for turn in conversation.turns)
        return [end + tokens for end, tokens in zip(ends, (0, *media), strict=True)]

    def _text(self, conversation: Conversation, answering: bool = True) -> ChatText:
        return self._template.render(conversation.messages, conversation.tools, answering)

    def _tokens(self, conversation: Conversation, answering: bool = True) -> list[int]:
        return self._template.tokens(self._text(conversation, answering), self._segments.tokens)

    def _tokens_of_media(self, turn: Turn) -> int:
        """How many tokens more than their placeholders the media of a turn take."""
        images = (self._beyond(given(image), self._engine.image_tokens) for image in turn.images)
        audios = (self._beyond(given(audio), self._engine.audio_tokens) for audio in turn.audios)
        return sum(images) + sum(audios)

    def _beyond(self, medium: Any, tokens_of: Callable[[Any], int]) -> int:
        if id(medium) not in self._media_tokens:
            self._media_tokens[id(medium)] = medium, tokens_of(medium) - 1
        return self._media_tokens[id(medium)][1]

    def forget_other_media(self, conversation: Conversation) -> None:
        """Let go of images and audio that are in no turn any more."""
        kept = {id(medium) for medium in (*conversation.images, *conversation.audios)}
        self._media_tokens = {key: value for key, value in self._media_tokens.items() if key in kept}
