"""What begins with a slash in a conversation: how a line is obeyed, and the commands of any conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from brim.cli.chat.local import tell
from brim.errors import InvalidRequest


class Chatting(Protocol):
    """A conversation, local or remote."""

    system: str | None

    def undo(self) -> Sized:
        """Take the last exchange back; its turns."""
        ...


class AnyChat(Protocol):
    """A conversation in the terminal."""

    @property
    def chat(self) -> Chatting: ...

    def retry(self) -> None:
        """Show another answer to the last turn."""
        ...

    def reply_again(self) -> dict[str, Any]:
        """The same for programs."""
        ...


Talking = TypeVar("Talking", contravariant=True)
Own = TypeVar("Own", bound=AnyChat)


class ChatEnded(Exception):
    """Somebody has had enough."""


@dataclass(frozen=True, slots=True)
class ChatCommand(Generic[Talking]):
    """What it is called with, what it does, and how."""

    argument: str
    does: str
    run: Callable[[Talking, str], None]
    entry: Callable[[Talking, str], dict[str, Any] | None] | None = None  # for programs, where `run` shows something


def obey(
    talk: Talking, line: str, commands: Mapping[str, ChatCommand[Talking]], as_json: bool = False
) -> dict[str, Any] | None:
    """Do what a line says; for programs, what it shows comes back."""
    name, _, argument = line.partition(" ")
    command = commands.get(name)
    if command is None:
        raise InvalidRequest(f"'{name[:40]}' is no command; /help lists them, and a space before it makes it a text")
    if command.argument and not command.argument.startswith("[") and not argument.strip():
        raise InvalidRequest(f"{name} needs {command.argument}: write {name} {command.argument}")
    if as_json and command.entry is not None:
        return command.entry(talk, argument.strip())
    command.run(talk, argument.strip())
    return None


def with_common(own: Mapping[str, ChatCommand[Own]]) -> dict[str, ChatCommand[Own]]:
    """The commands of one kind of conversation, with those of any and a list of them all."""
    commands: dict[str, ChatCommand[Own]] = {}

    def show(_: AnyChat, __: str) -> None:
        for name, command in commands.items():
            print(f"{f'{name} {command.argument}':<16} {command.does}")

    def entry(_: AnyChat, __: str) -> dict[str, Any]:
        return {"commands": {name: command.does for name, command in commands.items()}}

    commands |= {"/help": ChatCommand("", "this list", show, entry), **own, **_COMMON}
    return commands


def _system(talk: AnyChat, argument: str) -> None:
    if not argument:
        print(talk.chat.system or "there is no instruction")
        return
    talk.chat.system = argument
    tell("the instruction counts from the next turn on")


def _system_entry(talk: AnyChat, argument: str) -> dict[str, Any] | None:
    if argument:
        _system(talk, argument)
        return None
    return {"system": talk.chat.system}


def _undo(talk: AnyChat, _: str) -> None:
    tell(f"{len(talk.chat.undo())} turns taken back")


def _retry(talk: AnyChat, _: str) -> None:
    talk.retry()


def _retry_entry(talk: AnyChat, _: str) -> dict[str, Any]:
    return talk.reply_again()


def _quit(_: AnyChat, __: str) -> None:
    raise ChatEnded


_COMMON = {
    "/system": ChatCommand("[TEXT]", "show or change the instruction", _system, _system_entry),
    "/undo": ChatCommand("", "take the last exchange back", _undo),
    "/retry": ChatCommand("", "answer the last turn again", _retry, _retry_entry),
    "/quit": ChatCommand("", "end the conversation", _quit),
}
