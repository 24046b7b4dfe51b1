"""`brim serve`: an OpenAI-compatible server that plans, fits and guards its memory."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.cli.compiler_caches import usable_compiler_caches
from brim.cli.config_file import add_config
from brim.cli.engine_options import (
    EnginePlace,
    add_engine_options,
    add_model,
    check_weights,
    is_in_package,
    make_engine,
)
from brim.cli.fit import add_fit_options, budget_probe, engine_place, fit_wishes, gpu_probe
from brim.cli.neighbours.encoders import encoders_beside
from brim.cli.neighbours.options import add_neighbour_options, decide_part, part_of_device
from brim.cli.pooling_options import (
    add_task_options,
    find_pooling_task,
    fit_pooling,
    make_pooling_engine,
    unused_options,
)
from brim.errors import InvalidRequest
from brim.folders import recordings_folder
from brim.install import install_command
from brim.model.transformers_classes import check_libraries
from brim.records.progress import silent
from brim.units import parse_bytes, parse_count

if TYPE_CHECKING:
    from brim.cli.options import Commands
    from brim.model.tasks import ModelTask
    from brim.record.writer import RecordingWriter
    from brim.records.fit import FitReport
    from brim.records.progress import Told
    from brim.serve.prepare.jobs import TokenizerSource
    from brim.serve.prepare.worker import Tokenising
    from brim.serve.ranks import Followers, Ordered
    from brim.serve.service import Loaded, LoadedPooling
    from brim.serve.settings import ServeSettings

PACKAGED_BUDGET = "512MiB"  # on the CPU, for the models in the package
BATCH_TOKENS, CPU_BATCH_TOKENS = "2048", "512"  # where nothing was said: a step of 2048 tokens on a CPU takes long
KEY_VARIABLE = "BRIM_API_KEY"


def add_command(commands: Commands) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve a model over OpenAI's API",
        description="Load a model, size its KV cache by measurement, and serve it over OpenAI's API. With no model it "
        "serves brim-tiny, which is in the package; on the CPU, --memory is the budget. Needs torch, transformers, "
        "starlette and uvicorn: the extra 'serve'.",
    )
    parser.set_defaults(run=run)
    add_model(parser)
    add_config(parser)
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, metavar="PORT", help="port; 0: any that is free (8000)")
    parser.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help=f"a key that clients must send; several may be given, and {KEY_VARIABLE} is one",
    )
    parser.add_argument(
        "--api-key-file",
        metavar="FILE",
        help="more keys, one to a line; a line 'KEY weight=4' gives a key four times the share of another",
    )
    parser.add_argument("--insecure", action="store_true", help="let other machines in without a key")
    parser.add_argument(
        "--lenient",
        action="store_true",
        help="ignore fields of requests that the server does not know, with a warning in the answer (they are refused)",
    )
    parser.add_argument("--served-model-name", metavar="NAME", help="the model's name in the API (its folder's name)")
    parser.add_argument(
        "--max-queue", type=int, default=256, metavar="N", help="answers that may wait behind those that run (256)"
    )
    parser.add_argument(
        "--max-messages",
        type=int,
        default=4096,
        metavar="N",
        help="most messages of a conversation, and parts and calls in them (4096); never more than tokens of a request",
    )
    parser.add_argument(
        "--max-per-key",
        type=int,
        metavar="N",
        help="answers of one key (of one address, without keys) that may wait or run at once (no bound)",
    )
    parser.add_argument("--max-body", default="16MiB", metavar="SIZE", help="largest request (16MiB)")
    parser.add_argument(
        "--body-seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="for a request to come, and 1 more per 16 KiB (30)",
    )
    parser.add_argument(
        "--header-seconds", type=float, default=10.0, metavar="S", help="for the headers of a request to come (10)"
    )
    parser.add_argument(
        "--idle-seconds", type=int, default=75, metavar="S", help="a connection stays open between requests (75)"
    )
    parser.add_argument(
        "--max-connections", type=int, default=1024, metavar="N", help="connections at once; others get a 503 (1024)"
    )
    parser.add_argument(
        "--allow-remote-media",
        action="store_true",
        help="fetch images that requests name by an https URL, from public addresses only",
    )
    parser.add_argument(
        "--media-workers",
        type=int,
        default=0,
        metavar="N",
        help="most processes that prepare images and audio (by the cores and the memory of the machine, at most 8)",
    )
    parser.add_argument(
        "--media-cache",
        default="512MiB",
        metavar="SIZE",
        help="host memory for images that were prepared, to be found again by their content (512MiB; 0: none)",
    )
    parser.add_argument(
        "--drain-seconds", type=float, default=60.0, metavar="S", help="for answers under way when it is stopped (60)"
    )
    parser.add_argument(
        "--tool-parser", default="auto", metavar="NAME", help="how the model writes calls (auto: from its vocabulary)"
    )
    parser.add_argument(
        "--reasoning-parser", default="auto", metavar="NAME", help="how it writes reasoning (auto: from its vocabulary)"
    )
    parser.add_argument(
        "--replicas",
        type=int,
        metavar="N",
        help="as many engines on this machine, each on its own GPU, behind one port; requests are routed by memory "
        "(needs the extra 'ray')",
    )
    parser.add_argument(
        "--kv-events",
        metavar="ADDRESS",
        help="publish block events for gateways that follow prefixes: tcp://*:5557 (needs the extra 'gateway')",
    )
    parser.add_argument("--kv-events-topic", default="", metavar="NAME", help="the topic of block events (none)")
    parser.add_argument("--no-request-log", action="store_true", help="no line for each request on standard error")
    parser.add_argument(
        "--record",
        default="auto",
        metavar="FILE|off",
        help="where its last steps and events are written, 12.1 MiB, for brim explain; no text of requests (auto: a "
        "file of its own among those that Brim keeps)",
    )
    parser.add_argument(
        "--memory", metavar="SIZE", help=f"on the CPU: the memory budget ({PACKAGED_BUDGET} for models in the package)"
    )
    parser.add_argument(
        "--inject-out-of-memory",
        metavar="N",
        help="for tests of your operations: steps with a prompt of N tokens or more run out of memory",
    )
    parser.add_argument("--kv-tokens", metavar="N", help="validate exactly this size, without a search")
    add_task_options(parser)
    add_fit_options(parser)
    add_engine_options(parser)
    add_neighbour_options(parser)
    parser.set_defaults(batch_tokens=None)


def check_options(options: argparse.Namespace) -> None:
    """Before anything is started."""
    if options.tp < 1:
        raise InvalidRequest(f"tp is {options.tp}; it must be at least 1")
    check_weights(options)


def run(options: argparse.Namespace) -> int:
    check_options(options)
    if options.replicas is not None:
        return _serve_replicas(options)
    settings, wishes = serve_settings(options), fit_wishes(options)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch's threads would spin on cores that other processes need
    if options.tp > 1 and int(os.environ.get("RANK", "0")):
        return _follow(options, wishes)
    if options.inject_out_of_memory is not None:
        tokens = _injected(options)
        _write("brim: ", f"TEST: requests with prompts of {tokens:,} tokens or more will run out of memory\n")
    import asyncio

    from brim.serve.ranks import Followers
    from brim.serve.server import Server, listen

    followers = Followers() if options.tp > 1 else None
    lost: list[str] = []

    say = partial(_say, options)
    with ExitStack() as leased:
        recording, unrecorded = _recording(options)
        server = Server(
            settings,
            EngineStarter(options, wishes, leased, say, followers),
            write_log=None if options.no_request_log else partial(_write, ""),
            say=say,
            progress=False if options.quiet else None,
            tokenising=tokenising_of(options),
            recording=recording,
            unrecorded=unrecorded,
        )
        if followers is None:
            return asyncio.run(server.run(listen(settings.host, settings.port)))
        listening = listen(settings.host, settings.port)

        def end(why: str) -> None:
            lost.append(why)
            _write("brim: ", why + "; the server cannot go on without it\n")
            server.stop()
            server.stop()

        leased.callback(followers.close)
        _start_ranks(options.tp, followers, end)
        return asyncio.run(server.run(listening)) or int(bool(lost))


def _serve_replicas(options: argparse.Namespace) -> int:
    if options.replicas < 1:
        raise InvalidRequest(f"replicas is {options.replicas}; it must be at least 1")
    try:
        import_module("ray.serve")
    except ImportError as error:
        raise InvalidRequest(f"replicas: several need {error.name}: {install_command('ray')}") from None
    # Above the commands: an engine of each replica is made by the same options.
    found: int = import_module("brim.ray.local").serve_replicas(options, sys.argv[2:], partial(_say, options))
    return found


def _recording(options: argparse.Namespace) -> tuple[RecordingWriter | None, str]:
    """The black box, or why there is none: one that was not asked for and cannot be written costs no start."""
    if options.record == "off":
        return None, ""
    from brim.record.writer import open_in_folder, open_recording

    if options.record != "auto":
        return open_recording(Path(options.record)), ""
    try:
        return open_in_folder(recordings_folder(), "serve"), ""
    except InvalidRequest as error:
        return None, str(error)


def _start_ranks(ranks: int, followers: Followers, lost: Callable[[str], object]) -> None:
    """This process becomes rank 0, and starts the others: the same command in each."""
    from brim.serve.ranks import free_port, rank_environment

    if "WORLD_SIZE" in os.environ:
        raise InvalidRequest("tp: brim serve starts its ranks itself; start it without torchrun")
    port = free_port()
    command = [sys.executable, "-m", "brim.cli.main", *sys.argv[1:]]
    environments = [{**os.environ, **rank_environment(rank, ranks, port)} for rank in range(1, ranks)]
    os.environ.update(rank_environment(0, ranks, port))
    followers.start(command, environments, lost)


def _say(options: argparse.Namespace, line: str) -> None:
    if not options.quiet:
        _write("brim: ", line + "\n")


def _follow(options: argparse.Namespace, wishes: dict[str, Any]) -> int:
    """A rank beside the server's: it does what the server does, with its own part of the model."""
    from brim.serve.ranks import follow, live_with_the_server
    from brim.serve.service import Loaded

    live_with_the_server()
    with ExitStack() as leased:
        starter = EngineStarter(options, wishes, leased, partial(_say, options))
        loaded = starter.load(silent)
        assert isinstance(loaded, Loaded), "a model that embeds or scores has one rank"
        starter.fit(loaded, silent)
        with loaded.engine:
            follow(loaded.engine, sys.stdin.buffer)
    return 0


