"""Allowed tokens and banned sequences in an engine: however steps overlap, beside forks, drafts and free requests."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from brim import SamplingParams
from brim.errors import InvalidRequest
from tests.integration.test_chat import engine_of, tokenizer
from tests.integration.test_engine import nothing_is_held

PROMPT = tokenizer()("What colour is it, and how many?", add_special_tokens=False)["input_ids"]
ALLOWED = tuple(range(20, 60))
FREE: dict[str, Any] = {"max_tokens": 30, "temperature": 1.0, "seed": 5, "ignore_eos": True}


@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"speculate": "lookup", "speculate_max_weight": 1.0}])
def test_limits_hold_and_answers_are_the_same_however_steps_overlap(options: dict[str, Any]) -> None:
    free = SamplingParams(**FREE)
    with engine_of(copy=51) as plain:
        (alone,) = plain.generate([PROMPT], free)
        pairs = tuple(zip(alone.tokens, alone.tokens[1:], strict=False))[::3]
        params = [
            free,
            SamplingParams(**FREE, allowed_token_ids=ALLOWED),
            SamplingParams(**FREE, banned_sequences=(*pairs, (alone.tokens[0],))),
            SamplingParams(**FREE, allowed_token_ids=ALLOWED, banned_sequences=((20, 21), (30,)), n=2),
        ]
        wanted = plain.generate([PROMPT] * 4, params)
    with engine_of(copy=51, **options) as engine:
        found = engine.generate([PROMPT] * 4, params)
        assert nothing_is_held(engine)
    assert [one.tokens for one in found] == [one.tokens for one in wanted]
    first, listed, banned, *both = found
    assert first.tokens == alone.tokens
    assert set(listed.tokens) <= set(ALLOWED)
    assert alone.tokens[0] not in banned.tokens
    assert not set(pairs) & set(zip(banned.tokens, banned.tokens[1:], strict=False))
    assert len(both) == 2
    for one in both:
        assert set(one.tokens) <= set(ALLOWED) - {30}
        assert (20, 21) not in set(zip(one.tokens, one.tokens[1:], strict=False))


def test_what_would_leave_nothing_to_draw_is_refused() -> None:
    end = tokenizer().eos_token_id
    with engine_of(copy=51) as engine:
        with pytest.raises(InvalidRequest, match="allowed_token_ids: all of them end the answer"):
            engine.submit(PROMPT, SamplingParams(allowed_token_ids=(end,), stop_token_ids=(end,), min_tokens=2))
        with pytest.raises(InvalidRequest, match="allowed_token_ids is 1000000"):
            engine.submit(PROMPT, SamplingParams(allowed_token_ids=(5, 1_000_000)))
        (ended,) = engine.generate([PROMPT], SamplingParams(allowed_token_ids=(end,), stop_token_ids=(end,)))
        assert (ended.tokens, ended.text, ended.stop) == ((end,), "", end)
        assert nothing_is_held(engine)
