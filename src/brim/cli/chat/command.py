"""`brim chat`: the options, and the conversation that they describe."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.cli.chat.gauge import gauge
from brim.cli.chat.local_commands import COMMANDS
from brim.cli.chat.loop import converse
from brim.cli.chat.reading import reader
from brim.cli.chat.talk import Talk
from brim.cli.engine_options import add_engine_options, add_model, make_engine, serving
from brim.cli.options import add_json
from brim.errors import InvalidRequest
from brim.units import parse_count

if TYPE_CHECKING:
    from brim.cli.options import Commands
    from brim.engine.engine import Engine
    from brim.engine.requests.params import SamplingParams


def add_command(commands: Commands) -> None:
    parser = commands.add_parser(
        "chat",
        help="talk with a model, for as long as you like",
        description="Talk with a model in the terminal. A conversation that outgrows its memory loses its oldest "
        "turns, and says so; the instruction and pinned turns stay. Without a terminal, every line of standard input "
        "is a turn. Needs torch and transformers (pip install 'brim[chat]').",
    )
    parser.set_defaults(run=run)
    add_model(parser)
    parser.add_argument(
        "--url", metavar="URL", help="talk with an OpenAI-compatible server, with MODEL as its name there"
    )
    parser.add_argument("--api-key", metavar="KEY", help="the server's key")
    parser.add_argument("--system", metavar="TEXT", help="the instruction to the model, which always stays")
    parser.add_argument("--load", type=Path, metavar="FILE", help="go on with a conversation that /save has written")
    rolling = parser.add_argument_group("memory")
    rolling.add_argument("--kv-tokens", metavar="N", help="tokens of the KV pool (64k, or less if requests are short)")
    rolling.add_argument(
        "--rolling-threshold", metavar="N", help="tokens at which the oldest turns go (what the pool and context hold)"
    )
    rolling.add_argument("--low-water", metavar="N", help="tokens that are left then (half of the threshold)")
    rolling.add_argument(
        "--strategy", default="evict", choices=("evict", "error"), help="drop the oldest turns, or refuse the new one"
    )
    answers = parser.add_argument_group("answers")
    answers.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of an answer (512, or less)")
    answers.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (0)")
    answers.add_argument("--top-p", type=float, default=1.0, metavar="P", help="sample from tokens that sum to P")
    answers.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same answers")
    add_engine_options(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    if options.url is not None:
        from brim.cli.chat.remote import run_remote

        return run_remote(options)
    if options.tp != 1:
        raise InvalidRequest(f"tp is {options.tp}; brim chat runs on one device, since one process reads what is typed")
    from brim.engine.chat.chat import Chat

    kv_tokens = parse_count(options.kv_tokens, "kv-tokens") if options.kv_tokens else None
    with serving(make_engine(options, kv_tokens=kv_tokens)) as engine:
        chat = Chat.load(engine, options.load) if options.load else _new(engine, options)
        if options.system is not None:
            chat.system = options.system
        talk = Talk(chat, _params(chat.params, options))
        converse(talk, reader(lambda: gauge(talk.chat), list(COMMANDS)), options.as_json)
    return 0


def _new(engine: Engine, options: argparse.Namespace) -> Any:
    from brim.engine.chat.chat import Chat

    def mark(name: str, value: str | None) -> int | None:
        return None if value is None else parse_count(value, name)

    return Chat(
        engine,
        rolling_threshold=mark("rolling-threshold", options.rolling_threshold),
        low_water=mark("low-water", options.low_water),
        strategy=options.strategy,
    )


def _params(usual: SamplingParams, options: argparse.Namespace) -> SamplingParams:
    from brim.engine.requests.params import SamplingParams

    most = usual.max_tokens if options.max_tokens is None else options.max_tokens
    return SamplingParams(max_tokens=most, temperature=options.temperature, top_p=options.top_p, seed=options.seed)