def _injected(options: argparse.Namespace) -> int:
    tokens = parse_count(options.inject_out_of_memory, "inject-out-of-memory")
    if tokens < 1:
        raise InvalidRequest(f"inject-out-of-memory is {tokens}; it must be at least 1 token")
    return tokens


def _write(before: str, line: str) -> None:
    with suppress(OSError):  # a log on a full disk, or whose reader has gone, ends no answer
        sys.stderr.write(before + line)
        sys.stderr.flush()


def serve_settings(options: argparse.Namespace) -> ServeSettings:
    try:
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InvalidRequest(f"serving needs {error.name}: {install_command('serve')}") from None
    from brim.serve.key_file import read_key_file
    from brim.serve.parse.table import check_parsers
    from brim.serve.settings import ConnectionLimits, RequestLimits, ServeSettings

    check_parsers(options.tool_parser, options.reasoning_parser)
    key = os.environ.get(KEY_VARIABLE)
    weights = {} if options.api_key_file is None else read_key_file(Path(options.api_key_file))
    return ServeSettings(
        model_name=options.served_model_name or Path(options.model).name,
        host=options.host,
        port=options.port,
        api_keys=tuple(dict.fromkeys((*options.api_key, *([key] if key else []), *weights))),
        key_weights=weights,
        insecure=options.insecure,
        lenient=options.lenient,
        max_queue=options.max_queue,
        max_per_key=options.max_per_key,
        drain_seconds=options.drain_seconds,
        kv_events=options.kv_events,
        kv_events_topic=options.kv_events_topic,
        tool_parser=options.tool_parser,
        reasoning_parser=options.reasoning_parser,
        limits=RequestLimits(
            body_bytes=parse_bytes(options.max_body, "max-body"),
            body_seconds=options.body_seconds,
            messages=options.max_messages,
            remote_media=options.allow_remote_media,
        ),
        connection_limits=ConnectionLimits(
            connections=options.max_connections,
            header_seconds=options.header_seconds,
            idle_seconds=options.idle_seconds,
        ),
    )


