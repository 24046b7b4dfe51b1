"""The order and sizes of what `build` allocates are as recorded: on a GPU they decide which KV cache fits."""

from __future__ import annotations

import json

import pytest

from tests.integration.build_allocations import CASES, RECORDED, build_trace


@pytest.mark.parametrize("case", CASES)
def test_build_allocates_in_the_recorded_order(case: str) -> None:
    assert build_trace(case) == json.loads(RECORDED.read_text(encoding="utf-8"))[case]
