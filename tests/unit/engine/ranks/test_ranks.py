"""What all ranks raise when some of them fail."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import DeviceError, OutOfMemory

pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.engine.ranks.ranks import RankOutcome, worst_end

FINE, BOOM = RankOutcome(), RankOutcome("RuntimeError: boom")


def short(missing_bytes: int | None) -> RankOutcome:
    return RankOutcome("no memory", out_of_memory=True, missing_bytes=missing_bytes)


@given(
    st.builds(
        RankOutcome, st.text(st.characters(exclude_characters="\0")), st.booleans(), st.none() | st.integers(0, 9)
    )
)
def test_how_a_rank_ended_travels_in_so_many_bytes_whatever_it_says(ended: RankOutcome) -> None:
    sent = ended.packed()
    assert len(sent) == len(RankOutcome().packed())
    received, said = RankOutcome.unpacked(sent), ended.problem.encode(errors="replace").decode()
    assert said.startswith(received.problem)
    assert received.problem == said or len(received.problem.encode()) > 490
    assert replace(received, problem="") == replace(ended, problem="")


def test_nothing_is_raised_where_all_went_well() -> None:
    assert worst_end("build", [FINE, FINE]) is None


@pytest.mark.parametrize(
    ("ended", "rank", "missing_bytes"),
    [
        ([FINE, short(5)], 1, 5),
        ([short(7), FINE, short(5)], 0, 7),
        ([short(None), short(5)], 1, 5),
        ([FINE, short(None)], 1, None),
    ],
)
def test_the_largest_shortfall_that_is_known_counts(
    ended: list[RankOutcome], rank: int, missing_bytes: int | None
) -> None:
    error = worst_end("build", ended)
    assert isinstance(error, OutOfMemory)
    assert str(error) == f"rank {rank} of {len(ended)}, build: no memory"
    assert error.missing_bytes == missing_bytes


def test_another_error_is_worse_than_out_of_memory() -> None:
    error = worst_end("build", [short(5), FINE, BOOM])
    assert type(error) is DeviceError  # a fit that is out of memory would try again
    assert "rank 2 failed in build (RuntimeError: boom)" in str(error)