def tokenising_of(options: argparse.Namespace) -> Callable[[TokenizerSource], Tokenising]:
    from brim.serve.prepare.worker import Tokenising

    if options.media_workers < 0:
        raise InvalidRequest(f"media-workers is {options.media_workers}; it must be at least 1, or 0 to leave it open")
    cache = parse_bytes(options.media_cache, "media-cache")
    return partial(Tokenising, media_workers=options.media_workers, media_cache_bytes=cache)


@dataclass(frozen=True, slots=True)
class EngineStarter:
    """The engine that the options describe; what imports torch comes after the server listens."""

    options: argparse.Namespace
    wishes: dict[str, Any]
    leased: ExitStack  # until the server ends
    say: Callable[[str], object]
    followers: Ordered | None = None  # the other ranks

    def load(self, told: Told) -> Loaded | LoadedPooling:
        from brim.serve.ranks import LeadingEngine
        from brim.serve.service import Loaded

        self.leased.enter_context(usable_compiler_caches(self.say))
        check_libraries()
        place = engine_place(self.options, PACKAGED_BUDGET if is_in_package(self.options.model) else None)
        task = find_pooling_task(self.options, told)
        if task is not None:
            return self._load_pooling(task, place, told)
        if self.options.batch_tokens is None:
            self.options.batch_tokens = BATCH_TOKENS if place.budget_bytes is None else CPU_BATCH_TOKENS
        place, encoders = self.leased.enter_context(encoders_beside(self.options, place, told, serves=True))
        part = self.leased.enter_context(part_of_device(self.options, place, told, encoders))
        probe = budget_probe(place, part)
        engine = make_engine(self.options, kv_tokens=0, probe=probe, progress=told, encoders=encoders)
        seen = probe or gpu_probe(engine)
        decide_part(part, seen)
        driven = None if self.followers is None else LeadingEngine(engine, self.followers)
        return Loaded(engine, seen, part, driven)

    def _load_pooling(self, task: ModelTask, place: EnginePlace, told: Told) -> LoadedPooling:
        from brim.serve.service import LoadedPooling

        for said in unused_options(self.options):
            self.say(said)
        part = self.leased.enter_context(part_of_device(self.options, place, told))
        probe = budget_probe(place, part)
        engine = make_pooling_engine(self.options, task, place, probe, told)
        seen = probe or gpu_probe(engine)
        decide_part(part, seen)

        def fit(told: Told) -> FitReport:
            report = fit_pooling(engine, seen, self.wishes, part, told)
            if self.options.inject_out_of_memory is not None:
                engine.fail_long_inputs(_injected(self.options))
            _keep_for_good()
            return report

        return LoadedPooling(engine, fit, seen, part)

    def fit(self, loaded: Loaded, told: Told) -> FitReport:
        from brim.serving import fit_engine

        engine = loaded.engine
        report = fit_engine(engine, probe=loaded.probe, progress=told, neighbours=loaded.neighbours, **self.wishes)
        if self.options.inject_out_of_memory is not None:
            from brim.engine.injection import fail_long_prompts

            fail_long_prompts(engine, _injected(self.options))
        _keep_for_good()
        return report


def _keep_for_good() -> None:
    """What is there when the server is ready stays: a search of it all for garbage would stop every stream for a while.

    Some 0.2 s, each time the answers under way have grown by a quarter of it.
    """
    gc.collect()
    gc.freeze()
