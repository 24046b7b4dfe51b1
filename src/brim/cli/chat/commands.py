"""What begins with a slash in a conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from brim.cli.chat.talk import Talk, tell
from brim.errors import InvalidRequest
from brim.units import format_bytes

Talking = TypeVar("Talking")
_SHOWN = 48  # characters of a turn


class Ended(Exception):
    """Somebody has had enough."""


@dataclass(frozen=True, slots=True)
class Command(Generic[Talking]):
    """What it is called with, what it does, and how."""

    argument: str
    does: str
    run: Callable[[Talking, str], None]


def obey(talk: Talking, line: str, commands: Mapping[str, Command[Talking]]) -> None:
    """Do what a line says."""
    name, _, argument = line.partition(" ")
    command = commands.get(name)
    if command is None:
        raise InvalidRequest(f"'{name[:40]}' is no command; /help lists them, and a space before it makes it a text")
    if command.argument and not command.argument.startswith("[") and not argument.strip():
        raise InvalidRequest(f"{name} needs {command.argument}: write {name} {command.argument}")
    command.run(talk, argument.strip())


def help_of(commands: Mapping[str, Command[Talking]]) -> None:
    for name, command in commands.items():
        print(f"{f'{name} {command.argument}':<16} {command.does}")


def _help(_: Talk, __: str) -> None:
    help_of(COMMANDS)


def _usage(talk: Talk, _: str) -> None:
    usage = talk.chat.usage
    print(f"{'':4} {'':9} {'tokens':>7} {'KV':>10}")
    if usage.opening_tokens:
        print(f"{'':4} {'opening':9} {usage.opening_tokens:>7}")
    for number, (turn, used) in enumerate(zip(talk.chat.turns, usage.turns, strict=True)):
        text = " ".join(turn.content.split())
        shown = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
        pin = "pinned " if used.pinned else ""
        print(f"{number:>4} {used.role:9} {used.tokens:>7} {format_bytes(used.bytes):>10}  {pin}{shown}")
    rolling = talk.chat.rolling
    print(
        f"{'':4} {'all':9} {usage.tokens:>7} {format_bytes(usage.bytes):>10}  the oldest go at {rolling.threshold:,} "
        f"tokens, down to {rolling.low_water:,}"
    )


def _number(talk: Talk, text: str) -> int:
    """The number of a turn; the last one where nothing is said."""
    try:
        return int(text) if text else -1
    except ValueError:
        raise InvalidRequest(f"'{text[:40]}' is not the number of a turn; /usage lists them") from None


def _pin(talk: Talk, argument: str) -> None:
    talk.chat.pin(_number(talk, argument))
    tell("the exchange of this turn stays")


def _unpin(talk: Talk, argument: str) -> None:
    talk.chat.pin(_number(talk, argument), pinned=False)
    tell("the exchange of this turn may go")


def _system(talk: Talk, argument: str) -> None:
    if not argument:
        print(talk.chat.system or "there is no instruction")
        return
    talk.chat.system = argument
    tell("the instruction counts from the next turn on")


def _save(talk: Talk, argument: str) -> None:
    talk.chat.save(Path(argument).expanduser())
    tell(f"saved to {argument}")


def _load(talk: Talk, argument: str) -> None:
    chat = type(talk.chat).load(talk.chat.engine, Path(argument).expanduser())
    talk.chat.rest()
    talk.chat = chat
    tell(f"{len(chat.turns)} turns loaded")


def _image(talk: Talk, argument: str) -> None:
    path = Path(argument).expanduser()
    if not path.is_file():
        raise InvalidRequest(f"image {argument}: there is no such file")
    talk.chat.engine.image_tokens(str(path))  # a model that takes none, or cannot read it, says so now
    talk.images.append(path)
    tell(f"{path.name} goes with the next turn")


def _undo(talk: Talk, _: str) -> None:
    turns = talk.chat.undo()
    tell(f"{len(turns)} turns taken back")


def _retry(talk: Talk, _: str) -> None:
    talk.retry()


def _quit(_: Talk, __: str) -> None:
    raise Ended


COMMANDS = {
    "/help": Command("", "this list", _help),
    "/usage": Command("", "tokens and bytes of every turn", _usage),
    "/pin": Command("[TURN]", "keep the exchange of a turn (the last one), whatever is dropped", _pin),
    "/unpin": Command("[TURN]", "let it go again", _unpin),
    "/system": Command("[TEXT]", "show or change the instruction", _system),
    "/image": Command("FILE", "show an image with the next turn", _image),
    "/undo": Command("", "take the last exchange back", _undo),
    "/retry": Command("", "answer the last turn again", _retry),
    "/save": Command("FILE", "write the conversation to a file", _save),
    "/load": Command("FILE", "go on with one that was saved", _load),
    "/quit": Command("", "end the conversation", _quit),
}
NAMES = list(COMMANDS)
