"""A fix that `brim explain` prints, tried: the same load under the same budget is not refused any more."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")

from brim.engine.engine import Engine
from brim.engine.requests.params import SamplingParams
from brim.engine.settings import EngineSettings
from brim.explain.explanation import explain
from brim.probes.cpu import CpuProbe
from brim.record.layout import FileHeader
from brim.record.writer import RecordingWriter
from brim.serve.recording import ServeRecorder
from brim.units import MIB

GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


def run_load(probe: CpuProbe, batch_tokens: int, spare: int | None, file: Path | None) -> int:
    """Short prompts, then a long one: how many steps were rescued under a budget above the peak of the short ones."""
    settings = EngineSettings(max_batch=8, max_batch_tokens=batch_tokens)
    with Engine("brim-tiny", kv_tokens=0, device="cpu", settings=settings, probe=probe) as engine:
        engine.build(4096)
        for lengths in ([24] * 4, [24] * 4, [400]):
            for length in lengths:
                engine.submit([5 + number % 90 for number in range(length)], GREEDY)
            while not engine.idle:
                engine.step()
            if spare is not None:
                probe.budget_bytes, spare = probe.reading().peak_reserved_bytes + spare, None
                if file is not None:
                    writer = RecordingWriter(file, FileHeader(os.getpid(), time.time(), 512, 64))
                    engine.observe(ServeRecorder(writer, probe))
        return engine.health.rescues


def test_the_step_that_ran_is_a_fix(tmp_path: Path) -> None:
    probe = CpuProbe(1 << 33)
    assert run_load(probe, 512, MIB // 8, tmp_path / "r") > 0
    found = explain([tmp_path / "r"])
    assert found.diagnosis.cause == "large_step"
    (fix,) = found.fixes
    assert (fix.flag, fix.checked_by) == ("--batch-tokens", "recording")
    again = CpuProbe(probe.budget_bytes)
    assert run_load(again, int(fix.value), None, None) == 0
