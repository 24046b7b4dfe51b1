"""Words that an answer may not have, as tokens; and what a salt of a request does to that of its key."""

from __future__ import annotations

import pytest

from brim.engine.requests.params import SamplingParams
from brim.serve.requests.answer_request import AnswerRequest

pytest.importorskip("starlette")
from brim.serve.api.word_tokens import banned


def test_a_word_is_banned_at_the_start_of_a_text_and_behind_a_space() -> None:
    assert banned([(5,)], [(6,)]) == ((5,), (6,))
    assert banned([(5, 7)], [(6, 7)]) == ((5, 7), (6, 7))


def test_a_space_that_is_a_token_of_its_own_or_none_adds_nothing() -> None:
    assert banned([(5,)], [(1, 5)]) == ((5,),)
    assert banned([(5,)], [(5,)]) == ((5,),)
    assert banned([()], [(6,)]) == ((6,),)
    assert banned([(5,), (5,)], [(6,), (6,)]) == ((5,), (6,))


def test_a_salt_begins_with_that_of_its_key_and_differs_from_every_other() -> None:
    def salt(own: str | None, tenant: bytes = b"tenant") -> bytes:
        return AnswerRequest(None, SamplingParams(), False, False, None, cache_salt=own).salt(tenant)

    assert salt(None) == b"tenant"
    found = [salt(one) for one in ("a", "b", "tenant", "\ud800")]
    assert len({*found}) == 4
    assert all(one.startswith(b"tenant") and len(one) == len(b"tenant") + 16 for one in found)
    assert salt("a") == salt("a")
    assert salt("a", b"other") != salt("a")
