"""Random start-ups of real processes that share a budget, with kills, pauses and deleted files at random moments.

What each process did is taken from its own log, not from the ledger: that what is promised and held together never
exceeds the budget, that no sizer decides while a neighbour that has promised is not yet holding, that nothing of a dead
process is believed, and that everybody comes to an end.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from brim.reserve.hold import take
from brim.reserve.ledger import Ledger
from brim.reserve.processes import boot_clock
from tests.integration import lease_processes
from tests.integration.lease_processes import Actor

TOTAL = 1000
LONGEST_SECONDS = 60.0  # a start-up takes half a second; its sizers wait for 30 s at most
FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Life:
    """What became of a process: its events, and when it was killed."""

    actor: Actor
    events: dict[str, dict[str, Any]]
    killed_at: float = FOREVER

    def when(self, event: str) -> float:
        return float(self.events[event]["at"]) if event in self.events else FOREVER

    def claims(self) -> list[tuple[float, float, int]]:
        """What it claimed, from when to when: the promise, then what it held."""
        end = min(self.when("freed"), self.killed_at)
        edges = [(self.when(name), int(self.events.get(name, {}).get("bytes", 0))) for name in ("promised", "holding")]
        (promised, first), (holding, second) = edges
        return [(promised, min(holding, end), first), (holding, end, second)]


def start_up(random_: random.Random, folder: Path) -> tuple[list[Actor], dict[int, float], dict[int, float]]:
    """Two to five holders and one or two sizers, in any order; who is killed when; who is paused when."""
    holders, sizers = random_.randint(2, 5), random_.randint(1, 2)
    kills = (
        {number: random_.uniform(0, 0.25) for number in range(holders + sizers) if random_.random() < 0.3}
        if random_.random() < 0.7
        else {}
    )
    pauses = {number: random_.uniform(0, 0.2) for number in range(holders + sizers) if random_.random() < 0.15}
    expected = random_.choice([0, holders, holders + sizers - 1])
    halves = random_.random() < 0.5
    common = {"folder": str(folder / "leases"), "log": str(folder / "log"), "total_bytes": TOTAL}
    actors = [
        Actor(
            number=number,
            sizes=number >= holders,
            delay=random_.uniform(0, 0.1),
            prepare=random_.uniform(0, 0.08),
            stay=random_.uniform(0.1, 0.3),
            promised_bytes=random_.randint(1, 400),
            held_part=random_.choice([1.0, random_.random()]),
            fraction=0.5 if halves else None,
            expected=expected,
            wait_seconds=0.6 if expected else 30.0,  # who was expected may have been refused, killed or gone
            **common,
        )
        for number in range(holders + sizers)
    ]
    return actors, kills, pauses


class Template:
    """The process that forks the others."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, actor: Actor) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(actor)) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    command = [sys.executable, "-m", lease_processes.__name__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Template(process)


def run_start_up(
    template: Template, actors: list[Actor], kills: dict[int, float], pauses: dict[int, float]
) -> list[Life]:
    killed: dict[int, float] = {}
    pids = [template.start(actor) for actor in actors]
    came = boot_clock()
    signals = [(at, number, signal.SIGKILL) for number, at in kills.items()]
    signals += [(at, number, signal.SIGSTOP) for number, at in pauses.items()]
    signals += [(at + 0.1, number, signal.SIGCONT) for number, at in pauses.items()]
    for at, number, kind in sorted(signals):
        time.sleep(max(0.0, came + at - boot_clock()))
        if kind == signal.SIGKILL:
            killed[number] = boot_clock()
        with suppress(ProcessLookupError):  # it has ended
            os.kill(pids[number], kind)
    while any(map(_is_there, pids)):
        assert boot_clock() - came < LONGEST_SECONDS, [
            actor.role for actor, pid in zip(actors, pids, strict=True) if _is_there(pid)
        ]
        time.sleep(0.01)
    events: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for line in Path(actors[0].log).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        events[row["number"]][row["event"]] = row
    return [Life(actor, events[actor.number], killed.get(actor.number, FOREVER)) for actor in actors]


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def check(lives: list[Life]) -> None:
    _never_more_than_the_budget(lives)
    _nobody_sizes_before_a_promised_neighbour_holds(lives)
    for life in lives:
        ended = any(name == "done" or name.startswith(("DoesNotFit", "NeighboursLate")) for name in life.events)
        assert ended or life.killed_at < FOREVER, life
    if all(life.killed_at == FOREVER for life in lives):
        late = [life for life in lives if any(name.startswith("NeighboursLate") for name in life.events)]
        refused = [life for life in lives if any(name.startswith("DoesNotFit") for name in life.events)]
        assert not late or refused or any(life.actor.expected for life in lives), late


