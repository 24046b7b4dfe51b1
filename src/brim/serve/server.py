"""The process of `brim serve`: it listens at once, loads and fits in a thread, serves, drains and ends.

The first SIGTERM or SIGINT drains: new requests are refused, those inside are answered. The second one ends at once.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import uvicorn

from brim.errors import DeviceError, InvalidRequest
from brim.progress import showing
from brim.record.writer import RecordingWriter
from brim.records.fit import FitReport
from brim.records.progress import Progress, Stage, Told
from brim.serve.gate import RequestGate
from brim.serve.http.app import make_app
from brim.serve.http.connections.connection import Connection, OpenConnections
from brim.serve.http.connections.open_files import connections_allowed
from brim.serve.lifecycle import RunningServer, ServerLifecycle, SizedEngine
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
    from brim.ports import MemoryProbe
    from brim.reserve.sizing import Sizer

Result = TypeVar("Result")
_LOOK_SECONDS = 0.05  # how often a drain looks whether anybody is left
_LEAVE_SECONDS = 10  # for a start that is abandoned to notice it


@dataclass(frozen=True, slots=True)
class Loaded:
    """An engine that is not built yet, and what measures its memory."""

    engine: Engine
    probe: MemoryProbe | None = None
    neighbours: Sizer | None = None  # its part of a device that others share
    driven: Any = None  # what requests are given to, where that is not the engine itself


class Starter(Protocol):
    """Makes the engine, in two stages; each tells its progress."""

    def load(self, told: Told) -> Loaded: ...

    def fit(self, loaded: Loaded, told: Told) -> FitReport | None:
        """Build it at the size that fits; None: the size was given."""
        ...


class _Abandoned(Exception):
    """The server is to end before it has started."""


class _Http(uvicorn.Server):
    """Signals are the server's own business."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class Server:
    """One server, from `run` to its end."""

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
    ) -> None:
        """`recording`: where steps and events are written; the server closes it."""
        self.lifecycle = ServerLifecycle()
        self._recording = recording
        self._recorder: ServeRecorder | None = None
        self._settings = settings
        self._starter = starter
        self._say = say
        self._progress = progress
        self._tokenising = tokenising
        self._planning = Planning()
        self._app = make_app(self.lifecycle, settings, write_log, self._planning)
        self._stopping = asyncio.Event()
        self._forced = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None
        self._stopped_early = False

    def stop(self) -> None:
        """Drain and end; called again: end at once. From any thread; before `run`, it ends as soon as it begins."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._signalled)
        else:
            self._stopped_early = True

    def _signalled(self) -> None:
        if self._stopping.is_set():
            self._forced.set()
        self._stopping.set()
        self.lifecycle.draining = True

    async def run(self, listening: socket.socket, *, signals: bool = True) -> int:
        """Serve until it is stopped; the exit code: 1 where requests were cut off."""
        self._loop = asyncio.get_running_loop()
        if self._stopped_early:
            self._signalled()
        if signals:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._loop.add_signal_handler(number, self._signalled)
        http = _Http(self._http_config())
        answering = asyncio.create_task(http.serve(sockets=[listening]))
        self._say(f"listening on {address(listening)}; /health says when it is ready")
        try:
            await self._until_started()
            await self._stopping.wait()
            cut_off = not await self._drained()
        finally:
            http.should_exit, http.force_exit = True, self._forced.is_set()
            await self._close()
            await answering
        self._say("stopped, and some answers were cut off" if cut_off else "stopped")
        return int(cut_off)

    def _http_config(self) -> uvicorn.Config:
        limits = self._settings.connection_limits
        allowed = connections_allowed(limits.connections)
        if allowed < limits.connections:
            self._say(
                f"at most {allowed} connections, not {limits.connections}: raise the limit of open files (ulimit -n)"
            )
        connections = OpenConnections(replace(limits, connections=allowed), self.lifecycle.http)
        return uvicorn.Config(
            self._app,
            http=cast("type[asyncio.Protocol]", partial(Connection, connections)),
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="error",  # what clients do wrong is counted, and is no news
            server_header=False,
            timeout_keep_alive=limits.idle_seconds,
            timeout_graceful_shutdown=1,
        )

    # -- start ---------------------------------------------------------------------------------------------------

    async def _until_started(self) -> None:
        """Started, or told to stop before that. What goes wrong is raised."""
        starting = asyncio.create_task(self._start())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            await asyncio.wait({starting}, timeout=_LEAVE_SECONDS)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        elif (error := starting.exception()) is not None and not isinstance(error, _Abandoned):
            raise error

    async def _start(self) -> None:
        from brim.engine.streaming import StreamingEngine

        with showing(self._progress) as shown:

            def told(stage: Stage) -> None:
                if self._stopping.is_set():
                    raise _Abandoned
                self.lifecycle.set_stage(stage)
                shown(stage)

            loaded = await in_thread(self._starter.load, told)
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
        self._watching = asyncio.create_task(self.lifecycle.watch.keep_sampling(self.lifecycle.sample))
        for warning in () if report is None else report.warnings:
            self._say(f"warning: {warning}")
        self._say(f"ready: {self._settings.model_name}, {engine.kv_tokens:,} tokens of KV on {engine.device}")

    def _record(self, started: SizedEngine) -> None:
        """From now on; before the engine's thread runs."""
        if self._recording is not None:
            self._recorder = ServeRecorder(self._recording, started.probe)
            self._recorder.started(started, self._settings.model_name)
            started.engine.observe(self._recorder)
            self.lifecycle.watch.listener = self._recorder.happened

    # -- end -----------------------------------------------------------------------------------------------------

    async def _drained(self) -> bool:
        """Wait until all that are inside have been answered; False: some were not, and it was enough."""
        running = self.lifecycle.running
        if running is None or not running.gate.inside:
            return True
        self._say(f"draining: {running.gate.inside} answers are left; a second signal ends at once")
        loop = asyncio.get_running_loop()
        until = loop.time() + self._settings.drain_seconds
        while running.gate.inside and not self._forced.is_set() and loop.time() < until:
            await asyncio.sleep(_LOOK_SECONDS)
        return not running.gate.inside

    async def _close(self) -> None:
        self._planning.close()
        running, self._loop = self.lifecycle.running, None
        if running is None:
            self._close_recording()
            return
        if self._watching is not None:
            self._watching.cancel()
        running.tokenising.close()
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


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; one line says why not."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol said: asyncio sends small answers at once (TCP_NODELAY) on sockets that say they are TCP.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(2048)
    except OSError as error:
        found.close()
        raise InvalidRequest(
            f"host {host}, port {port}: cannot listen there ({error.strerror or error}); choose another --port, or 0 "
            "for any that is free"
        ) from None
    return found


def address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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
