"""Where a command encodes media when nobody has said it."""

from __future__ import annotations

import argparse

import pytest

from brim.cli.engine_options import EnginePlace
from brim.cli.neighbours.encoders import _gets_process

GPU, CPU = EnginePlace("cuda:0"), EnginePlace("cpu", 1 << 30)


@pytest.mark.parametrize(
    ("place", "serves", "given", "process"),
    [
        (GPU, True, {}, True),
        (GPU, False, {}, False),  # nobody else's text would wait
        (CPU, True, {}, False),
        (GPU, True, {"tp": 2}, False),  # encoders serve one rank
        (CPU, False, {"encoder_gpus": "cpu:a:1GiB"}, True),
        (GPU, False, {"encoder_reserve": "6GiB"}, True),
    ],
)
def test_a_gpu_that_serves_gets_a_process(
    place: EnginePlace, serves: bool, given: dict[str, object], process: bool
) -> None:
    options = argparse.Namespace(**{"encoder_gpus": None, "encoder_reserve": None, "tp": 1, **given})
    assert _gets_process(options, place, serves) is process
