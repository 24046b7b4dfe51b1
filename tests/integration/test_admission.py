"""Who may start, with models: answers are the same however requests are admitted, and the worst preempts nobody."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from brim.engine.schedule.figures import AdmissionFigures
from brim.engine.settings import EngineSettings
from brim.errors import InvalidRequest
from tests.integration.test_engine import EAGER, drawn, family, greedy, nothing_is_held, prompts_of

PROMPTS = prompts_of([30, 3, 17, 24, 5, 11], seed=5)
PARAMS = [greedy(30), greedy(24), drawn(20, 2), drawn(12, 3, n=2), greedy(3), drawn(28, 5, stop_token_ids=(9,))]


def answers_of(name: str, kv_tokens: int, **settings: Any) -> tuple[list[Any], AdmissionFigures]:
    with family(name).engine(kv_tokens, max_batch=6, max_batch_tokens=16, **settings) as engine:
        answers = [one.tokens for one in engine.generate(PROMPTS, PARAMS)]
        assert nothing_is_held(engine)
        return answers, engine.figures.admission


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_next", "deepseek_v3"])
def test_answers_are_the_same_however_requests_are_admitted(name: str) -> None:
    alone, free = answers_of(name, 1024)
    assert (free.held_for_blocks, free.preemptions) == (0, 0)
    worst, sure = answers_of(name, 96, admission="worst")
    eager, wrong = answers_of(name, 96, **EAGER)
    assert alone == worst == eager
    assert sure.preemptions == 0
    assert sure.held_for_blocks > 0
    assert wrong.preemptions > 0
    assert sure.started == 7
    assert "blocks that it needs" in sure.last_held


def test_what_never_fits_is_refused_at_once_with_the_numbers() -> None:
    with family("llama").engine(64) as engine:
        with pytest.raises(InvalidRequest, match="70 tokens do not fit the KV pool, which holds 64 of one request"):
            engine.submit(prompts_of([70], seed=1)[0], greedy(1))
        assert engine.idle


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="admission is 'best'; it must be expected or worst"):
        EngineSettings(admission="best")
    with pytest.raises(InvalidRequest, match="admission_watermark is 2; it must be at least 0 and below 1"):
        EngineSettings(admission_watermark=2)
