"""A conversation with a model that never overflows.

    chat = Chat(engine, system="You are Ada.")
    print(chat.send("What is your name?").text)

A new turn computes only what is new: the rest is found in the KV pool. When prompt and answer would pass the threshold,
the oldest exchanges are dropped down to the low-water mark (`brim.guard.rolling`), or replaced by a summary, or the
turn is refused; the reply says what was dropped. The instruction, tools and pinned exchanges stay.

A turn is a transaction: refused, failed or cancelled, it leaves the conversation as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

from brim.engine.chat.checks import check_objects, check_text
from brim.engine.chat.conversation import Conversation
from brim.engine.chat.inbox import inbox_of
from brim.engine.chat.media_files import held
from brim.engine.chat.prompting import Prompts
from brim.engine.chat.reply import Evicted, Reply, ReplyStream
from brim.engine.chat.saved import SavedChat, read_chat, write_chat
from brim.engine.chat.turns import ROLES, Turn, turns_of
from brim.engine.requests.params import SamplingParams
from brim.errors import InvalidRequest
from brim.guard.rolling import RollingSettings, roll

if TYPE_CHECKING:
    from brim.engine.engine import Engine

STRATEGIES = ("evict", "summarise", "error")
DEFAULT_ANSWER = 512  # tokens, where nothing was said; less where the threshold is small
Summarise = Callable[[Sequence[Turn]], str]  # of the turns that go; the first may be an earlier summary

_numbers = count()


@dataclass(frozen=True, slots=True)
class TurnUsage:
    """What one turn takes."""

    role: str
    tokens: int
    bytes: int  # of the KV pool, when all of the conversation is in it
    pinned: bool


@dataclass(frozen=True, slots=True)
class ChatUsage:
    """What a conversation takes, and when it will roll."""

    tokens: int
    bytes: int
    opening_tokens: int  # instruction, summary and tools
    rolling_threshold: int
    low_water: int
    turns: tuple[TurnUsage, ...]


class Chat:
    """One conversation. Single-threaded like its engine; several may take turns on one engine."""

    def __init__(
        self,
        engine: Engine,
        system: str | None = None,
        rolling_threshold: int | None = None,
        low_water: int | None = None,
        strategy: str = "evict",
        *,
        tools: Iterable[Mapping[str, Any]] = (),
        summarise: Summarise | None = None,
        params: SamplingParams | None = None,
    ) -> None:
        if strategy not in STRATEGIES:
            raise InvalidRequest(f"strategy is {strategy!r}; it must be one of {', '.join(STRATEGIES)}")
        if (strategy == "summarise") != (summarise is not None):
            raise InvalidRequest("summarise: the strategy 'summarise' needs a function that writes one, others none")
        longest = engine.longest_request
        threshold = longest if rolling_threshold is None else rolling_threshold
        self.rolling = RollingSettings(threshold, max(1, threshold // 2) if low_water is None else low_water)
        if threshold > longest:
            raise InvalidRequest(
                f"rolling_threshold is {threshold}; the engine holds {longest} tokens of one request: lower it, or "
                "build the engine with more kv_tokens"
            )
        self.engine = engine
        self.strategy = strategy
        self.params = params or self._usual_params
        self._asked_marks = rolling_threshold, low_water  # None: the engine decides
        self._summarise = summarise
        self._prompts = Prompts(engine)
        self._session = f"chat-{next(_numbers)}"
        self._open: ReplyStream | None = None
        given_tools = tuple(tools)
        check_objects("tools", given_tools)
        self.conversation = Conversation(tools=given_tools)
        self.system = system
        finalize(self, inbox_of(engine).leave, self._session).atexit = False

    @property
    def _usual_params(self) -> SamplingParams:
        return SamplingParams(max_tokens=max(1, min(DEFAULT_ANSWER, self.rolling.threshold // 4)), temperature=0)

    # -- turns ---------------------------------------------------------------------------------------------------

    @property
    def system(self) -> str | None:
        return self.conversation.system

    @system.setter
    def system(self, text: str | None) -> None:
        self._check_settled()
        if text is not None:
            check_text("system", text)
        self.conversation = replace(self.conversation, system=text)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """What is kept of the conversation, the oldest first."""
        return self.conversation.turns

    def send(
        self,
        text: str,
        params: SamplingParams | None = None,
        images: Iterable[Any] = (),
        *,
        audios: Iterable[Any] = (),
        role: str = "user",
    ) -> Reply:
        """Say something (or give a tool's result), and get the answer."""
        return self.stream(text, params, images, audios=audios, role=role).read()

    def stream(
        self,
        text: str,
        params: SamplingParams | None = None,
        images: Iterable[Any] = (),
        *,
        audios: Iterable[Any] = (),
        role: str = "user",
    ) -> ReplyStream:
        """The same, with the answer in pieces."""
        if role not in ROLES or role == "assistant":
            raise InvalidRequest(f"role is {role!r}; it must be user or tool")
        check_text("text", text)
        turn = Turn(role, text, held(images, "images"), audios=held(audios, "audios"))
        return self._ask(self.conversation.with_turn(turn), params)

    def retry(self, params: SamplingParams | None = None) -> Reply:
        """Answer the last turn of the user again, in place of the answer it got."""
        return self.stream_again(params).read()

    def stream_again(self, params: SamplingParams | None = None) -> ReplyStream:
        """The same, with the answer in pieces."""
        return self._ask(self._before_answer(), params)

    def edit(
        self,
        turn: int,
        text: str,
        params: SamplingParams | None = None,
        images: Iterable[Any] | None = None,
        *,
        audios: Iterable[Any] | None = None,
    ) -> Reply:
        """Say something else in place of a turn of the user; what came after it is gone."""
        old = self._turn(turn)
        if old.role != "user":
            raise InvalidRequest(f"turn {turn} is of the {old.role}; only a turn of the user can be said otherwise")
        check_text("text", text)
        shown = old.images if images is None else held(images, "images")
        heard = old.audios if audios is None else held(audios, "audios")
        new = replace(old, content=text, images=shown, audios=heard)
        return self._ask(self.conversation.until(self._place(turn)).with_turn(new), params).read()

    def undo(self) -> tuple[Turn, ...]:
        """Take the last exchange back; its turns."""
        self._check_settled()
        if not self.conversation.exchanges:
            raise InvalidRequest("undo: the conversation has no turn")
        *kept, last = self.conversation.exchanges
        self._set(replace(self.conversation, exchanges=tuple(kept)))
        return last.turns

    def cancel(self, keep: bool = False) -> bool:
        """End the answer that is being streamed, and drop its turn or keep the half of it; False: there is none."""
        if self._open is None:
            return False
        self._open.cancel(keep)
        return True

    def pin(self, turn: int, pinned: bool = True) -> None:
        """Keep the exchange of a turn, whatever is dropped."""
        self._check_settled()
        self.conversation = self.conversation.pin(self._place(turn), pinned)

    def branch(self) -> Chat:
        """Another conversation with the same beginning, which both find in the KV pool."""
        twin = Chat(
            self.engine,
            None,
            *self._asked_marks,
            self.strategy,
            summarise=self._summarise,
            params=self.params,
        )
        twin.conversation = self.conversation
        return twin

    def _turn(self, number: int) -> Turn:
        return self.turns[self._place(number)]

    def _place(self, number: int) -> int:
        """The place of a turn; negative numbers count from the end."""
        turns = len(self.turns)
        if not isinstance(number, int) or isinstance(number, bool) or not -turns <= number < turns:
            raise InvalidRequest(f"turn {number!r}: the conversation has {turns} turns, counted from 0")
        return number % turns

    def _before_answer(self) -> Conversation:
        exchanges = self.conversation.exchanges
        if not exchanges or not exchanges[-1].answered:
            raise InvalidRequest("retry: the conversation has no answer yet")
        return self.conversation.until(len(self.turns) - 1)

    # -- asking --------------------------------------------------------------------------------------------------

    def _ask(self, asked: Conversation, params: SamplingParams | None) -> ReplyStream:
        self._check_settled()
        params = params or self.params
        if params.n != 1:
            raise InvalidRequest(f"n is {params.n}; a conversation goes on with one answer")
        inbox = inbox_of(self.engine)
        try:
            kept, evicted = self._rolled(asked, params.max_tokens)
            request_id = inbox.submit(self._prompts.prompt(kept), params, kept.images, kept.audios, self._session)
        except BaseException:
            self._prompts.forget_other_media(self.conversation)
            raise

        def settle(text: str, stays: bool) -> None:
            self._open = None
            self._set(kept.with_turn(Turn("assistant", text)) if stays else self.conversation)

        self._open = ReplyStream(inbox, request_id, evicted, settle)
        return self._open

    def _check_settled(self) -> None:
        """The conversation is replaced when a turn ends: a change that is made meanwhile would be lost."""
        if self._open is not None:
            raise InvalidRequest("a turn of this conversation is being answered; read it or cancel it first")

    def _set(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self._prompts.forget_other_media(conversation)

    def _rolled(self, asked: Conversation, room: int) -> tuple[Conversation, Evicted]:
        """What of the conversation goes into the prompt, and what gives way."""

        def tokens(numbers: Sequence[int]) -> int:
            return self._prompts.count(asked.with_exchanges(numbers))

        pinned = [exchange.pinned for exchange in asked.exchanges]
        found = roll(pinned, tokens, room, self.rolling)
        if not found.dropped and found.fits:
            return asked, Evicted()
        if self.strategy == "error" or not found.fits:
            raise self._too_large(found.tokens_before if self.strategy == "error" else found.tokens, room)
        dropped = turns_of([asked.exchanges[number] for number in found.dropped])
        kept = asked.with_exchanges(found.kept)
        if self._summarise is not None:
            kept = self._with_summary(kept, dropped)
            if (total := self._prompts.count(kept)) + room > self.rolling.threshold:
                raise self._too_large(total, room)
        return kept, Evicted(dropped, found.tokens_before - found.tokens)

    def _with_summary(self, kept: Conversation, dropped: tuple[Turn, ...]) -> Conversation:
        assert self._summarise is not None
        earlier = () if kept.summary is None else (Turn("system", kept.summary),)
        summary = self._summarise((*earlier, *dropped))
        check_text("summarise", summary)
        return replace(kept, summary=summary)

    def _too_large(self, tokens: int, room: int) -> InvalidRequest:
        limit = self.rolling.threshold
        what = "the conversation has" if self.strategy == "error" else "this turn and what cannot be dropped have"
        return InvalidRequest(
            f"chat: {what} {tokens} tokens, and {room} are wanted for the answer: {tokens + room - limit} more than "
            f"the rolling_threshold of {limit}; shorten the turn, ask for fewer max_tokens, or unpin turns"
        )

    # -- memory --------------------------------------------------------------------------------------------------

    @property
    def tokens(self) -> int:
        """Of all that is kept."""
        return self._prompts.count(self.conversation, answering=False) if self.conversation.messages else 0

    @property
    def usage(self) -> ChatUsage:
        """Tokens and bytes, by turn."""
        starts = self._prompts.turn_ends(self.conversation)
        total = starts[-1]
        turns = tuple(
            TurnUsage(turn.role, end - start, self.engine.held_bytes(start, end, total), turn.pinned)
            for turn, start, end in zip(self.turns, starts, starts[1:], strict=False)
        )
        return ChatUsage(
            tokens=total,
            bytes=self.engine.held_bytes(0, total, total),
            opening_tokens=starts[0],
            rolling_threshold=self.rolling.threshold,
            low_water=self.rolling.low_water,
            turns=turns,
        )

    def rest(self) -> None:
        """The conversation will be quiet: its blocks are given up before those of others, and recomputed later."""
        self.engine.forget_session(self._session)

    # -- on disk -------------------------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write the conversation and its settings to a file; keys and values are recomputed when it is loaded."""
        params = None if self.params == self._usual_params else self.params
        write_chat(Path(path), SavedChat(self.conversation, *self._asked_marks, self.strategy, params))

    @classmethod
    def load(
        cls,
        engine: Engine,
        path: str | PathLike[str],
        *,
        rolling_threshold: int | None = None,
        low_water: int | None = None,
        strategy: str | None = None,
        summarise: Summarise | None = None,
    ) -> Chat:
        """The conversation as it was saved, but for what is given. With another threshold goes another low-water mark:
        the default, if none is given.
        """
        saved = read_chat(Path(path))
        if rolling_threshold is None:
            rolling_threshold = saved.rolling_threshold
            low_water = saved.low_water if low_water is None else low_water
        chat = cls(
            engine,
            None,
            rolling_threshold,
            low_water,
            strategy or saved.strategy,
            summarise=summarise,
            params=saved.params,
        )
        chat.conversation = saved.conversation
        return chat


def send_all(chats: Sequence[Chat], texts: Sequence[str], params: SamplingParams | None = None) -> list[Reply]:
    """One turn of each of several conversations on one engine, answered together."""
    streams: list[ReplyStream] = []
    try:
        for chat, text in zip(chats, texts, strict=True):
            streams.append(chat.stream(text, params))
        return [stream.read() for stream in streams]
    except BaseException:
        for stream in streams:
            stream.cancel()
        raise
