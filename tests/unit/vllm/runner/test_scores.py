"""What a long scored prompt holds on the device beside its last chunk."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from brim.probes.cpu import CpuProbe
from brim.units import KIB, MIB
from brim.vllm.runner.requests import SamplerBounds
from brim.vllm.runner.scores import earlier_scores
from brim.vllm.runner.steps import DECODE, LONGEST_SCORES, SchedulerLimits, worst_steps

LIMITS = SchedulerLimits(batch_tokens=1024, rows=8, length=4097)


def peaks(name: str) -> tuple[int, int]:
    """What is held in the step, and at most."""
    (step,) = [one for one in worst_steps(LIMITS) if one.shape.name == name]
    probe = CpuProbe(MIB * 64)
    with probe:
        with earlier_scores(step, KIB, "cpu"):
            during = probe.reading().allocated_bytes
        assert probe.reading().allocated_bytes == 0
        return during, probe.reading().peak_allocated_bytes


def test_scores_of_earlier_chunks_are_held_and_joined() -> None:
    assert peaks(LONGEST_SCORES) == (3072 * KIB, 2 * 4096 * KIB)


def test_a_step_that_scores_nothing_holds_nothing() -> None:
    assert peaks(DECODE) == (0, 0)


def test_a_token_has_its_own_score_beside_the_likeliest_ones() -> None:
    assert SamplerBounds(512, 20).score_bytes == 21 * (8 + 4) + 8
