"""Servers that are watched together, and the machine beside them: all that `brim top` shows of one moment.

In: servers, each of which is asked in a thread of its own so that none waits for another. Out: `TopReading`s. The
machine is looked at where a server is on it, and where no server was named.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from brim.monitor.listening import is_of_this_machine, processes_of
from brim.monitor.machine import MachineReading, read_machine
from brim.monitor.server import MonitoredServer, NoReading, ServerReading


@dataclass(frozen=True, slots=True)
class SeenServer:
    """What is known of one now: its last reading, and why there is no newer one."""

    url: str
    reading: ServerReading | None
    problem: str = ""
    expected: bool = True  # False: nobody has named it, and nobody is there


@dataclass(frozen=True, slots=True)
class TopReading:
    """All that is shown of one moment."""

    servers: tuple[SeenServer, ...]
    machine: MachineReading | None  # None: the servers are on other machines

    @property
    def expected(self) -> bool:
        """Whether there is a server to show, or one that should be there."""
        return any(one.expected for one in self.servers)


class WatchedServers:
    """Looked at again and again, from one thread."""

    def __init__(
        self, servers: Sequence[MonitoredServer], threads: Executor, folders: tuple[Path, Path], *, named: bool
    ) -> None:
        """`folders`: of leases, and of recordings."""
        self.named = named  # by the user: then one that does not answer is a problem
        self._servers = servers
        self._threads = threads
        self._folders = folders
        self._last: dict[str, ServerReading] = {}
        self._here = [one.url for one in servers if is_of_this_machine(one.url)]
        self._processes: dict[str, frozenset[int]] = {}

    def look(self) -> TopReading:
        seen = tuple(self._threads.map(self._look_at, self._servers))
        shows_machine = bool(self._here) or not self.named
        return TopReading(seen, self._machine({one.url: not one.problem for one in seen}) if shows_machine else None)

    def _look_at(self, server: MonitoredServer) -> SeenServer:
        try:
            self._last[server.url] = server.look()
        except NoReading as error:
            last = self._last.get(server.url)
            return SeenServer(server.url, last, str(error), self.named or error.answered or last is not None)
        return SeenServer(server.url, self._last[server.url])

    def _machine(self, answers: dict[str, bool]) -> MachineReading:
        for url in self._here:
            if not answers[url]:
                self._processes.pop(url, None)  # another process may answer when it is there again
            elif not self._processes.get(url):
                self._processes[url] = processes_of(url)
        return read_machine(*self._folders, self._processes)
