"""The warm-up steps that an engine runs when it is built on a GPU, here on the CPU: they leave nothing in the pool."""

from __future__ import annotations

import pytest

from brim.records.progress import silent
from tests.integration import test_engine_vision as vision
from tests.integration.test_engine import family, greedy, nothing_is_held, prompts_of


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_next"])
@pytest.mark.parametrize(("kv_tokens", "max_batch"), [(512, 4), (16, 1), (48, 2)])
def test_a_warm_engine_answers_as_a_cold_one(name: str, kv_tokens: int, max_batch: int) -> None:
    prompts = prompts_of([3, 6, 2], seed=8)
    with family(name).engine(kv_tokens, max_batch=max_batch) as engine:
        engine.worst_steps.warm_up(engine.loop.scheduler.ledger, silent)
        assert nothing_is_held(engine)
        assert engine.figures.blocks_cached == 0
        answers = engine.generate(prompts, greedy(4))
        assert [list(one.tokens) for one in answers] == [family(name).greedy(prompt, 4) for prompt in prompts]


def test_tokens_that_see_each_other_are_warmed_up_too() -> None:
    with vision.engine_of("gemma3", max_batch_tokens=80) as engine:
        engine.worst_steps.warm_up(engine.loop.scheduler.ledger, silent)
        got = vision.tokens_of(vision.run(engine, vision.prompts_of("gemma3")))
    assert got == list(vision.answers_of("gemma3"))
