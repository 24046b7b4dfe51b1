"""Clients that mean harm, of every kind at once, beside one that only wants its answer.

$BRIM_SOAK_SECONDS makes the long run shorter. $BRIM_HOSTILE names the kinds that come (`slow_headers,smuggling`), to
find out which of them does harm.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles

import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

import httpx

from tests.integration.hostile_clients import ATTACKS, CANARY_KEY, KEYS, Attack, Canary, Target, besieged, unexpected
from tests.integration.served import wait

SOAK_SECONDS = float(os.environ.get("BRIM_SOAK_SECONDS", "3600"))
CHOSEN = tuple(one for one in ATTACKS if one.name in os.environ.get("BRIM_HOSTILE", "").split(",")) or ATTACKS
START_SECONDS = 120


@dataclass(slots=True)
class Command:
    """`brim serve brim-tiny`, as users start it."""

    process: subprocess.Popen[str]
    port: int
    said: list[str] = field(default_factory=list)  # what it writes to standard error, but for the log of requests

    def get(self, path: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {CANARY_KEY}"}
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", headers=headers, timeout=30)

    def resident_bytes(self) -> int:
        """Of it and all processes that it has started."""
        parents = {pid: parent for pid, parent in map(_parent, _processes()) if parent is not None}
        own, size = {self.process.pid}, 0
        while size != len(own):
            size = len(own)
            own |= {pid for pid, parent in parents.items() if parent in own}
        return sum(map(_resident_bytes, own))


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _parent(pid: int) -> tuple[int, int | None]:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return pid, None
    return pid, int(stat.rpartition(")")[2].split()[1])


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0


@contextmanager
def serving(folder: Path) -> Iterator[Command]:
    keys = folder / "keys"
    keys.write_text("\n".join(KEYS))
    options = ["serve", "brim-tiny", "--port", "0", "--api-key-file", str(keys), "--max-seqs", "8"]
    options += ["--kv-tokens", "16384"]  # a pool whose blocks have all been used soon: they count when they are touched
    environment = {**os.environ, "BRIM_LEASES": str(folder / "leases")}
    command = [sys.executable, "-m", "brim.cli.main", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            listening = re.search(r"http://127\.0\.0\.1:(\d+)", process.stderr.readline())
            assert listening is not None
            found = Command(process, int(listening[1]))
            reading = threading.Thread(target=_read, args=(process.stderr, found.said))
            reading.start()
            wait(lambda: found.get("/health").status_code == 200, START_SECONDS)
            yield found
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, found.said
        finally:
            process.kill()
            process.wait()
            reading.join()


def _read(lines: Iterator[str], said: list[str]) -> None:
    said.extend(line for line in lines if not line.startswith("{"))


async def siege(
    command: Command, attacks: tuple[Attack, ...], seconds: float
) -> tuple[Canary, list[float], dict[str, Counter[str]], list[int]]:
    """The canary alone, then among all others: itself, how long it took alone, how the others ended, and memory."""
    target = Target(command.port, CANARY_KEY, "brim-tiny")
    canary = Canary(target)
    canary.answer = await canary.ask()
    for _ in range(6):
        await canary.look()
    quiet, canary.seconds = canary.seconds, []
    assert not canary.wrong, "its question has one answer"
    held: list[int] = []
    until = time.monotonic() + seconds

    async def weigh() -> None:
        while time.monotonic() < until:
            held.append(await asyncio.to_thread(command.resident_bytes))
            await asyncio.sleep(max(0.5, seconds / 1000))

    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as elsewhere:
        hostile = asyncio.get_running_loop().run_in_executor(elsewhere, besieged, target, attacks, seconds)
        _, _, ended = await asyncio.gather(canary.keep_looking(until), weigh(), hostile)
    return canary, quiet, ended, held


def p99(seconds: list[float]) -> float:
    return quantiles(seconds, n=100, method="inclusive")[98]


def grown(held: list[int]) -> int:
    """From the second quarter of a run, when all has been used once, to its last one."""
    quarter = len(held) // 4
    return int(median(held[-quarter:]) - median(held[quarter : 2 * quarter]))


@dataclass(frozen=True, slots=True)
class Bars:
    """What must hold: of the canary's times, and of the memory of all processes of the server.

    The short run is among the other tests, on a machine that is busy with them, and sees everything for the first time.
    """

    median_seconds: float = 1.0
    p99_seconds: float = 4.0
    growth_bytes: int = 160 << 20


@pytest.mark.parametrize(
    ("seconds", "bars"),
    [(30.0, Bars()), pytest.param(SOAK_SECONDS, Bars(1.0, 1.0, 64 << 20), marks=pytest.mark.soak)],
)
def test_hostile_clients_harm_nobody_else(tmp_path: Path, seconds: float, bars: Bars) -> None:
    with serving(tmp_path) as command:
        canary, quiet, ended, held = asyncio.run(siege(command, CHOSEN, seconds))
        wait(lambda: command.get("/v1/memory").json()["requests"]["inside"] == 0)
        report = command.get("/v1/memory").json()
        assert command.get("/health").json()["status"] == "ready"
    assert not canary.wrong, (len(canary.wrong), len(canary.seconds), canary.wrong[:3])
    assert unexpected(CHOSEN, ended) == {}
    assert all(sum(ended[attack.name].values()) >= attack.clients for attack in CHOSEN), ended
    slower = max(1.0, 5 * median(quiet))  # on a machine where it takes long alone
    assert median(canary.seconds) <= bars.median_seconds * slower, (median(quiet), median(canary.seconds))
    assert p99(canary.seconds) <= bars.p99_seconds * slower, (median(quiet), p99(canary.seconds))
    assert grown(held) < bars.growth_bytes, [one >> 20 for one in held[:: max(1, len(held) // 40)]]
    assert report["kv"]["blocks_held"] == 0
    assert not [line for line in command.said if "Traceback" in line], command.said