def _never_more_than_the_budget(lives: list[Life]) -> None:
    claims = [claim for life in lives for claim in life.claims() if claim[0] < claim[1]]
    for moment, _, _ in claims:
        assert sum(size for start, end, size in claims if start <= moment < end) <= TOTAL, lives


def _nobody_sizes_before_a_promised_neighbour_holds(lives: list[Life]) -> None:
    for sizer in lives:
        decided = sizer.when("decided")
        for life in lives if decided < FOREVER else ():
            if not life.actor.sizes and life.when("promised") < decided < life.killed_at:
                assert life.when("holding") <= decided, (sizer, life)


def check_ledger(folder: Path) -> None:
    """Nothing stale is believed: all of the budget can be had again."""
    device = lease_processes.Actor(0, "", "", TOTAL, False, 0, 0, 0).device
    lease = take(device, TOTAL, "after", folder=folder / "leases")
    lease.release()
    with Ledger(folder / "leases", device.key).opened() as page:
        assert (page.leases, page.problems) == ((), [])
    assert [path.name for path in (folder / "leases" / "cpu%3Astartup").iterdir()] == ["lock"]


def startups(template: Template, folder: Path, seeds: range) -> None:
    for seed in seeds:
        place = folder / str(seed)
        place.mkdir()
        lives = run_start_up(template, *start_up(random.Random(seed), place))
        check(lives)
        check_ledger(place)


@pytest.mark.parametrize("tens", range(2))
def test_random_start_ups(template: Template, tmp_path: Path, tens: int) -> None:
    startups(template, tmp_path, range(10 * tens, 10 * tens + 10))


@contextmanager
def cleaner(folder: Path, random_: random.Random) -> Iterator[None]:
    """Deletes files of the ledger at random moments, also the lock and all at once, as cleaners of /tmp do."""
    ended = threading.Event()

    def clean() -> None:
        while not ended.wait(random_.uniform(0, 0.02)):
            if random_.random() < 0.2:
                shutil.rmtree(random_.choice([folder, folder / "cpu%3Astartup"]), ignore_errors=True)
                continue
            with suppress(OSError):
                for path in list((folder / "cpu%3Astartup").iterdir()):
                    if random_.random() < 0.5:
                        path.unlink()

    thread = threading.Thread(target=clean)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def startups_under_a_cleaner(template: Template, folder: Path, seeds: range) -> None:
    """Nobody waits for neighbours that are expected: those may have been deleted in the moment of the look."""
    for seed in seeds:
        place = folder / str(seed)
        place.mkdir()
        random_ = random.Random(seed)
        actors, kills, _ = start_up(random_, place)
        with cleaner(place / "leases", random_):
            lives = run_start_up(template, actors, kills, {})
        _never_more_than_the_budget(lives)
        for life in lives:
            problems = [name for name in life.events if name.startswith(("DeviceError", "NeighboursUnknown"))]
            assert not problems, life


def test_random_start_ups_while_files_are_deleted(template: Template, tmp_path: Path) -> None:
    startups_under_a_cleaner(template, tmp_path, range(10))


@pytest.mark.soak
@pytest.mark.parametrize("tens", range(20))
def test_many_random_start_ups_while_files_are_deleted(template: Template, tmp_path: Path, tens: int) -> None:
    startups_under_a_cleaner(template, tmp_path, range(1000 + 10 * tens, 1010 + 10 * tens))


@pytest.mark.soak
@pytest.mark.parametrize("tens", range(20))
def test_many_random_start_ups(template: Template, tmp_path: Path, tens: int) -> None:
    startups(template, tmp_path, range(1000 + 10 * tens, 1010 + 10 * tens))
