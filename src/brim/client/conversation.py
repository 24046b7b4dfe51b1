"""A conversation with a server: turns in, answers out as they grow, and what the server dropped to make room.

The turns are kept here and sent each time; those that the server says it has dropped are forgotten here too, so that
the next prompt begins as the last one did. A turn is a transaction: a refused one leaves the conversation as it was.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from brim.client.client import Client, Response
from brim.client.events import Events
from brim.errors import DeviceError, InvalidRequest

PATH = "/v1/chat/completions"
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ServerReply:
    """One answer, and what it took, as the server counts."""

    text: str
    finish_reason: str  # empty where it was stopped here
    prompt_tokens: int = 0
    reused_tokens: int = 0
    completion_tokens: int = 0
    evicted_turns: int = 0
    evicted_tokens: int = 0


@dataclass(slots=True)
class _StreamedReply:
    """An answer while it is streamed."""

    show: Callable[[str], None]
    dropped: Callable[[int, int], None]
    pieces: list[str] = field(default_factory=list)
    usage: Mapping[str, Any] = field(default_factory=dict)
    evicted: tuple[int, int] = (0, 0)
    finish_reason: str = ""
    problem: str | None = None

    def take(self, data: bytes) -> None:
        try:
            found = json.loads(data)
        except ValueError:
            self.problem = "the server sent an event that is no JSON"
            return
        if "error" in found:
            error = found["error"]
            self.problem = str(error.get("message") if isinstance(error, dict) else error)
        self._note_dropped(found.get("brim") or {})
        self.usage = found.get("usage") or self.usage
        for choice in found.get("choices") or ():
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            if text := (choice.get("delta") or {}).get("content"):
                self.pieces.append(text)
                self.show(text)

    def _note_dropped(self, brim: Mapping[str, Any]) -> None:
        turns, tokens = brim.get("evicted_turns", 0), brim.get("evicted_tokens", 0)
        if turns:
            self.evicted = turns, tokens
            self.dropped(turns, tokens)

    def reply(self) -> ServerReply:
        details = self.usage.get("prompt_tokens_details") or {}
        return ServerReply(
            text="".join(self.pieces),
            finish_reason=self.finish_reason,
            prompt_tokens=self.usage.get("prompt_tokens", 0),
            reused_tokens=details.get("cached_tokens") or 0,
            completion_tokens=self.usage.get("completion_tokens", 0),
            evicted_turns=self.evicted[0],
            evicted_tokens=self.evicted[1],
        )


class RemoteConversation:
    """Turns, and the server that answers them."""

    def __init__(self, client: Client, options: Mapping[str, Any], *, system: str | None = None, rolls: bool) -> None:
        self._client = client
        self._options = dict(options)
        self._rolls = rolls  # the server is asked to drop the oldest turns where all do not fit
        self.system = system
        self.turns: list[Message] = []

    async def send(
        self,
        text: str,
        media: Sequence[Mapping[str, Any]] = (),
        *,
        show: Callable[[str], None] = lambda piece: None,
        dropped: Callable[[int, int], None] = lambda turns, tokens: None,
    ) -> ServerReply:
        """The answer to a turn; pieces of it are shown as they come. Cancelled, what there is of it is kept.

        `media` are parts of the message, which stand before its text.
        """
        content: Any = [*media, {"type": "text", "text": text}] if media else text
        return await self._answer([*self.turns, {"role": "user", "content": content}], show, dropped)

    async def retry(
        self,
        *,
        show: Callable[[str], None] = lambda piece: None,
        dropped: Callable[[int, int], None] = lambda turns, tokens: None,
    ) -> ServerReply:
        """Another answer to the last turn; with another seed, where one was given."""
        if not self.turns:
            raise InvalidRequest("there is no turn to answer again")
        if "seed" in self._options:
            self._options["seed"] += 1
        return await self._answer(self.turns[:-1], show, dropped)

    def undo(self) -> list[Message]:
        """Take the last exchange back; its turns."""
        if not self.turns:
            raise InvalidRequest("there is no turn to take back")
        kept, taken = self.turns[:-2], self.turns[-2:]
        self.turns = kept
        return taken

    async def _answer(
        self, turns: list[Message], show: Callable[[str], None], dropped: Callable[[int, int], None]
    ) -> ServerReply:
        growing = _StreamedReply(show, dropped)
        try:
            response = await self._asked(turns, growing)
        except asyncio.CancelledError:
            if growing.pieces:
                self._keep(turns, growing)
            raise
        if response.status != 200:
            raise InvalidRequest(f"the server refused it ({response.status}): {response.problem}")
        if growing.problem is not None:
            raise DeviceError(f"the answer failed: {growing.problem}")
        self._keep(turns, growing)
        return growing.reply()

    async def _asked(self, turns: list[Message], growing: _StreamedReply) -> Response:
        response = await self._posted(turns, growing)
        if response.status == 400 and self._rolls and "truncation" in response.problem:
            self._rolls = False  # not every server knows it: the whole conversation is sent from now on
            response = await self._posted(turns, growing)
        return response

    async def _posted(self, turns: list[Message], growing: _StreamedReply) -> Response:
        opening = [{"role": "system", "content": self.system}] if self.system else []
        body = {"messages": [*opening, *turns], "stream": True, "stream_options": {"include_usage": True}}
        body |= self._options | ({"truncation": "auto"} if self._rolls else {})
        return await self._client.stream(PATH, body, Events(growing.take).feed)

    def _keep(self, turns: list[Message], growing: _StreamedReply) -> None:
        answer = {"role": "assistant", "content": "".join(growing.pieces)}
        self.turns = [*turns[growing.evicted[0] :], answer]
