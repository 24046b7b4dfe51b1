"""Replicas whose steps take 20 ms, whatever they compute: what several of them do at once is not a matter of cores."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from brim.ray.replica import EngineReplica
from brim.records.fit import FitReport
from brim.records.progress import Told
from brim.serve.service import Loaded, Starter

STEP_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class _TimedStarter:
    starter: Starter

    def load(self, told: Told) -> Loaded:
        return self.starter.load(told)

    def fit(self, loaded: Loaded, told: Told) -> FitReport | None:
        report = self.starter.fit(loaded, told)
        engine: Any = loaded.engine
        step = engine.step

        def timed() -> Any:
            until = time.monotonic() + STEP_SECONDS
            found = step()
            time.sleep(max(0.0, until - time.monotonic()))
            return found

        engine.step = timed
        return report


class TimedReplica(EngineReplica):
    def starter(self, options: argparse.Namespace, say: Callable[[str], object]) -> Starter:
        return _TimedStarter(super().starter(options, say))
