"""What a conversation gives back: a reply, and the stream that it grows in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType

from brim.engine.chat.inbox import Inbox
from brim.engine.chat.turns import Turn
from brim.engine.front.answers import Completion
from brim.errors import BrimError


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, and what it took."""

    text: str
    tokens: tuple[int, ...]
    evicted_turns: int  # that the conversation lost for it
    evicted_tokens: int  # of the prompt
    prompt_tokens: int
    reused_tokens: int  # of the prompt, which were not recomputed
    finish_reason: str = ""
    evicted: tuple[Turn, ...] = ()  # what was lost


@dataclass(frozen=True, slots=True)
class Evicted:
    """What a conversation loses when a turn is answered."""

    turns: tuple[Turn, ...] = ()
    tokens: int = 0


class ReplyStream:
    """An answer as it grows: iterate over its pieces. `reply` is there at the end.

    Left early, as a context manager or by `cancel`, it takes its turn back, or keeps the half of it that is there.
    """

    def __init__(self, inbox: Inbox, request_id: str, evicted: Evicted, settle: Callable[[str, bool], None]) -> None:
        self._inbox = inbox
        self._request_id = request_id
        self._settle = settle  # with the text, and whether the turn stays
        self._text = ""
        self._over = False
        self.evicted = evicted
        self.reply: Reply | None = None

    def __iter__(self) -> Iterator[str]:
        while not self._over:
            update = self._inbox.next(self._request_id)
            self._text += update.text
            if update.completion is not None:
                self._end(update.completion)
            if update.text:
                yield update.text

    def _end(self, done: Completion) -> None:
        self._over = True
        text = done.text if done.text is not None else self._text
        self._settle(text, done.error is None)
        if done.error is not None:
            raise BrimError(f"the turn could not be answered, and was taken back: {done.error}")
        self.reply = Reply(
            text=text,
            tokens=done.tokens,
            evicted_turns=len(self.evicted.turns),
            evicted_tokens=self.evicted.tokens,
            prompt_tokens=done.prompt_tokens,
            reused_tokens=done.reused_tokens,
            finish_reason=str(done.finish_reason),
            evicted=self.evicted.turns,
        )

    def read(self) -> Reply:
        """All of it. If that fails, for whatever reason, the turn is taken back."""
        try:
            for _ in self:
                pass
        except BaseException:
            self.cancel()
            raise
        assert self.reply is not None, "it was cancelled"
        return self.reply

    def cancel(self, keep: bool = False) -> None:
        """End it now. `keep`: the turn stays, with what has been answered of it so far."""
        if not self._over:
            self._over = True
            self._inbox.cancel(self._request_id)
            self._settle(self._text, keep)

    def __enter__(self) -> ReplyStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
