"""An engine in a thread of its own, for callers that wait on many answers at once.

    async with StreamingEngine(engine) as serving:
        async for update in serving.stream("Once upon a time", SamplingParams(max_tokens=64)):
            print(update.text, end="")

The thread alone touches the engine. Commands go in through a queue; updates come out in the event loop of whoever
asked. A stream that is left early cancels its request.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from brim.engine.engine import Engine
from brim.engine.front.answers import Completion, Update
from brim.engine.front.door import Prompt
from brim.engine.requests.params import SamplingParams
from brim.errors import DeviceError

Result = TypeVar("Result")
Listener = Callable[[Update | BaseException], None]


class StreamingEngine:
    """Runs an engine in a thread, from `start` to `close`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._listeners: dict[str, Listener] = {}
        self._thread = threading.Thread(target=self._serve, name="brim-engine", daemon=True)
        self._failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop after the step that is running; requests in flight are cancelled."""
        self._commands.put(None)
        if self._thread.is_alive():
            self._thread.join()

    async def __aenter__(self) -> StreamingEngine:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        images: Sequence[Any] = (),
        deadline_seconds: float | None = None,
    ) -> AsyncIterator[Update]:
        """Updates of one request, until all its answers are complete. A refused request raises at the first step."""
        loop = asyncio.get_running_loop()
        updates: asyncio.Queue[Update | BaseException] = asyncio.Queue()

        def listen(update: Update | BaseException) -> None:
            loop.call_soon_threadsafe(updates.put_nowait, update)

        def submit() -> str:
            request_id = self.engine.submit(prompt, params, images=images, deadline_seconds=deadline_seconds)
            self._listeners[request_id] = listen
            return request_id

        request_id = await asyncio.wrap_future(self._ask(submit))
        left = (params or SamplingParams()).n
        try:
            while left:
                update = await updates.get()
                if isinstance(update, BaseException):
                    raise DeviceError(f"the engine has stopped: {update}") from update
                left -= update.completion is not None
                yield update
        finally:
            self._tell(lambda: self._leave(request_id))

    async def generate(self, prompt: Prompt, params: SamplingParams | None = None, **options: Any) -> list[Completion]:
        """All answers of one request."""
        found = [update.completion async for update in self.stream(prompt, params, **options) if update.completion]
        return sorted(found, key=lambda one: one.index)

    # -- between threads -----------------------------------------------------------------------------------------

    def _ask(self, action: Callable[[], Result]) -> Future[Result]:
        """Run something in the engine's thread."""
        answer: Future[Result] = Future()

        def run() -> None:
            if self._failure is not None:
                answer.set_exception(DeviceError(f"the engine has stopped: {self._failure}"))
                return
            try:
                answer.set_result(action())
            except BaseException as error:  # noqa: BLE001 - whoever asked gets it
                answer.set_exception(error)

        self._commands.put(run)
        return answer

    def _tell(self, action: Callable[[], None]) -> None:
        self._commands.put(action)

    def _leave(self, request_id: str) -> None:
        self._listeners.pop(request_id, None)
        if self._failure is None:
            self.engine.cancel(request_id)

    def _serve(self) -> None:
        try:
            while self._obey():
                for update in self.engine.step():
                    listener = self._listeners.get(update.request_id)
                    if listener is not None:
                        listener(update)
        except BaseException as error:  # noqa: BLE001 - everybody who waits gets it, and everybody who asks later
            self._failure = error
            for listener in self._listeners.values():
                listener(error)
            while (command := self._commands.get()) is not None:
                command()

    def _obey(self) -> bool:
        """Run all commands that wait, and wait for one when there is nothing else to do; False to stop."""
        while True:
            try:
                command = self._commands.get(block=self.engine.idle)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            if not self.engine.idle and self._commands.empty():
                return True
