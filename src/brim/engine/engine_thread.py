"""An engine in a thread of its own, for many clients: what every kind of engine that answers requests has in common.

In: requests, from any thread and any event loop. Out: their updates, in the event loop of the client; each loop is
woken once a step, however many of its clients have updates. A stream that is left early cancels its request.

Only the thread touches the engine: clients put commands into a queue and read a mailbox. A client's cancel is always
queued after its submit, so a client may leave at any moment and its request is cancelled.
There is no lock here: `close` may be called from a signal handler or from the engine's own thread.

A step that runs out of memory ends one request at most, and not the engine (`brim.guard.driver`). Anything else that a
step raises ends it. Knows engines as `ServedEngine` only.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import traceback
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Protocol, Self, TypeVar

from brim.errors import DeviceError, InvalidRequest
from brim.records.health import Health, Status

_TEND_SECONDS = 0.5  # how often an idle engine looks after its encoders

Result = TypeVar("Result")


class ServedRequest(Protocol):
    """What a client asks for."""

    @property
    def answers(self) -> int:
        """How many updates will say that an answer is complete."""
        ...


class ServedUpdate(Protocol):
    """What is new of an answer."""

    @property
    def request_id(self) -> str: ...

    @property
    def completion(self) -> object | None:
        """The whole answer, with its last update."""
        ...


Asked = TypeVar("Asked", bound=ServedRequest, contravariant=True)
Told = TypeVar("Told", bound=ServedUpdate, covariant=True)


class ServedEngine(Protocol[Asked, Told]):
    """An engine as its thread drives it."""

    @property
    def idle(self) -> bool: ...

    @property
    def health(self) -> Health: ...

    @property
    def encoders(self) -> object | None:
        """What `tend` looks after; None: nothing."""
        ...

    def submit_request(self, given: Asked) -> str:
        """Accept a request, under this id, or raise why not."""
        ...

    def cancel(self, request_id: str) -> Any: ...

    def step(self) -> Iterable[Told]: ...

    def tend(self) -> None: ...


@dataclass(eq=False, slots=True)
class _Client:
    """A client that waits for the updates of one request, in its event loop."""

    loop: asyncio.AbstractEventLoop
    mailbox: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)  # None: all answers are complete
    gone: bool = False  # the mailbox is no longer read
    request_id: str = ""  # this and the fields below belong to the engine's thread
    answers_left: int = 0


@dataclass(frozen=True, slots=True)
class _Ending:
    """Why the engine has ended."""

    why: str
    cause: BaseException | None = None

    def error(self) -> DeviceError:
        """A fresh error for each client: a traceback grows with every place where an error is raised."""
        error = DeviceError(self.why)
        error.__cause__ = self.cause
        return error


_CLOSED = _Ending("the engine was closed")


class EngineThread(Generic[Asked, Told]):
    """Runs an engine in a thread, from `start` to `close`; once closed, it stays closed."""

    def __init__(self, engine: ServedEngine[Asked, Told]) -> None:
        self.engine = engine
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._clients: dict[str, _Client] = {}  # by request; only the engine's thread writes
        self._thread = threading.Thread(target=self._serve, name="brim-engine", daemon=True)
        self._closing = False
        self._ending: _Ending | None = None
        self._unclean: BaseException | None = None  # what went wrong in closing

    def start(self) -> None:
        if self._ending is not None:
            raise self._ending.error()
        if self._started:
            raise InvalidRequest("the engine is started already: share this one, it takes any client")
        self._thread.start()

    def close(self) -> None:
        """Stop after the step that is running. Requests in flight are cancelled and their streams raise `DeviceError`.

        May be called at any time, more than once, from any thread. The engine itself can be used again afterwards.
        """
        self._ask_to_close()
        if self._started and threading.current_thread() is not self._thread:
            self._thread.join()
        if self._unclean is not None:
            raise DeviceError(
                f"the engine was closed, but not all requests in flight were cancelled: {_said(self._unclean)}; "
                "tear the engine down before it is used again"
            ) from self._unclean

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ask_to_close()  # at once, even if the executor has no free thread to wait in
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    @property
    def in_flight(self) -> int:
        """Requests that the engine has accepted and whose clients wait for more."""
        return len(self._clients)

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._started and self._ending is None

    @property
    def health(self) -> Health:
        """The engine's, from any thread."""
        if self._ending is not None:
            return replace(self.engine.health, status=Status.ENDED, reason=self._ending.why)
        return self.engine.health

    async def stream_request(self, given: Asked) -> AsyncGenerator[Told, None]:
        """Updates of one request, until all its answers are complete. A refused request raises at the first one.

        Leaving early cancels the request when the generator is closed: at once where the task is cancelled or
        `contextlib.aclosing` is used, otherwise as soon as Python drops the generator.
        """
        if not self._started and self._ending is None:
            raise InvalidRequest("the engine is not started: call start() first, or use `async with`")
        client = _Client(asyncio.get_running_loop())
        try:
            self._send(lambda: self._submit(client, given))
            while (news := await client.mailbox.get()) is not None:
                if isinstance(news, BaseException):
                    raise news
                yield news
        finally:
            client.gone = True
            self._send(lambda: self._leave(client))

    def call(self, work: Callable[[], Result]) -> Future[Result]:
        """Run something in the engine's thread, between two steps; here, if that thread has ended."""
        done: Future[Result] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except Exception as error:  # noqa: BLE001 - raised where the result is awaited
                done.set_exception(error)

        self._send(run)
        return done

    # -- from other threads --------------------------------------------------------------------------------------

    @property
    def _started(self) -> bool:
        return self._thread.ident is not None

    def _ask_to_close(self) -> None:
        self._closing = True
        if self._started:
            self._send(lambda: None)  # wakes the thread where it waits for a command
        else:
            self._ending = _CLOSED

    def _send(self, command: Callable[[], None]) -> None:
        """Run a command in the engine's thread, or here if that thread has ended.

        The command is queued before the ending is checked: one that the thread no longer reads is run here.
        """
        self._commands.put(command)
        if self._ending is not None:
            self._run_waiting_commands()

    def _run_waiting_commands(self) -> None:
        try:
            while True:
                self._commands.get_nowait()()
        except queue.Empty:
            return

    # -- commands; after the ending they do not touch the engine -------------------------------------------------

    def _submit(self, client: _Client, given: Asked) -> None:
        if client.gone:
            return
        if self._ending is not None:
            self._post([(client, self._ending.error())])
            return
        try:
            client.request_id = self.engine.submit_request(given)
        except Exception as error:  # noqa: BLE001 - raised in this client's stream only
            self._post([(client, error)])
            return
        except BaseException as error:  # an interrupt ends the engine; an event loop must not get one
            self._post([(client, _stopped_by(error).error())])
            raise
        client.answers_left = given.answers
        self._clients[client.request_id] = client

    def _leave(self, client: _Client) -> None:
        """Cancel its request, unless that has ended: then its id may be another client's by now."""
        if self._ending is None and self._clients.get(client.request_id) is client:
            del self._clients[client.request_id]
            self.engine.cancel(client.request_id)

    # -- the engine's thread -------------------------------------------------------------------------------------

    def _serve(self) -> None:
        ending = None
        while ending is None:
            ending = self._turn()
        self._end(ending)

    def _turn(self) -> _Ending | None:
        """Run the queued commands, then one step; returns the ending if this was the last turn."""
        try:
            self._obey()
            if self._closing:
                return _CLOSED
            if not self.engine.idle:
                self._deliver(self.engine.step())
        except BaseException as error:  # noqa: BLE001 - interrupts too: every waiting client must get the error
            return self._failed(error)
        return None

    def _failed(self, error: BaseException) -> _Ending:
        """What follows from a failed turn: an ending. Out of memory in a step has been dealt with before."""
        traceback.clear_frames(error.__traceback__)  # their tensors would live as long as the error
        return _stopped_by(error)

    def _obey(self) -> None:
        """Run the commands queued now; later ones wait for the next step. If the engine is idle, wait for a command."""
        while self.engine.idle and not self._closing:
            try:
                self._commands.get(timeout=None if self.engine.encoders is None else _TEND_SECONDS)()
            except queue.Empty:
                self.engine.tend()
        for _ in range(self._commands.qsize()):
            if self._closing:
                return
            self._commands.get()()

    def _deliver(self, updates: Iterable[Told]) -> None:
        news: list[tuple[_Client, Any]] = []
        for update in updates:
            client = self._clients.get(update.request_id)
            if client is None:
                continue
            news.append((client, update))
            client.answers_left -= update.completion is not None
            if client.answers_left == 0:
                del self._clients[update.request_id]
                news.append((client, None))
        self._post(news)

    def _post(self, news: Iterable[tuple[_Client, Any]]) -> None:
        """Into the mailboxes, with one wake-up for each event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Client, Any]]] = {}
        for client, one in news:
            by_loop.setdefault(client.loop, []).append((client, one))
        for loop, letters in by_loop.items():
            try:
                loop.call_soon_threadsafe(_fill_mailboxes, letters)
            except RuntimeError:  # the loop is closed, so these clients can neither read nor cancel
                for client, _ in letters:
                    self._leave(client)

    def _end(self, ending: _Ending) -> None:
        """Cancel all requests in flight and end all waiting streams."""
        self._ending = ending
        clients = list(self._clients.values())
        self._clients.clear()
        for client in clients:
            self._clear_away(partial(self.engine.cancel, client.request_id))
        self._post([(client, ending.error()) for client in clients])
        self._run_waiting_commands()
        self._clear_away(self._read_last_step)

    def _read_last_step(self) -> None:
        """Steps that were launched and not read would keep the engine from being idle."""
        for _ in range(2):
            if not self.engine.idle:
                self.engine.step()

    def _clear_away(self, action: Callable[[], object]) -> None:
        """One part of the cleanup. Its errors hide neither what ended the engine nor the first cleanup error."""
        assert self._ending is not None
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - the rest of the cleanup must run
            first = self._ending.cause or self._unclean
            if first is None:
                self._unclean = error
            else:
                first.add_note(f"then, while cancelling requests in flight: {_said(error)}")


def _fill_mailboxes(letters: Iterable[tuple[_Client, Any]]) -> None:
    for client, news in letters:
        if not client.gone:
            client.mailbox.put_nowait(news)


def _stopped_by(error: BaseException) -> _Ending:
    return _Ending(f"the engine has stopped: {_said(error)}", error)


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
