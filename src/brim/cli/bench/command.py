"""`brim bench`: the options, the run, and its report as a table, JSON and a picture."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from brim.cli.engine_options import bar
from brim.cli.options import add_json, check_svg, write_file
from brim.cli.serve import KEY_VARIABLE
from brim.errors import InvalidRequest
from brim.units import parse_count, parse_seconds

if TYPE_CHECKING:
    from brim.bench.measure import Closed, LoadMeasurement, LoadProgress, LoadSettings, Open, Replay
    from brim.bench.report import Report, Slo
    from brim.cli.options import Commands

DEFAULT_URL = "http://localhost:8000"
_CLIENTS, _REQUESTS = 8, 100
_MOST_CLIENTS = 10_000


def add_command(commands: Commands) -> None:
    parser = commands.add_parser(
        "bench",
        help="put a server under load and measure it",
        description="Put any OpenAI-compatible server under load: clients that wait for their answers "
        "(--concurrency), requests at random times (--rate), or a recorded log (--replay). Prompts are made up, with "
        "the number of tokens that is asked for. Needs no other package.",
    )
    parser.set_defaults(run=run)
    parser.add_argument("--url", default=DEFAULT_URL, metavar="URL", help=f"the server ({DEFAULT_URL})")
    parser.add_argument("--api-key", metavar="KEY", help=f"its key (${KEY_VARIABLE}, else none)")
    parser.add_argument("--model", metavar="NAME", help="the model's name (the first that the server lists)")
    parser.add_argument("--completions", action="store_true", help="use /v1/completions (/v1/chat/completions)")
    parser.add_argument(
        "--token-ids", metavar="VOCAB", help="prompts are random token ids below VOCAB, to /v1/completions"
    )
    _add_load(parser)
    slo = parser.add_argument_group("objectives", "An answer that keeps all that are given counts towards goodput.")
    slo.add_argument("--slo-ttft", metavar="TIME", help="most time to the first token: 500ms")
    slo.add_argument("--slo-tpot", metavar="TIME", help="most time for a later token, on average over an answer: 50ms")
    slo.add_argument("--slo-e2e", metavar="TIME", help="most time for a whole answer: 10s")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write a picture")
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")
    add_json(parser)


def _add_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load")
    who = load.add_mutually_exclusive_group()
    who.add_argument("--concurrency", type=int, metavar="N", help=f"clients that wait for their answers ({_CLIENTS})")
    who.add_argument("--rate", type=float, metavar="R", help="requests a second, at random times (Poisson)")
    who.add_argument("--replay", type=Path, metavar="FILE", help="a trace, or the request log of brim serve")
    load.add_argument("--speed", type=float, default=1.0, metavar="X", help="replay X times as fast (1)")
    load.add_argument("--requests", type=int, metavar="N", help=f"how many ({_REQUESTS}, or what --duration allows)")
    load.add_argument("--duration", metavar="TIME", help="send for so long, and wait for the answers: 60s, 2m")
    load.add_argument(
        "--prompt-tokens", default="256", metavar="LENGTHS", help="512, 128-1024 or lognormal:MEDIAN:SIGMA (256)"
    )
    load.add_argument("--answer-tokens", default="64", metavar="LENGTHS", help="the same, of answers (64)")
    load.add_argument("--shared-prefix", default="0", metavar="N", help="tokens that all prompts begin with (0)")
    load.add_argument("--seed", type=int, default=0, metavar="N", help="the same seed sends the same requests (0)")


def run(options: argparse.Namespace) -> int:
    check_svg(options.svg)
    from brim.bench.measure import LoadMeasurement
    from brim.client.address import parse_url

    load = _load(options)
    key = options.api_key or os.environ.get(KEY_VARIABLE)
    measurement = LoadMeasurement(parse_url(options.url), key, options.model, load)
    report = _measured(measurement, load, quiet=options.quiet)
    if not options.quiet:
        for note in measurement.notes:
            print(f"note: {note}", file=sys.stderr)
    if options.svg is not None:
        from brim.cli.show.load_picture import load_svg

        write_file(options.svg, load_svg(report))
    if options.as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        from brim.cli.bench.table import show

        show(report)
    return 0 if report.answered else 1


def _measured(measurement: LoadMeasurement, load: LoadSettings, *, quiet: bool) -> Report:
    """The run with its progress. An interrupt ends it, and what there is is reported."""
    import asyncio

    total = load.requests or (len(load.loop.trace.asks) if hasattr(load.loop, "trace") else None)
    with bar("load", not quiet) as shown:

        def told(state: LoadProgress) -> None:
            done, most = (state.seconds, load.seconds) if total is None else (state.ended, total)
            rate = state.tokens / state.seconds if state.seconds else 0.0
            shown(done, most, f"{state.ended:,} ended, {state.in_flight} under way, {rate:,.0f} tokens/s")

        try:
            return asyncio.run(measurement.run(told))
        except KeyboardInterrupt:
            report = measurement.report()
            if not report.outcomes:
                raise
            print("interrupted: this is what had ended by then", file=sys.stderr)
            return report


def _load(options: argparse.Namespace) -> LoadSettings:
    """The load that the options describe."""
    from brim.bench.lengths import parse_lengths
    from brim.bench.loops import Mix
    from brim.bench.measure import LoadSettings, Replay

    mix = Mix(
        parse_lengths(options.prompt_tokens, "prompt-tokens"),
        parse_lengths(options.answer_tokens, "answer-tokens"),
        options.seed,
    )
    loop = _loop(options)
    seconds = parse_seconds(options.duration, "duration") if options.duration else None
    if options.requests is not None and options.requests < 1:
        raise InvalidRequest(f"requests is {options.requests}; it must be at least 1")
    bounded = options.requests is not None or seconds is not None or isinstance(loop, Replay)
    return LoadSettings(
        loop=loop,
        mix=mix,
        requests=options.requests if bounded else _REQUESTS,
        seconds=seconds,
        chat=not options.completions,
        vocab=_vocab(options.token_ids),
        prefix_tokens=parse_count(options.shared_prefix, "shared-prefix"),
        slo=_slo(options),
    )


def _loop(options: argparse.Namespace) -> Closed | Open | Replay:
    from brim.bench.measure import Closed, Open, Replay
    from brim.bench.trace import read_trace

    if not 0 < options.speed < float("inf"):
        raise InvalidRequest(f"speed is {options.speed:g}; it must be above 0, like 2 for twice as fast")
    if options.replay is not None:
        trace = read_trace(options.replay)
        if trace.passed_over:
            print(f"note: {trace.passed_over:,} lines of {options.replay} are no requests to send", file=sys.stderr)
        return Replay(trace.faster(options.speed))
    if options.rate is not None:
        if not 0 < options.rate < float("inf"):
            raise InvalidRequest(f"rate is {options.rate:g}; it must be above 0")
        return Open(options.rate)
    clients = _CLIENTS if options.concurrency is None else options.concurrency
    if not 1 <= clients <= _MOST_CLIENTS:
        raise InvalidRequest(f"concurrency is {clients}; it must be from 1 to {_MOST_CLIENTS}")
    return Closed(clients)


def _vocab(text: str | None) -> int | None:
    if text is None:
        return None
    found = parse_count(text, "token-ids")
    if found < 16:
        raise InvalidRequest(f"token-ids is {found}; it must be the size of the model's vocabulary, like 32000")
    return found


def _slo(options: argparse.Namespace) -> Slo:
    from brim.bench.report import Slo

    def seconds(name: str, text: str | None) -> float | None:
        return None if text is None else parse_seconds(text, name)

    return Slo(
        seconds("slo-ttft", options.slo_ttft),
        seconds("slo-tpot", options.slo_tpot),
        seconds("slo-e2e", options.slo_e2e),
    )
