"""Where the turns of a conversation come from: a terminal with history and editing keys, or lines of a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from io import TextIOWrapper
from typing import Any, Protocol

from brim.errors import InvalidRequest
from brim.folders import history_file
from brim.install import install_command


class Reader(Protocol):
    """Lines, until there are no more."""

    interactive: bool

    def __iter__(self) -> Iterator[str]: ...


class Lines:
    """The lines of standard input. Bytes that are no UTF-8 become surrogates, and do not end the conversation."""

    interactive = False

    def __iter__(self) -> Iterator[str]:
        if isinstance(sys.stdin, TextIOWrapper):
            sys.stdin.reconfigure(errors="surrogateescape")
        for line in sys.stdin:
            yield line.rstrip("\n")


class Terminal:
    """A prompt with history, editing keys, and a line below it that shows the memory."""

    interactive = True

    def __init__(self, status: Callable[[], str], commands: Sequence[str]) -> None:
        try:
            from prompt_toolkit import PromptSession
            from prompt_toolkit.completion import WordCompleter
            from prompt_toolkit.history import FileHistory
        except ImportError:
            raise InvalidRequest(
                f"chat needs prompt_toolkit in a terminal; install it with {install_command('chat')}"
            ) from None
        history = history_file()
        history.parent.mkdir(parents=True, exist_ok=True)
        self._session: Any = PromptSession(
            history=FileHistory(str(history)),
            completer=WordCompleter(list(commands), sentence=True),
            complete_while_typing=False,
        )
        self._status = status

    def __iter__(self) -> Iterator[str]:
        while True:
            try:
                yield self._session.prompt("> ", bottom_toolbar=self._status())  # asked once: it is drawn at every key
            except KeyboardInterrupt:
                continue  # what was being typed is gone, the conversation is not
            except EOFError:
                return


def reader(status: Callable[[], str], commands: Sequence[str]) -> Reader:
    """Where turns come from; in a terminal the names of commands are completed."""
    return Terminal(status, commands) if sys.stdin.isatty() and sys.stdout.isatty() else Lines()
