"""What begins with a slash in a conversation: how a line is obeyed, and the commands of any conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from brim.cli.chat.talk import tell
from brim.errors import InvalidRequest


class Chatting(Protocol):
    """A conversation, whoever answers it."""

    system: str | None

    def undo(self) -> Sized:
        """Take the last exchange back; its turns."""
        ...


class AnyTalk(Protocol):
    """A conversation in the terminal."""

    @property
    def chat(self) -> Chatting: ...

    def retry(self) -> None:
        """Another answer to the last turn."""
        ...


Talking = TypeVar("Talking", contravariant=True)
Own = TypeVar("Own", bound=AnyTalk)


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


def with_common(own: Mapping[str, Command[Own]]) -> dict[str, Command[Own]]:
    """The commands of one kind of conversation, with those of any and a list of them all."""
    commands: dict[str, Command[Own]] = {}

    def show(_: AnyTalk, __: str) -> None:
        for name, command in commands.items():
            print(f"{f'{name} {command.argument}':<16} {command.does}")

    commands |= {"/help": Command("", "this list", show), **own, **_COMMON}
    return commands


def _system(talk: AnyTalk, argument: str) -> None:
    if not argument:
        print(talk.chat.system or "there is no instruction")
        return
    talk.chat.system = argument
    tell("the instruction counts from the next turn on")


def _undo(talk: AnyTalk, _: str) -> None:
    tell(f"{len(talk.chat.undo())} turns taken back")


def _retry(talk: AnyTalk, _: str) -> None:
    talk.retry()


def _quit(_: AnyTalk, __: str) -> None:
    raise Ended


_COMMON = {
    "/system": Command("[TEXT]", "show or change the instruction", _system),
    "/undo": Command("", "take the last exchange back", _undo),
    "/retry": Command("", "answer the last turn again", _retry),
    "/quit": Command("", "end the conversation", _quit),
}
