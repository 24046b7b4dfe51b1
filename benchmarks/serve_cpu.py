"""The first thing a newcomer runs: `brim serve` with the model in the package, beside its engine without a budget.

The server is the command itself, in a process of its own: fitted under the CPU's budget, asked over HTTP by one client
and by six, which stream. The engine alone has the same settings and no budget, and runs in a process of its own, before
the server and after it: its best steps are what times between tokens are compared with. Both want two idle cores.

    python benchmarks/serve_cpu.py [--rounds 3] [--answer 128] [--out benchmarks/results/serve_cpu.json] [--commit HASH]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stamp import stamp

if TYPE_CHECKING:
    from collections.abc import Iterator

CLIENTS = (1, 6)
LEAST_TOKENS_PER_SECOND = {1: 80, 6: 300}
MOST_OF_A_STEP = 1.3  # time between tokens, of the engine's own step
_PROMPT = 24
_MODEL, _MAX_BATCH, _BATCH_TOKENS, _KV_TOKENS = "brim-tiny", 64, 512, 65_536  # as `brim serve` has them by default
_START_SECONDS = 300


# -- the engine's process ------------------------------------------------------------------------------------------


def engine_alone(answer: int, rounds: int) -> dict[int, dict[str, float]]:
    """By number of requests: milliseconds of a step, and processor time of one, without a budget."""
    from brim.engine.engine import Engine
    from brim.engine.settings import EngineSettings

    settings = EngineSettings(max_batch=_MAX_BATCH, max_batch_tokens=_BATCH_TOKENS)
    found: dict[int, dict[str, float]] = {}
    with Engine(_MODEL, device="cpu", kv_tokens=_KV_TOKENS, settings=settings, progress=False) as engine:
        for requests in CLIENTS:
            _steps(engine, requests, 16, seed=7)
            measured = [_steps(engine, requests, answer, seed=seed) for seed in range(rounds)]
            found[requests] = min(measured, key=lambda one: one["step_ms"])
    return found


def _steps(engine: Any, requests: int, answer: int, seed: int) -> dict[str, float]:
    """All requests at once; the steps in which every one of them generates."""
    import random

    from brim.engine.requests.params import SamplingParams

    numbers = random.Random(seed)
    params = SamplingParams(max_tokens=answer, temperature=0, ignore_eos=True)
    for _ in range(requests):
        engine.submit([numbers.randrange(10, engine.loaded.vocab) for _ in range(_PROMPT)], params)
    engine.step()
    seconds, processor = [], time.process_time()
    while not engine.idle:
        began = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - began)
    processor = time.process_time() - processor
    return {"step_ms": 1e3 * statistics.median(seconds), "cpu_ms": 1e3 * processor / len(seconds)}


# -- the clients' process ------------------------------------------------------------------------------------------


@contextmanager
def served(port: int) -> Iterator[int]:
    """`brim serve`, when it is ready; its process id."""
    from urllib.error import URLError
    from urllib.request import urlopen

    command = [sys.executable, "-m", "brim", "serve", _MODEL, "--port", str(port), "--quiet", "--no-request-log"]
    process = subprocess.Popen([*command, "--scaling", "off", "--no-store"])
    try:
        until = time.monotonic() + _START_SECONDS
        while True:
            try:
                urlopen(f"http://127.0.0.1:{port}/health").close()
                break
            except (URLError, OSError):
                if time.monotonic() > until or process.poll() is not None:
                    sys.exit("the server did not start")
                time.sleep(0.2)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


def asked(port: int, clients: int, requests: int, answer: int, seed: int, vocab: int = 2000) -> Any:
    """So many clients, each with one request after another."""
    from brim.bench.lengths import Between
    from brim.bench.loops import Mix
    from brim.bench.measure import Closed, LoadMeasurement, LoadSettings
    from brim.client.address import parse_url

    mix = Mix(Between(_PROMPT, _PROMPT), Between(answer, answer), seed)
    load = LoadSettings(Closed(clients), mix, requests=requests, vocab=vocab)
    report = asyncio.run(LoadMeasurement(parse_url(f"http://127.0.0.1:{port}"), None, _MODEL, load).run())
    assert report.answer_tokens == requests * answer, report.errors
    return report


def cpu_seconds(pid: int) -> float:
    """Of a process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def row(port: int, pid: int, clients: int, options: argparse.Namespace) -> dict[str, Any]:
    """The best of some rounds."""
    asked(port, clients, clients, 8, 99)
    reports, processor = [], []
    for seed in range(options.rounds):
        before = cpu_seconds(pid)
        reports.append(asked(port, clients, 2 * clients, options.answer, seed))
        processor.append(cpu_seconds(pid) - before)
    best = max(reports, key=lambda report: report.tokens_per_second)
    between = min(report.inter_token.to_json()["p50_ms"] for report in reports)
    return {
        "clients": clients,
        "tokens_per_second": best.tokens_per_second,
        "least_tokens_per_second": LEAST_TOKENS_PER_SECOND[clients],
        "rounds": [report.tokens_per_second for report in reports],
        "between_tokens_ms": between,
        "most_of_a_step": MOST_OF_A_STEP,
        "server_cpu_ms_per_step": [1e3 * seconds / (2 * options.answer) for seconds in processor],
        "ttft": best.ttft.to_json(),
        "inter_token": best.inter_token.to_json(),
    }


def measured(options: argparse.Namespace) -> dict[str, Any]:
    before = alone(options)
    with served(options.port) as pid:
        rows = [row(options.port, pid, clients, options) for clients in CLIENTS]
    after = alone(options)
    for one in rows:
        best = min(before[one["clients"]], after[one["clients"]], key=lambda steps: steps["step_ms"])
        one |= {"engine_step_ms": best["step_ms"], "engine_step_cpu_ms": best["cpu_ms"]}
        one["of_a_step"] = one["between_tokens_ms"] / best["step_ms"]
    return {"clients": rows}


def alone(options: argparse.Namespace) -> dict[int, dict[str, float]]:
    """The engine's own steps, by number of requests."""
    arguments = ["--engine", "--rounds", str(options.rounds), "--answer", str(options.answer)]
    ran = subprocess.run([sys.executable, __file__, *arguments], check=True, stdout=subprocess.PIPE)
    return {int(requests): steps for requests, steps in json.loads(ran.stdout).items()}


def show(found: dict[str, Any]) -> None:
    for one in found["clients"]:
        print(
            f"{one['clients']} clients: {one['tokens_per_second']:,.0f} tokens/s (at least "
            f"{one['least_tokens_per_second']}), {one['between_tokens_ms']:.1f} ms between tokens; the engine's own "
            f"step {one['engine_step_ms']:.1f} ms: {one['of_a_step']:.2f} × (at most {MOST_OF_A_STEP}); processor time "
            f"of a step {min(one['server_cpu_ms_per_step']):.1f} ms, the engine's {one['engine_step_cpu_ms']:.1f} ms"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--answer", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--port", type=int, default=8354)
    parser.add_argument("--engine", action="store_true", help="measure the engine alone")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    if options.engine:
        print(json.dumps(engine_alone(options.answer, options.rounds)))
        return
    found = {**stamp(options.commit), "model": _MODEL, **measured(options)}
    show(found)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
