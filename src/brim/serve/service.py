"""A server without its listener: the application, and the engine behind it from its start to its end.

In: settings, and a `Starter` that makes the engine. Out: `app`, an ASGI application that answers from the first moment
on, and says that it is starting until `start` is done. `brim serve` puts it behind its own listener
(`brim.serve.server`), and `brim.ray` behind Ray Serve's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from brim.errors import DeviceError
from brim.progress import showing
from brim.record.writer import RecordingWriter
from brim.records.fit import FitReport
from brim.records.progress import Progress, Stage, Told
from brim.serve.block_events import BlockPublisher
from brim.serve.gate import RequestGate
from brim.serve.http.app import make_app
from brim.serve.lifecycle import PoolingServer, RunningServer, ServerLifecycle, SizedEngine, SizedPooling
from brim.serve.parse.table import Formats
from brim.serve.plans import Planning
from brim.serve.prepare.jobs import TokenizerSource
from brim.serve.prepare.trials import Trials
from brim.serve.prepare.worker import Tokenising
from brim.serve.recording import ServeRecorder
from brim.serve.settings import ServeSettings
from brim.serve.token_texts import TokenTexts

if TYPE_CHECKING:
    from brim.engine.engine import Engine
    from brim.engine.pooling.engine import PoolingEngine
    from brim.ports import MemoryProbe
    from brim.reserve.sizing import Sizer

Result = TypeVar("Result")
_LOOK_SECONDS = 0.05  # how often a drain looks whether anybody is left


@dataclass(frozen=True, slots=True)
class Loaded:
    """An engine that is not built yet, and what measures its memory."""

    engine: Engine
    probe: MemoryProbe | None = None
    neighbours: Sizer | None = None  # its part of a device that others share
    driven: Any = None  # what requests are given to, where that is not the engine itself


@dataclass(frozen=True, slots=True)
class LoadedPooling:
    """An engine that embeds or scores, not built yet, and how it is sized."""

    engine: PoolingEngine
    fit: Callable[[Told], FitReport | None]  # builds it; None: the size was given
    probe: MemoryProbe | None = None
    neighbours: Sizer | None = None


class Starter(Protocol):
    """Makes the engine, in two stages; each tells its progress."""

    def load(self, told: Told) -> Loaded | LoadedPooling: ...

    def fit(self, loaded: Loaded, told: Told) -> FitReport | None:
        """Build it at the size that fits; None: the size was given."""
        ...


class Abandoned(Exception):
    """The server is to end before it has started."""


class Service:
    """One engine and its application; in one event loop."""

    def __init__(
        self,
        settings: ServeSettings,
        starter: Starter,
        *,
        write_log: Callable[[str], object] | None = None,
        say: Callable[[str], object] = lambda line: None,
        progress: Progress = False,
        tokenising: Callable[[TokenizerSource], Tokenising] = Tokenising,
        recording: RecordingWriter | None = None,
        unrecorded: str = "",
    ) -> None:
        """`recording`: where steps and events are written; it is closed with the service. `unrecorded`: why not."""
        self.lifecycle = ServerLifecycle()
        self._recording = recording
        self._unrecorded = unrecorded
        self._recorder: ServeRecorder | None = None
        self._settings = settings
        self._starter = starter
        self._say = say
        self._progress = progress
        self._tokenising = tokenising
        self._planning = Planning()
        self.app = make_app(self.lifecycle, settings, write_log, self._planning)
        self._publisher = (
            None if settings.kv_events is None else BlockPublisher(settings.kv_events, settings.kv_events_topic)
        )
        self._tasks: list[asyncio.Task[None]] = []  # beside the requests

    # -- start ---------------------------------------------------------------------------------------------------

    async def start(self, is_abandoned: Callable[[], bool] = lambda: False) -> None:
        """Load, fit and serve. What goes wrong is raised; `Abandoned` where nobody wants it any more."""
        from brim.engine.streaming import StreamingEngine

        with showing(self._progress) as shown:

            def told(stage: Stage) -> None:
                if is_abandoned():
                    raise Abandoned
                self.lifecycle.set_stage(stage)
                shown(stage)

            loaded = await in_thread(self._starter.load, told)
            if isinstance(loaded, LoadedPooling):
                await self._start_pooling(loaded, told)
                return
            engine, source = loaded.engine, tokenizer_source(loaded.engine)
            formats = Formats.of(engine.tokenizer, self._settings.tool_parser, self._settings.reasoning_parser)
            tokenising = self._tokenising(source)
            loading = asyncio.create_task(tokenising.ready())  # in its process, beside the fit
            try:
                report = await in_thread(self._starter.fit, loaded, told)
                await loading
                await in_thread(engine.grammars.prepare)
            except BaseException:
                tokenising.close()
                loading.cancel()
                raise
        serving = StreamingEngine(loaded.driven or engine)
        started = SizedEngine(engine, source, report, loaded.probe, loaded.neighbours)
        self._record(started)
        serving.start()
        gate = RequestGate(
            engine.settings.max_batch, self._settings.max_queue, most_per_share=self._settings.max_per_key
        )
        trials = Trials(engine.grammars)
        trials.prepare()
        texts = TokenTexts(engine.tokenizer)
        self.lifecycle.running = RunningServer(started, serving, tokenising, gate, texts, trials, formats)
        self._tasks.append(asyncio.create_task(self.lifecycle.watch.keep_sampling(self.lifecycle.sample)))
        if self._publisher is not None:
            self._tasks.append(asyncio.create_task(self._publisher.keep_publishing(self.lifecycle)))
        for warning in () if report is None else report.warnings:
            self._say(f"warning: {warning}")
        self._say(f"ready: {self._settings.model_name}, {engine.kv_tokens:,} tokens of KV on {engine.device}")

    async def _start_pooling(self, loaded: LoadedPooling, told: Told) -> None:
        """The same for a model that embeds or scores."""
        from brim.engine.pooling.engine import PoolingThread

        engine = loaded.engine
        source = TokenizerSource(engine.model.folder)
        tokenising = self._tokenising(source)
        loading = asyncio.create_task(tokenising.ready())
        try:
            report = await in_thread(loaded.fit, told)
            await loading
        except BaseException:
            tokenising.close()
            loading.cancel()
            raise
        serving = PoolingThread(engine)
        started = SizedPooling(engine, source, report, loaded.probe, loaded.neighbours)
        self._record(started)
        serving.start()
        gate = RequestGate(
            engine.settings.max_rows, self._settings.max_queue, most_per_share=self._settings.max_per_key
        )
        self.lifecycle.pooling = PoolingServer(started, serving, tokenising, gate)
        self._tasks.append(asyncio.create_task(self.lifecycle.watch.keep_sampling(self.lifecycle.sample)))
        for warning in engine.warnings if report is None else report.warnings:
            self._say(f"warning: {warning}")
        self._say(
            f"ready: {self._settings.model_name} ({engine.model.task}), batches of {engine.batch_tokens:,} tokens "
            f"and inputs of up to {engine.max_length:,}, on {engine.device}"
        )

    def _record(self, started: SizedEngine | SizedPooling) -> None:
        """From now on; before the engine's thread runs. Of one that embeds or scores, events only."""
        if self._recording is not None:
            self._recorder = ServeRecorder(self._recording, started.probe)
            self._recorder.started(started, self._settings.model_name)
            if isinstance(started, SizedEngine):
                started.engine.observe(self._recorder)
            self.lifecycle.watch.listener = self._recorder.happened
            what = "steps and events" if isinstance(started, SizedEngine) else "events"
            self._say(f"{what} are recorded in {self._recording.path}")
        elif self._unrecorded:
            self._say(f"warning: steps are not recorded: {self._unrecorded}")

    # -- end -----------------------------------------------------------------------------------------------------

    async def drained(self, is_forced: Callable[[], bool] = lambda: False) -> bool:
        """Take nothing new, and wait until all that are inside have been answered; False: some were not in time."""
        self.lifecycle.draining = True
        running = self.lifecycle.any_running
        if running is None or not running.gate.inside:
            return True
        self._say(f"draining: {running.gate.inside} answers are left; a second signal ends at once")
        loop = asyncio.get_running_loop()
        until = loop.time() + self._settings.drain_seconds
        while running.gate.inside and not is_forced() and loop.time() < until:
            await asyncio.sleep(_LOOK_SECONDS)
        return not running.gate.inside

    async def close(self) -> None:
        self._planning.close()
        running = self.lifecycle.any_running
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._publisher is not None:
            self._publisher.close()
        if running is None:
            self._close_recording()
            return
        for end in self.lifecycle.before_close:
            await end()
        running.tokenising.close()
        if isinstance(running, RunningServer):
            await asyncio.to_thread(running.trials.close)
        try:
            await asyncio.to_thread(running.serving.close)
        finally:
            running.engine.close()
            self._close_recording()

    def _close_recording(self) -> None:
        self.lifecycle.watch.listener = None
        if self._recorder is not None:
            self._recorder.close()
        elif self._recording is not None:
            self._recording.close()


def tokenizer_source(engine: Engine) -> TokenizerSource:
    """Where a worker finds this engine's tokenizer."""
    from brim.engine.media.allowed import UNCHECKED, AllowedMedia
    from brim.engine.weights.builtin import ByteTokenizer

    own = getattr(engine.tokenizer, "name_or_path", None)  # it may have been given to the engine
    folder = Path(own) if own and Path(own).is_dir() else engine.loaded.folder
    media = AllowedMedia(engine.image_limits, engine.audio_limits)
    return TokenizerSource(folder, isinstance(engine.tokenizer, ByteTokenizer), None if media == UNCHECKED else media)


async def in_thread(work: Callable[..., Result], *arguments: Any) -> Result:
    """Run it in a daemon thread: a process that has to end does not wait for it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def run() -> None:
        result, problem = None, None
        try:
            result = work(*arguments)
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            problem = error
        except BaseException as error:  # noqa: BLE001 - an event loop must not get an interrupt
            problem = DeviceError(f"the start was interrupted ({type(error).__name__})")
        loop.call_soon_threadsafe(settle, result, problem)

    threading.Thread(target=run, name="brim-start", daemon=True).start()
    return await done
