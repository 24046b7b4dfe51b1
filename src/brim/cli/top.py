"""`brim top`: servers of any engine and the GPUs of this machine, live in the terminal."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from brim.cli.options import add_json
from brim.errors import InvalidRequest
from brim.folders import leases_folder, recordings_folder
from brim.monitor.server import DEFAULT_URL, MonitoredServer
from brim.monitor.watched import WatchedServers

if TYPE_CHECKING:
    from brim.cli.options import Commands

KEY_VARIABLE = "BRIM_API_KEY"
NOT_THERE = 1
_MOST_SERVERS = 16


def add_command(commands: Commands) -> None:
    parser = commands.add_parser(
        "top",
        help="watch servers (Brim, vLLM, SGLang) and this machine's GPUs: who holds what, KV, latencies",
        description="What running servers do with their memory, once a second: Brim, vLLM and SGLang are told apart by "
        "their /metrics. Beside a server of this machine, and without any, the GPUs: which process holds what, with "
        "its lease. Ends with Ctrl-C. Where the output is not a terminal, it is shown once.",
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--url",
        action="append",
        metavar="URL",
        help=f"a server; may be given several times ({DEFAULT_URL}, if one answers there)",
    )
    parser.add_argument("--api-key", metavar="KEY", help=f"its key, where it has one ({KEY_VARIABLE})")
    parser.add_argument("--once", action="store_true", help="show it once")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between two looks (1)")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    if not 0.1 <= options.interval <= 3600:
        raise InvalidRequest(f"interval is {options.interval:g}; it must be from 0.1 to 3600 seconds")
    urls = list(dict.fromkeys(options.url or [DEFAULT_URL]))
    if len(urls) > _MOST_SERVERS:
        raise InvalidRequest(f"url: {len(urls)} servers were given; at most {_MOST_SERVERS} are watched at once")
    key = options.api_key or os.environ.get(KEY_VARIABLE)
    with ThreadPoolExecutor(len(urls), thread_name_prefix="brim-top") as threads:
        servers = [MonitoredServer(url, key) for url in urls]
        folders = leases_folder(), recordings_folder()
        watched = WatchedServers(servers, threads, folders, named=options.url is not None)
        if not options.as_json and not options.once and sys.stdout.isatty():
            return _watch(watched, options.interval)
        return _show_once(watched, options)


def _show_once(watched: WatchedServers, options: argparse.Namespace) -> int:
    seen = watched.look()
    if any(one.reading is not None and one.reading.memory is None for one in seen.servers):
        time.sleep(min(options.interval, 5.0))  # rates are between two looks
        seen = watched.look()
    for one in seen.servers:
        if one.problem and one.expected:
            print(f"brim top: {one.problem}", file=sys.stderr)
    if seen.expected and not any(one.reading for one in seen.servers):
        return NOT_THERE
    from brim.cli.show.console import ReportConsole
    from brim.cli.show.top.whole import top_json, top_view

    if options.as_json:
        print(json.dumps(top_json(seen), indent=2))
    else:
        console = ReportConsole()
        console.print(top_view(seen, console.width))
    return NOT_THERE if any(one.problem and one.expected for one in seen.servers) else 0


def _watch(watched: WatchedServers, interval: float) -> int:
    """Until Ctrl-C. A server that goes away is waited for."""
    from rich.live import Live

    from brim.cli.show.console import ReportConsole
    from brim.cli.show.top.whole import top_view

    seen = watched.look()
    if seen.expected and not any(one.reading for one in seen.servers):
        for one in seen.servers:
            print(f"brim top: {one.problem}", file=sys.stderr)
        return NOT_THERE
    console = ReportConsole()
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(top_view(seen, console.width, console.height), refresh=True)
                time.sleep(interval)
                seen = watched.look()
    except KeyboardInterrupt:
        return 0
