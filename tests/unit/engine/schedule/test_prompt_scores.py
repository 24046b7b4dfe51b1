"""Scores of a prompt: arrays that read like a tuple of records."""

from __future__ import annotations

import numpy as np
import pytest

from brim.engine.front.answers import _with_chunk
from brim.engine.schedule.events import TokenLogprobs
from brim.engine.schedule.prompt_scores import PromptScores

RECORDS = tuple(
    TokenLogprobs(token, -0.5 * token, ((token + 1, -0.25), (token, -0.5 * token)), token) for token in range(1, 7)
)


def scores_of(records: tuple[TokenLogprobs, ...]) -> PromptScores:
    return PromptScores(
        np.array([one.token for one in records]),
        np.array([one.logprob for one in records], dtype=np.float32),
        np.array([[token for token, _ in one.top] for one in records]),
        np.array([[value for _, value in one.top] for one in records], dtype=np.float32),
        np.array([one.rank for one in records]),
    )


def test_they_read_like_a_tuple() -> None:
    scores = scores_of(RECORDS)
    assert tuple(scores) == RECORDS
    assert scores == RECORDS
    assert scores != RECORDS[1:]
    assert scores[2] == RECORDS[2]
    assert scores[-1] == RECORDS[-1]
    assert scores[1:4] == RECORDS[1:4]
    assert hash(scores) == hash(RECORDS)
    assert len(scores) == 6
    with pytest.raises(IndexError):
        scores[6]


def test_chunks_that_are_computed_again_change_nothing_that_is_known() -> None:
    """After a preemption a prompt comes in other chunks."""
    known = _with_chunk((), scores_of(RECORDS[:3]), 1)
    other = tuple(TokenLogprobs(one.token, one.logprob - 1, one.top, one.rank) for one in RECORDS)
    known = _with_chunk(known, scores_of(other[:2]), 1)
    known = _with_chunk(known, scores_of(other[2:5]), 3)
    known = _with_chunk(known, scores_of(RECORDS[5:]), 6)
    assert PromptScores.joined(known) == (*RECORDS[:3], *other[3:5], RECORDS[5])
    with pytest.raises(AssertionError, match="from position 9 on, and 7 is the next"):
        _with_chunk(known, scores_of(RECORDS[:1]), 9)
