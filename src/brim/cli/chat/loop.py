"""The loop of a conversation in the terminal: lines in, turns or commands out, for local and remote chats."""

from __future__ import annotations

import json
import sys
from typing import Any, Protocol

from brim.cli.chat.commands import ChatEnded
from brim.cli.chat.reading import Reader
from brim.errors import BrimError, InvalidRequest
from brim.surrogates import half_pair_at

_HINT = "Ctrl-C stops an answer, Ctrl-D ends the conversation, /help lists the commands."


class Partner(Protocol):
    """Who is talked with."""

    def obey(self, line: str, as_json: bool) -> dict[str, Any] | None:
        """A line that begins with a slash; for programs, what it shows comes back."""
        ...

    def answer(self, text: str) -> None:
        """Show the answer to a turn as it grows."""
        ...

    def reply(self, text: str) -> dict[str, Any]:
        """The whole answer to a turn, for programs."""
        ...


def converse(partner: Partner, lines: Reader, as_json: bool) -> None:
    """Turn after turn, until the reader or somebody has enough. What one turn does wrong ends that turn."""
    if lines.interactive and not as_json:
        print(_HINT, file=sys.stderr)
    for line in lines:
        if not line.strip():
            continue
        try:
            _check_unicode(line)
            if line.startswith("/"):
                entry = partner.obey(line, as_json)
                if entry is not None:
                    print(json.dumps(entry), flush=True)
            elif as_json:
                print(json.dumps(partner.reply(line)), flush=True)
            else:
                partner.answer(line)
        except ChatEnded:
            return
        except BrimError as error:
            if as_json:
                print(json.dumps({"error": str(error)}), flush=True)
            else:
                print(f"brim chat: {error}", file=sys.stderr)


def _check_unicode(line: str) -> None:
    place = half_pair_at(line)
    if place is not None:
        raise InvalidRequest(f"the line is not UTF-8 at its character {place}; it was left out")
