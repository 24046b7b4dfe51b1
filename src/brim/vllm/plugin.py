"""What vLLM runs of Brim in all of its processes (an entry point in the group `vllm.general_plugins`).

The gauges are a custom logger of statistics. Named in Brim's metadata they would be one wherever Brim is installed, and
stock vLLM would keep statistics that `--disable-log-stats` has switched off. So a process gets metadata that names them
only where its command asks for Brim's worker, and leaves statistics on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path

from brim.vllm import WORKER
from brim.vllm.command import written_flags
from brim.vllm.settings import switched_on

_NAME = "brim-gauges"
_FILES = {
    "METADATA": f"Name: {_NAME}\nVersion: 1\n",
    "entry_points.txt": "[vllm.stat_logger_plugins]\nbrim = brim.vllm.metrics:BrimGauges\n",
}


def announce_gauges() -> None:
    """The entry point; vLLM may call it several times."""
    if wants_gauges(sys.argv, os.environ) and not any(isinstance(one, GaugesFinder) for one in sys.meta_path):
        sys.meta_path.append(GaugesFinder())


def wants_gauges(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a command starts Brim's worker with statistics."""
    flags = written_flags(words)
    return flags.get("--worker-cls") == WORKER and "--disable-log-stats" not in flags and switched_on(environment)


class GaugesFinder(DistributionFinder):
    """Finds metadata and no modules."""

    def find_spec(self, *given: object) -> None:
        """No module is here."""

    def find_distributions(
        self,
        context: DistributionFinder.Context = DistributionFinder.Context(),  # noqa: B008
    ) -> Iterator[Distribution]:
        if context.name in (None, _NAME):
            yield _Gauges()


class _Gauges(Distribution):
    """A distribution that has an entry point and no files."""

    def read_text(self, filename: str) -> str | None:
        return _FILES.get(filename)

    def locate_file(self, path: object) -> Path:
        return Path(__file__).parent / str(path)
