"""Steps an engine for several conversations in one thread: nobody takes the updates of another.

Requests that were not submitted here are served too, and their updates are dropped: an engine that has conversations is
not driven by hand at the same time.

An inbox does not keep its engine alive: conversations do, and when the last of them is gone, so may the engine be.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from brim.engine.front.answers import Update
from brim.engine.requests.params import SamplingParams
from brim.errors import InvalidRequest

if TYPE_CHECKING:
    from brim.engine.engine import Engine


class Inbox:
    """The updates of requests that were submitted here, each waiting for its owner."""

    def __init__(self, engine: Engine) -> None:
        self._of = ref(engine)
        self._updates: dict[str, deque[Update]] = {}
        self._left: deque[str] = deque()  # sessions of conversations that are gone

    @property
    def _engine(self) -> Engine:
        engine = self._of()
        assert engine is not None, "the caller holds the engine"
        return engine

    def submit(
        self, prompt: Any, params: SamplingParams, images: tuple[Any, ...], audios: tuple[Any, ...], session: str
    ) -> str:
        self._forget_left()
        request_id = self._engine.submit(prompt, params, images=images, audios=audios, session=session)
        self._updates[request_id] = deque()
        return request_id

    def next(self, request_id: str) -> Update:
        """The next update of a request; the engine is stepped until there is one."""
        mine = self._updates[request_id]
        while not mine:
            if self._engine.idle:
                raise InvalidRequest("the request has ended elsewhere: the engine was torn down, or it was cancelled")
            for update in self._engine.step():
                waiting = self._updates.get(update.request_id)
                if waiting is not None:
                    waiting.append(update)
        update = mine.popleft()
        if update.completion is not None:
            del self._updates[request_id]
            self._forget_left()
        return update

    def leave(self, session: str) -> None:
        """A conversation is gone. Told by the garbage collector, at any time: the engine hears of it later."""
        self._left.append(session)

    def _forget_left(self) -> None:
        while self._left:
            self._engine.forget_session(self._left.popleft())

    def cancel(self, request_id: str) -> None:
        """Nobody waits for it any more."""
        if self._updates.pop(request_id, None) is not None:
            self._engine.cancel(request_id)


_INBOXES: WeakKeyDictionary[Engine, Inbox] = WeakKeyDictionary()  # a value that held its key would keep it for ever


def inbox_of(engine: Engine) -> Inbox:
    """The one inbox of an engine."""
    if engine not in _INBOXES:
        _INBOXES[engine] = Inbox(engine)
    return _INBOXES[engine]
