"""What the server costs beside its engine: CPU time for a request and for a streamed token, on one core.

The server is a process of its own that is held to one core, in front of an engine that computes nothing
(`stub_engine.py`); clients of `brim.bench` run on another core. CPU time of the whole server process is divided by what
was answered: first requests of one token, then streams of many.

With --paced also steps that take time like a GPU's, with hundreds of streams: how much of the engine's own pace is left
behind the server. That needs cores that nobody else uses.

    python benchmarks/http_overhead.py [--paced] [--out FILE] [--commit HASH]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from stamp import stamp

BARS = {"request_ms": 2.0, "token_ms": 0.05, "share": 0.9}
# Streams, seconds of a step on the device, and on the host: about those of an 8B model on an H200.
PACES = ((128, 0.015, 0.003), (512, 0.038, 0.006))


def serve(options: argparse.Namespace) -> None:
    """The server, until its standard input ends. CPU seconds and steps so far are written for every line read there."""
    from stub_engine import StubEngine, StubStarter

    from brim.serve.server import Server, listen
    from brim.serve.settings import ServeSettings

    engine = StubEngine(device_seconds=options.device, host_seconds=options.host)
    server = Server(ServeSettings("stub", port=options.port, max_queue=4096), StubStarter(engine))

    async def run() -> None:
        loop = asyncio.get_running_loop()

        def asked() -> None:
            if not sys.stdin.readline():
                server.stop()
                loop.remove_reader(sys.stdin)
                return
            used = resource.getrusage(resource.RUSAGE_SELF)
            found = {"cpu": used.ru_utime + used.ru_stime, "steps": engine.steps, "drawn": engine.drawn}
            print(json.dumps({**found, "at": time.perf_counter()}), flush=True)

        loop.add_reader(sys.stdin, asked)
        await server.run(listen("127.0.0.1", options.port), signals=False)

    asyncio.run(run())


class StubServer:
    """That process, seen from outside."""

    def __init__(self, port: int, device: float = 0.0, host: float = 0.0, *, core: int | None = None) -> None:
        arguments = ["--serve", "--port", str(port), "--device", str(device), "--host", str(host)]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if core is not None:
            os.sched_setaffinity(self._process.pid, {core})
        self.url = f"http://127.0.0.1:{port}"

    def figures(self) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._process.stdout.readline())
        return found

    def wait(self) -> None:
        from urllib.error import URLError
        from urllib.request import urlopen

        for _ in range(600):
            try:
                urlopen(f"{self.url}/health").close()
                return
            except (URLError, OSError):
                time.sleep(0.1)
        sys.exit("the server does not start")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def load(url: str, clients: int, requests: int, tokens: int) -> Any:
    """A closed loop of token prompts."""
    from brim.bench.lengths import Between
    from brim.bench.loops import Mix
    from brim.bench.measure import Closed, LoadMeasurement, LoadSettings
    from brim.client.address import parse_url

    mix = Mix(Between(64, 64), Between(tokens, tokens))
    found = LoadSettings(Closed(clients), mix, requests=requests, vocab=1000)
    report = asyncio.run(LoadMeasurement(parse_url(url), None, "stub", found).run())
    assert len(report.answered) == requests, report.errors
    return report


def costs(options: argparse.Namespace) -> dict[str, Any]:
    """CPU time of the server for a request, and for a token more."""
    server = StubServer(options.port, core=options.cores[0])
    try:
        server.wait()
        load(server.url, 8, 100, 1)
        before = server.figures()
        load(server.url, 8, options.requests, 1)
        between = server.figures()
        report = load(server.url, 64, options.requests // 4, 256)
        after = server.figures()
    finally:
        server.close()
    request = (between["cpu"] - before["cpu"]) / options.requests
    streams = options.requests // 4
    token = (after["cpu"] - between["cpu"] - request * streams) / (streams * 255)
    return {
        "request_ms": request * 1000,
        "token_ms": token * 1000,
        "client_token_ms": report.client_cpu_seconds / report.answer_tokens * 1000,
    }


def paced(options: argparse.Namespace, clients: int, device: float, host: float) -> dict[str, Any]:
    """The pace of an engine behind the server, as a share of its pace alone."""
    server = StubServer(options.port + 1, device, host)
    try:
        server.wait()
        load(server.url, 8, 16, 2)
        before = server.figures()
        report = load(server.url, clients, clients, options.tokens)
        after = server.figures()
    finally:
        server.close()
    alone = clients / max(device, host)
    return {
        "clients": clients,
        "device_ms": device * 1000,
        "host_ms": host * 1000,
        "alone_tokens_per_second": alone,
        "tokens_per_second": report.tokens_per_second,
        "share": report.tokens_per_second / alone,
        "server_cpu_token_ms": (after["cpu"] - before["cpu"]) / report.answer_tokens * 1000,
        "ttft": report.ttft.to_json(),
        "inter_token": report.inter_token.to_json(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help="be the server")
    parser.add_argument("--device", type=float, default=0.0)
    parser.add_argument("--host", type=float, default=0.0)
    parser.add_argument("--port", type=int, default=8351)
    parser.add_argument("--requests", type=int, default=800)
    parser.add_argument("--tokens", type=int, default=128, help="of each paced stream")
    parser.add_argument("--cores", type=int, nargs=2, default=(0, 1), help="of the server and of the clients")
    parser.add_argument("--paced", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    if options.serve:
        serve(options)
        return
    os.sched_setaffinity(0, {options.cores[1]})
    found = costs(options)
    print(json.dumps(found), flush=True)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    rows = []
    for clients, device, host in PACES if options.paced else ():
        rows.append(paced(options, clients, device, host))
        print(json.dumps(rows[-1]), flush=True)
    result = {**stamp(options.commit), "bars": BARS, "costs": found, "paced": rows}
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
