"""Kills by the kernel and by orchestrators: Kubernetes' events and states, Docker, Ray, systemd, the kernel's log.

A host kill is never a GPU's: no driver kills a process for the memory of a device.
"""

from __future__ import annotations

import re
from typing import ClassVar

from brim.explain.facts import Sign
from brim.explain.findings import Findings
from brim.explain.readers.lines import LogLine

_KILLED = re.compile(
    r"OOMKilled|OOMKilling|[Oo]om-?kill|Out of memory: Kill|Memory cgroup out of memory|oom_reaper"
    r"|killed by SIGKILL by OOM killer|\"OOMKilled\": ?true|[Ss]ystem ?OOM"
    r"|\b(?:was|were) killed due to the node running low on memory"
)
_LOW = re.compile(r"MemoryPressure|Evicted.{0,80}memory|node was low on resource: memory|running low on memory")
_EXIT = re.compile(r"[Ee]xit [Cc]ode:? +137\b|exit status 137\b|exitCode\"?: ?137\b|exited with code 137\b")


class HostKills:
    words: ClassVar[tuple[str, ...]] = (
        *("OOM", "oom", "Out of memory", "out of memory", "MemoryPressure", "low on", "137", "Evicted"),
        "running low",
    )

    def read(self, line: LogLine, found: Findings) -> None:
        if _KILLED.search(line.text):
            found.sign(Sign.HOST_KILL, line.evidence)
        elif _LOW.search(line.text):
            found.sign(Sign.HOST_LOW, line.evidence)
        elif _EXIT.search(line.text):
            found.sign(Sign.ENDED, line.evidence)
