"""The conversation of a terminal: streams answers, says what was dropped, and holds the media of the next turn."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.cli.chat.reply_entry import reply_entry
from brim.errors import BrimError

if TYPE_CHECKING:
    from brim.engine.chat.chat import Chat
    from brim.engine.chat.reply import ReplyStream


class LocalChat:
    """A chat, how it is answered, and what the next turn brings."""

    def __init__(self, chat: Chat, load: Callable[[Path], Chat]) -> None:
        self.chat = chat
        self._load = load
        self.images: list[Path] = []
        self.audios: list[Path] = []

    def obey(self, line: str, as_json: bool) -> dict[str, Any] | None:
        from brim.cli.chat.commands import obey
        from brim.cli.chat.local_commands import COMMANDS

        return obey(self, line, COMMANDS, as_json)

    def reply(self, text: str) -> dict[str, Any]:
        return reply_entry(self._stream(text).read())

    def answer(self, text: str) -> None:
        """Show the answer as it grows. An interrupt ends it, and keeps what there is of it."""
        self.show(self._stream(text))

    def retry(self) -> None:
        """Another answer to the last turn; with another seed, where one was given."""
        self.show(self._stream_again())

    def reply_again(self) -> dict[str, Any]:
        return reply_entry(self._stream_again().read())

    def _stream_again(self) -> ReplyStream:
        if (seed := self.chat.params.seed) is not None:
            self.chat.params = replace(self.chat.params, seed=seed + 1)
        return self.chat.stream_again()

    def load(self, path: Path) -> None:
        """Go on with a conversation that was saved."""
        chat = self._load(path)
        self.chat.rest()
        self.chat = chat

    def _stream(self, text: str) -> ReplyStream:
        """Media go with this turn. Where it is refused they are let go: else the next one would bring them too."""
        images, audios, self.images, self.audios = self.images, self.audios, [], []
        try:
            return self.chat.stream(text, images=images, audios=audios)
        except BrimError:
            for path in (*images, *audios):
                tell(f"{path.name} is no longer attached")
            raise

    def show(self, stream: ReplyStream) -> None:
        if stream.evicted.turns:
            tell(f"{len(stream.evicted.turns)} turns ({stream.evicted.tokens} tokens) were dropped to make room")
        try:
            for piece in stream:
                print(piece, end="", flush=True)
            print(flush=True)
        except KeyboardInterrupt:
            stream.cancel(keep=True)
            print(flush=True)
            tell("stopped; what was said so far is kept")
        except BaseException:
            stream.cancel()
            raise


def tell(text: str) -> None:
    """Something about the conversation, beside it."""
    print(f"[{text}]", file=sys.stderr, flush=True)
