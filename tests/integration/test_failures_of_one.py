"""What fails for one request, or for one call, stays there: others get their answers, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from brim.engine.injection import failing_launches
from brim.engine.requests.request import FinishReason
from brim.engine.schedule.plan import StepPlan
from brim.engine.weights.builtin import ByteTokenizer
from tests.integration.faults import Injected, other
from tests.integration.test_engine import family, greedy, nothing_is_held, prompts_of

PROMPTS = prompts_of([5, 12, 9], seed=11)


class Choosy(ByteTokenizer):
    """Cannot decode some token."""

    def __init__(self, refused: int) -> None:
        self.refused = refused

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        if self.refused in tokens:
            raise ValueError(f"token {self.refused} is not text")
        return super().decode(tokens, skip_special_tokens)


def test_a_text_that_cannot_be_decoded_ends_its_own_answer_alone() -> None:
    model = family("llama")
    wanted = [model.greedy(prompt, 10) for prompt in PROMPTS]
    refused = next(token for token in wanted[1] if token not in (*wanted[0], *wanted[2]))
    with model.engine(tokenizer=Choosy(refused)) as engine:
        answers = engine.generate(PROMPTS, greedy(10))
        assert [list(answers[number].tokens) for number in (0, 2)] == [wanted[0], wanted[2]]
        assert [answers[number].finish_reason for number in (0, 2)] == [FinishReason.LENGTH] * 2
        failed = answers[1]
        assert failed.finish_reason is FinishReason.ERROR
        assert failed.error is not None
        assert f"token {refused} is not text" in failed.error
        assert list(failed.tokens) == wanted[1][: wanted[1].index(refused)]
        assert nothing_is_held(engine)
        assert engine.idle


@pytest.mark.parametrize("failing_step", [0, 1, 4])
def test_generate_cleans_up_and_the_engine_goes_on(failing_step: int) -> None:
    model = family("gemma3_text")
    with model.engine() as engine:
        left = [failing_step]

        def failing(plan: StepPlan) -> None:
            if not left[0]:
                other()
            left[0] -= 1

        with failing_launches(engine, failing), pytest.raises(Injected):
            engine.generate(PROMPTS, greedy(10))
        while not engine.idle:
            engine.step()  # what was launched is read
        assert nothing_is_held(engine)
        answers = engine.generate(PROMPTS, greedy(10))
        assert [list(one.tokens) for one in answers] == [model.greedy(prompt, 10) for prompt in PROMPTS]


def test_generate_ends_when_somebody_else_cancels() -> None:
    with family("llama").engine() as engine:
        seen: list[int] = []

        def cancel(done: int, total: int) -> None:
            seen.append(done)
            for request_id in engine.request_ids:
                engine.cancel(request_id)

        params = [greedy(2), greedy(30), greedy(30)]
        answers = engine.generate(PROMPTS, params, progress=cancel)
        assert len(answers) == len(seen) == 1


def test_what_is_left_of_a_cancelled_request_is_not_given_to_the_next_of_its_id() -> None:
    model = family("llama")
    with model.engine() as engine:
        engine.submit(PROMPTS[0], greedy(10), request_id="same", deadline_seconds=1e-9)
        engine.submit(PROMPTS[1], greedy(10))
        with failing_launches(engine, lambda plan: other()), pytest.raises(Injected):
            engine.step()  # it has ended, and nobody has been told
        assert engine.cancel("same")
        engine.submit(PROMPTS[2], greedy(4), request_id="same")
        updates = [update for _ in range(30) if not engine.idle for update in engine.step()]
        (done,) = [one.completion for one in updates if one.request_id == "same" and one.completion is not None]
        assert (list(done.tokens), done.finish_reason) == (model.greedy(PROMPTS[2], 4), FinishReason.LENGTH)


def test_a_callback_that_raises_leaves_nothing_behind() -> None:
    def broken(done: int, total: int) -> None:
        raise Injected("the caller's own")

    with family("llama").engine() as engine:
        with pytest.raises(Injected):
            engine.generate(PROMPTS, greedy(3), progress=broken)
        while not engine.idle:
            engine.step()
        assert nothing_is_held(engine)
        assert not engine.request_ids
