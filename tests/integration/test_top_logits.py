"""`top_k_logits`: the largest logits of every generated token, against a forward of the whole text by the class."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from brim.engine.front.answers import Completion
from brim.errors import InvalidRequest
from tests.integration.test_engine import Family, drawn, family, greedy, prompts_of, run
from tests.integration.test_speculation import SPECULATES, remembering
from tests.integration.tiny_models import VOCAB


def logits_of(model: Family, tokens: list[int]) -> torch.Tensor:
    """What the class itself says of every position."""
    with torch.no_grad():
        return model.reference(torch.tensor([tokens]), use_cache=False).logits[0].float()


def assert_kept(one: Completion, model: Family, prompt: list[int], count: int) -> None:
    """Those of each token are the largest of the class's own, and so is their normaliser."""
    kept = one.top_logits
    assert kept is not None
    assert kept.logits.shape == kept.tokens.shape == (len(one.tokens), count)
    assert (kept.logits.dtype, kept.tokens.dtype) == (np.float32, np.int32)
    wanted = logits_of(model, [*prompt, *one.tokens])[len(prompt) - 1 : -1]
    top = wanted.topk(count)
    np.testing.assert_allclose(kept.logits, top.values.numpy(), atol=2e-3)
    np.testing.assert_allclose(np.take_along_axis(wanted.numpy(), kept.tokens, 1), kept.logits, atol=2e-3)
    np.testing.assert_allclose(kept.log_normaliser, wanted.logsumexp(-1).numpy(), atol=2e-3)


@pytest.mark.parametrize("name", ["llama", "gemma2", "cohere2"])
def test_logits_are_those_of_the_class(name: str) -> None:
    """Scaled and capped as the class does it, whatever a request asks of the sampler, beside others that keep none."""
    model = family(name)
    prompts = prompts_of([9, 21, 5, 13])
    params = [
        greedy(6, top_k_logits=5),
        greedy(6),
        drawn(6, 3, top_k_logits=2, logit_bias=((4, 5.0),), repetition_penalty=1.3, logprobs=3, n=2),
        greedy(6, top_k_logits=VOCAB),
    ]
    with model.engine() as engine:
        first, plain, one, two, whole = engine.generate(prompts, params)
    assert plain.top_logits is None
    for answer, prompt, count in ((first, 0, 5), (one, 2, 2), (two, 2, 2), (whole, 3, VOCAB)):
        assert_kept(answer, model, prompts[prompt], count)
    assert first.top_logits is not None
    assert first.top_logits.tokens[:, 0].tolist() == list(first.tokens)


def test_updates_carry_a_row_of_their_own() -> None:
    prompt = prompts_of([7])[0]
    with family("llama").engine() as engine:
        engine.submit(prompt, greedy(4, top_k_logits=3))
        updates = []
        while not engine.idle:
            updates += [update for update in engine.step() if update.token is not None]
    rows = [update.top_logits for update in updates]
    done = updates[-1].completion
    assert done is not None
    assert done.top_logits is not None
    assert all(row is not None and row.logits.shape == (1, 3) and row.logits.base is None for row in rows)
    np.testing.assert_array_equal(np.concatenate([row.logits for row in rows if row]), done.top_logits.logits)


def test_drafted_tokens_that_stand_have_the_logits_of_others() -> None:
    model = family("llama")
    prompts = prompts_of([5, 30], seed=3)
    params = [greedy(14, top_k_logits=4), drawn(14, 8)]
    with model.engine() as engine:
        plain = engine.generate(prompts, params)
    answers = {tuple(prompt): one.tokens for prompt, one in zip(prompts, plain, strict=True)}
    with model.engine(**SPECULATES) as engine:
        speculator = remembering(engine, answers)
        speculated = engine.generate(prompts, params)
        assert speculator.figures.accepted > 5
    assert speculated[0].tokens == plain[0].tokens
    assert_kept(speculated[0], model, prompts[0], 4)
    assert speculated[1].top_logits is None


def test_a_request_that_wants_too_many_is_refused_at_the_door() -> None:
    with family("llama").engine() as engine:
        with pytest.raises(InvalidRequest, match=f"top_k_logits is {VOCAB + 1}; it must be at most the size of the"):
            engine.submit([1, 2], replace(greedy(2), top_k_logits=VOCAB + 1))
        mine = engine.submit([1, 2], greedy(2, top_k_logits=1))
        found: dict[str, Any] = run(engine, [mine])
        assert found[mine][0].top_logits.logits.shape == (2, 1)
