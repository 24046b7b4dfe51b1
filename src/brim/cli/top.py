"""`brim top`: a server's memory, live in the terminal."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from brim.cli.options import add_json
from brim.errors import InvalidRequest

if TYPE_CHECKING:
    from brim.cli.options import Commands

URL = "http://127.0.0.1:8000"
KEY_VARIABLE = "BRIM_API_KEY"
NOT_THERE = 1
_SECONDS = 10.0  # that a server may take for an answer
_LARGEST_ANSWER = 16 << 20


def add_command(commands: Commands) -> None:
    parser = commands.add_parser(
        "top",
        help="watch a server: who holds what, the KV pool, the gate, tokens a second, requests",
        description="What a running `brim serve` does with its memory, once a second. Ends with Ctrl-C. Where the "
        "output is not a terminal, it is shown once.",
    )
    parser.set_defaults(run=run)
    parser.add_argument("--url", default=URL, metavar="URL", help=f"the server ({URL})")
    parser.add_argument("--api-key", metavar="KEY", help=f"its key, where it has one ({KEY_VARIABLE})")
    parser.add_argument("--once", action="store_true", help="show it once")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between two looks (1)")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    server = WatchedServer(checked_url(options.url), options.api_key or os.environ.get(KEY_VARIABLE))
    if not 0.1 <= options.interval <= 3600:
        raise InvalidRequest(f"interval is {options.interval:g}; it must be from 0.1 to 3600 seconds")
    try:
        report = server.memory()
    except NoReport as error:
        print(f"brim top: {error}", file=sys.stderr)
        return NOT_THERE
    if options.as_json:
        print(json.dumps(report, indent=2))
        return 0
    from brim.cli.show.console import ReportConsole
    from brim.cli.show.top import server_view

    console = ReportConsole()
    if options.once or not console.is_terminal:
        console.print(server_view(report, console.width))
        return 0
    return _watch(server, report, options.interval)


def _watch(server: WatchedServer, report: dict[str, Any], interval: float) -> int:
    """Until Ctrl-C. A server that goes away is waited for."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from brim.cli.show.console import ReportConsole
    from brim.cli.show.top import server_view

    console = ReportConsole()
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            problem = ""
            while True:
                lines = [Text(problem, style="bold red")] if problem else []
                live.update(Group(*lines, server_view(report, console.width, console.height)), refresh=True)
                time.sleep(interval)
                try:
                    report, problem = server.memory(), ""
                except NoReport as error:
                    problem = f"{error}; this is what it said last"
    except KeyboardInterrupt:
        return 0


# -- the server ----------------------------------------------------------------------------------------------------


class NoReport(Exception):
    """Why there is nothing to show, in one line."""


def checked_url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise InvalidRequest(f"url '{url[:60]}' is not an address; write it like {URL}")
    return url.rstrip("/")


@dataclass(frozen=True, slots=True)
class WatchedServer:
    """A `brim serve`, somewhere."""

    url: str
    key: str | None = None

    def memory(self) -> dict[str, Any]:
        """What `/v1/memory` says now."""
        import http.client
        import urllib.error
        import urllib.request

        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            request = urllib.request.Request(f"{self.url}/v1/memory", headers=headers)
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                return self._report(answer.read(_LARGEST_ANSWER))
        except urllib.error.HTTPError as error:
            raise NoReport(self._refusal(error.code, error.read(_LARGEST_ANSWER))) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise NoReport(
                f"no server answers at {self.url} ({reason}); start one with brim serve, or say where it is with --url"
            ) from None

    def _report(self, body: bytes) -> dict[str, Any]:
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if not isinstance(found, dict) or found.get("object") != "brim.memory" or "card" not in found:
            raise NoReport(f"{self.url} is not a server of this version of Brim")
        return found

    def _refusal(self, status: int, body: bytes) -> str:
        if status == 401:
            return f"{self.url}: the API key is missing or wrong; give --api-key KEY, or set {KEY_VARIABLE}"
        try:
            said = json.loads(body)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            return f"{self.url} is not a server of Brim: it answered {status}"
        return f"{self.url}: {said}"
