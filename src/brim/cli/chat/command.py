"""`brim chat`: the options, and the conversation that they describe."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.cli.chat.gauge import gauge
from brim.cli.chat.local import LocalChat
from brim.cli.chat.local_commands import COMMANDS
from brim.cli.chat.loop import converse
from brim.cli.chat.reading import reader
from brim.cli.engine_options import add_engine_options, add_model, make_engine, serving
from brim.cli.options import add_json
from brim.errors import InvalidRequest
from brim.units import parse_count

if TYPE_CHECKING:
    from brim.cli.options import Commands
    from brim.engine.chat.chat import Chat
    from brim.engine.engine import Engine


def add_command(commands: Commands) -> None:
    parser = commands.add_parser(
        "chat",
        help="talk with a model, for as long as you like",
        description="Talk with a model in the terminal. A conversation that outgrows its memory loses its oldest "
        "turns, and says so; the instruction and pinned turns stay. Without a terminal, every line of standard input "
        "is a turn. Needs torch and transformers (the extra 'chat').",
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
        "--strategy", choices=("evict", "error"), help="drop the oldest turns (evict), or refuse the new one"
    )
    answers = parser.add_argument_group("answers")
    answers.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of an answer (512, or less)")
    answers.add_argument("--temperature", type=float, metavar="T", help="0 is greedy (0)")
    answers.add_argument("--top-p", type=float, metavar="P", help="sample from tokens that sum to P")
    answers.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same answers")
    add_engine_options(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    if options.url is not None:
        from brim.cli.chat.remote import run_remote

        return run_remote(options)
    if options.tp != 1:
        raise InvalidRequest(f"tp is {options.tp}; brim chat runs on one device, since one process reads what is typed")
    kv_tokens = parse_count(options.kv_tokens, "kv-tokens") if options.kv_tokens else None
    with serving(make_engine(options, kv_tokens=kv_tokens)) as engine:
        opener = Opener(engine, options)
        talk = LocalChat(opener.load(options.load) if options.load else opener.new(), opener.load)
        if options.system is not None:
            talk.chat.system = options.system
        converse(talk, reader(lambda: gauge(talk.chat), list(COMMANDS)), options.as_json)
    return 0


class Opener:
    """New and saved conversations. What the command line says wins over what was saved."""

    def __init__(self, engine: Engine, options: argparse.Namespace) -> None:
        self._engine = engine
        self._rolling: dict[str, Any] = {
            "rolling_threshold": _mark("rolling-threshold", options.rolling_threshold),
            "low_water": _mark("low-water", options.low_water),
        }
        self._strategy: str | None = options.strategy
        wanted = {name: getattr(options, name) for name in ("max_tokens", "temperature", "top_p", "seed")}
        self._sampling = {name: value for name, value in wanted.items() if value is not None}

    def new(self) -> Chat:
        from brim.engine.chat.chat import Chat

        return self._with_sampling(Chat(self._engine, strategy=self._strategy or "evict", **self._rolling))

    def load(self, path: Path) -> Chat:
        from brim.engine.chat.chat import Chat

        return self._with_sampling(Chat.load(self._engine, path, strategy=self._strategy, **self._rolling))

    def _with_sampling(self, chat: Chat) -> Chat:
        chat.params = replace(chat.params, **self._sampling)
        return chat


def _mark(name: str, value: str | None) -> int | None:
    return None if value is None else parse_count(value, name)
