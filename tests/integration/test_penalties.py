"""Penalties in an engine: their tokens stay on the device, and nobody can tell from the answers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.engine.run.sampling import history, pages, penalties  # noqa: E402
from tests.integration.test_engine import EAGER, drawn, family, greedy, nothing_is_held, prompts_of  # noqa: E402

PROMPTS = prompts_of([3, 20, 41, 9, 33, 20], seed=4)
PARAMS = [
    drawn(12, 1, presence_penalty=1.0),
    drawn(12, 2, repetition_penalty=1.5, n=3),
    greedy(14, repetition_penalty=1.3, frequency_penalty=0.5),
    drawn(12, 3),
    drawn(14, 4, frequency_penalty=-1.0, top_p=0.8),
    greedy(8),
]


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_next"])
def test_neither_overlap_nor_preemption_nor_a_full_pool_changes_an_answer(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (history, pages, penalties):
        monkeypatch.setattr(module, "PAGE_TOKENS", 8)
    model, answers = family(name), {}
    sizes = {"alone": (1, 512), "together": (6, 512), "read at once": (6, 512), "tight": (6, 72), "no room": (6, 512)}
    for case, (max_batch, kv_tokens) in sizes.items():
        if case == "no room":
            monkeypatch.setattr(history, "pool_pages", lambda *_: 1)
        with model.engine(
            kv_tokens, max_batch=max_batch, max_batch_tokens=16, block_size=8, overlap=case != "read at once", **EAGER
        ) as engine:
            answers[case] = [one.tokens for one in engine.generate(PROMPTS, PARAMS)]
            assert case != "tight" or engine.figures.preemptions > 0
            assert nothing_is_held(engine)
    for case, tokens in answers.items():
        assert tokens == answers["alone"], case
    assert len(set(answers["alone"])) == len(answers["alone"])


def test_the_repetition_penalty_is_that_of_generate() -> None:
    model = family("llama")
    prompt, count = PROMPTS[2], 24
    ids = torch.tensor([prompt])
    wanted = model.reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        repetition_penalty=1.8,
    )[0, len(prompt) :].tolist()
    with model.engine(max_batch_tokens=13, max_batch=3) as engine:
        assert list(engine.generate([prompt], greedy(count, repetition_penalty=1.8))[0].tokens) == wanted
    assert wanted != model.greedy(prompt, count)


def test_a_step_with_penalties_is_not_waited_for() -> None:
    """The next step is launched before this one is read: a prompt of one step has no token after that step."""
    with family("llama").engine() as engine:
        engine.submit(PROMPTS[1], drawn(5, 1, repetition_penalty=1.5))
        assert [update.token for update in engine.step()] == []
        counts = [len(engine.step()) for _ in range(5)]
        assert counts == [1] * 5
        assert engine.idle
