"""Speculation changes no token: greedy and drawn answers are those of an engine without it, and of `generate`.

fp32 on the CPU, on the tiny models of `test_engine`. Their texts do not repeat themselves, so drafts come from a
proposer that knows the answers and is wrong every now and then, or from texts made to repeat.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from brim.engine.drafts.speculator import Speculator
from brim.engine.engine import Engine
from brim.engine.front.answers import Completion
from brim.engine.front.validation import GenerationRequest
from brim.engine.requests.request import FinishReason
from brim.engine.requests.sequence import Sequence as RunningSequence
from brim.engine.run.graphs import batch_sizes
from brim.engine.run.rows import LAST_DRAWN, DecodeRows
from brim.engine.run.runner import Runner
from brim.engine.schedule.audit import scheduler_problems
from brim.engine.stress.verifying import VERIFY
from brim.probes.cpu import CpuProbe
from brim.records.progress import silent
from brim.serving import fit_engine
from tests.integration import test_failed_steps as failed_steps
from tests.integration.faults import KINDS, Faults
from tests.integration.test_engine import (
    EAGER,
    FAMILIES,
    Family,
    drawn,
    family,
    greedy,
    nothing_is_held,
    prompts_of,
    run,
)
from tests.integration.tiny_models import VOCAB

SPECULATES: dict[str, Any] = {"speculate": "lookup", "speculate_max_weight": 1.0, "draft_tokens": 4}


@dataclass
class Remembered:
    """Drafts from answers that are known, with mistakes."""

    answers: Mapping[tuple[int, ...], Sequence[int]]
    numbers: random.Random = field(default_factory=lambda: random.Random(1))
    right: float = 0.8

    def has_one(self, sequence: RunningSequence) -> bool:
        return True

    def propose(self, depths: Mapping[RunningSequence, int]) -> dict[RunningSequence, tuple[int, ...]]:
        return {sequence: self._draft(sequence, depth) for sequence, depth in depths.items()}

    def _draft(self, sequence: RunningSequence, depth: int) -> tuple[int, ...]:
        coming = self.answers[sequence.request.prompt][sequence.generated : sequence.generated + depth]
        return tuple(token if self.numbers.random() < self.right else (token + 1) % VOCAB for token in coming)

    def is_predicted(self, sequence: RunningSequence) -> bool:
        return False

    def forget(self, sequence: RunningSequence) -> None:
        pass


def remembering(engine: Engine, answers: Mapping[tuple[int, ...], Sequence[int]], right: float = 0.8) -> Speculator:
    """Let an engine's drafts come from known answers."""
    speculator = engine.loop.speculator
    assert speculator is not None
    speculator._proposer = Remembered(answers, right=right)
    return speculator


def often_and_soaked(*often: str) -> list[Any]:
    """These families in every run, and all others in the long ones."""
    return [name if name in often else pytest.param(name, marks=pytest.mark.soak) for name in FAMILIES]


@pytest.mark.parametrize("name", often_and_soaked("gemma3_text", "qwen3_moe", "qwen3_next"))
def test_greedy_tokens_are_those_of_generate(name: str) -> None:
    model = family(name)
    prompts = prompts_of([3, 45, 17, 30])
    wanted = [model.greedy(prompt, 18) for prompt in prompts]
    with model.engine(max_batch_tokens=21, max_batch=3, **SPECULATES) as engine:
        answers = {tuple(prompt): answer for prompt, answer in zip(prompts, wanted, strict=True)}
        speculator = remembering(engine, answers)
        got = engine.generate(prompts, greedy(18))
        assert [list(one.tokens) for one in got] == wanted
        assert 0 < speculator.figures.accepted < speculator.figures.proposed
        assert engine.figures.drawn == 4 * 18
        assert engine.figures.steps < 40
        assert nothing_is_held(engine)
        assert scheduler_problems(engine.loop.scheduler) == []


@pytest.mark.parametrize("name", often_and_soaked("llama"))
def test_drawn_tokens_and_their_log_probabilities_are_those_without_speculation(name: str) -> None:
    """Also with a bias, with forks, and where a text may not end yet."""
    model = family(name)
    prompts = prompts_of([5, 30, 12], seed=3)
    params = [
        drawn(14, 7, top_p=0.9, logprobs=2),
        drawn(14, 8, top_k=20, n=2, logit_bias=((5, 2.0),)),
        greedy(14, logprobs=1, prompt_logprobs=1),
    ]
    with model.engine() as engine:
        plain = engine.generate(prompts, params)
    answers = {tuple(prompts[number]): plain[place].tokens for number, place in ((0, 0), (1, 1), (2, 3))}
    with model.engine(**SPECULATES) as engine:
        speculator = remembering(engine, answers, right=0.9)
        speculated = engine.generate(prompts, params)
        assert [one.tokens for one in speculated] == [one.tokens for one in plain]
        assert speculator.figures.accepted > 10
        for one, other in zip(speculated, plain, strict=True):
            for mine, its in ((one.logprobs, other.logprobs), (one.prompt_logprobs, other.prompt_logprobs)):
                assert [each.token for each in mine] == [each.token for each in its]
                assert [each.logprob for each in mine] == pytest.approx([each.logprob for each in its], abs=1e-4)
        assert nothing_is_held(engine)


def test_what_a_client_predicts_is_drafted_and_the_answer_is_the_same() -> None:
    model = family("llama")
    prompts = prompts_of([12, 9], seed=11)
    asked = [greedy(30), drawn(30, 4)]

    def answers(engine: Engine, predictions: Sequence[tuple[int, ...]]) -> list[Completion]:
        given = zip(prompts, asked, predictions, strict=True)
        names = [engine.submit_request(GenerationRequest(one, how, prediction=said)) for one, how, said in given]
        return [one for answers in run(engine, names).values() for one in answers]

    with model.engine() as engine:
        plain = answers(engine, [(), ()])
    right = tuple(plain[0].tokens)
    wrong = (*plain[1].tokens[:10], *prompts_of([6], seed=12)[0], *plain[1].tokens[12:])
    with model.engine(**SPECULATES) as engine:
        found = answers(engine, [right, wrong])
        assert [one.tokens for one in found] == [one.tokens for one in plain]
        assert engine.figures.steps < 30
        assert nothing_is_held(engine)
    assert (found[0].predicted_tokens, found[0].accepted_tokens >= 20) == (found[0].accepted_tokens, True)
    assert 0 < found[1].accepted_tokens < found[1].predicted_tokens
    with model.engine() as engine:  # without speculation it means nothing
        assert [(one.tokens, one.predicted_tokens) for one in answers(engine, [right, wrong])] == [
            (one.tokens, 0) for one in plain
        ]


def test_texts_that_repeat_themselves_are_found_again() -> None:
    """A model that says the same again and again, through prompt lookup from end to end."""
    model = family("llama")
    phrase = prompts_of([6], seed=5)[0]
    bias = tuple((token, 100.0) for token in phrase[:1])
    with model.engine() as engine:
        plain = engine.generate([phrase * 3], greedy(40, logit_bias=bias))
        steps = engine.figures.steps
    with model.engine(**SPECULATES) as engine:
        speculated = engine.generate([phrase * 3], greedy(40, logit_bias=bias))
        assert engine.figures.steps < steps / 2
    assert [one.tokens for one in speculated] == [one.tokens for one in plain]


def test_ends_are_found_inside_a_draft() -> None:
    """A stop token, the last token allowed, and one that may not end the text yet."""
    model = family("llama")
    prompt = prompts_of([9], seed=6)[0]
    answer = model.greedy(prompt, 18)
    stop = answer[9]
    first = answer.index(stop)
    with model.engine(**SPECULATES) as engine:
        remembering(engine, {tuple(prompt): answer}, right=1.0)
        (ended,) = engine.generate([prompt], greedy(18, stop_token_ids=(stop,)))
        assert (list(ended.tokens), ended.finish_reason) == (answer[: first + 1], FinishReason.STOP)
        (cut,) = engine.generate([prompt], greedy(8))
        assert (list(cut.tokens), cut.finish_reason) == (answer[:8], FinishReason.LENGTH)
        assert nothing_is_held(engine)
    with model.engine() as engine:
        plain = engine.generate([prompt], greedy(18, stop_token_ids=(stop,), min_tokens=14))
    with model.engine(**SPECULATES) as engine:
        remembering(engine, {tuple(prompt): plain[0].tokens}, right=1.0)
        assert engine.generate([prompt], greedy(18, stop_token_ids=(stop,), min_tokens=14))[0].tokens == plain[0].tokens


def example(model: Family, numbers: random.Random, *, tight: bool) -> tuple[int, int, int]:
    """Requests that come, share beginnings and are cancelled at random steps, in a pool that may be too small."""
    engine = model.engine(
        56 if tight else 256,
        max_batch=4,
        max_batch_tokens=numbers.choice([7, 16, 40]),
        overlap=numbers.random() < 0.7,
        **SPECULATES,
        **(EAGER if tight else {}),
    )
    prefixes, tails = [[], *prompts_of([16], seed=1)], prompts_of([1, 4, 11], seed=2)
    prompts = [numbers.choice(prefixes) + numbers.choice(tails) for _ in range(5)]
    answers = {tuple(prompt): model.greedy(prompt, 18) for prompt in prompts}
    speculator = remembering(engine, answers, right=numbers.choice([0.6, 0.9]))
    comes = dict(zip(sorted(numbers.sample(range(12), 5)), prompts, strict=True))
    wanted: dict[str, list[int]] = {}
    done = cancelled = 0
    for step in range(400):
        if step in comes:
            wanted[engine.submit(comes[step], greedy(18))] = answers[tuple(comes[step])]
        if wanted and numbers.random() < 0.04:
            cancelled += engine.cancel(numbers.choice(list(wanted)))
        if engine.idle and step > 12:
            break
        for update in engine.step():
            if update.completion is not None:
                assert list(update.completion.tokens) == wanted[update.request_id]
                done += 1
    assert engine.idle
    assert nothing_is_held(engine)
    assert scheduler_problems(engine.loop.scheduler) == []
    preemptions, accepted = engine.figures.preemptions, speculator.figures.accepted
    engine.close()
    return done, preemptions, accepted


@pytest.mark.parametrize("name", often_and_soaked("gemma3_text", "qwen3_next"))
def test_whatever_happens_around_it_a_request_gets_its_own_answer(name: str) -> None:
    numbers = random.Random(name)
    seen = [example(family(name), numbers, tight=number == 0) for number in range(2)]
    done, preemptions, accepted = (sum(column) for column in zip(*seen, strict=True))
    assert done > 6
    assert preemptions > 0 or name not in ("gemma3_text", "qwen3_next")  # windows leave room for others
    assert accepted > 10


@pytest.mark.parametrize("kind", [0, pytest.param(1, marks=pytest.mark.soak), pytest.param(2, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", often_and_soaked("llama"))
def test_a_failed_step_with_drafts_changes_no_answer(name: str, kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory, another error, an interrupt: at some of the points that steps come by."""
    undisturbed = failed_steps.text_load(name, kind).run(Faults())
    load, counted = failed_steps.text_load(name, kind, **SPECULATES), Faults()
    load.kv_tokens = 256
    prompts = [tuple(prompt) for _, prompt, *_ in load.requests]
    answers = {prompt: undisturbed[str(number)][0].tokens for number, prompt in enumerate(prompts)}
    monkeypatch.setattr("brim.engine.pool.build.PromptLookup", lambda: Remembered(answers, right=0.9))
    wanted = failed_steps.plain(load.run(counted))
    assert wanted == failed_steps.plain(undisturbed)
    assert load.engine.loop.speculator is not None
    assert load.engine.loop.speculator.figures.accepted > 0
    at = random.Random(name).sample(range(1, counted.points), 8)
    failed_steps.disturb(load, wanted, counted.points, at, KINDS[kind])
    assert scheduler_problems(load.engine.loop.scheduler) == []


class EagerGraphs:
    """Stands for captured graphs: runs what they would have captured, padded as they are."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.with_drafts = 0

    def replay(self, rows: DecodeRows, staging: Any) -> torch.Tensor:
        size = next(size for size in batch_sizes(self.runner.shape.most_decode_rows) if size >= len(rows))
        padding = size - len(rows)
        self.with_drafts += len(set(rows.slots.tolist())) < len(rows)
        inputs = ((rows.slots, self.runner.scratch_slot), (rows.lengths, 1), (rows.tokens, LAST_DRAWN))
        padded = [torch.from_numpy(np.concatenate([values, [fill] * padding])) for values, fill in inputs]
        return self.runner.decode_logits(*padded)[: len(rows)]


@pytest.mark.parametrize("name", often_and_soaked("gemma3_text"))
def test_steps_with_drafts_run_in_the_graphs_of_decodes(name: str) -> None:
    """Those of recurrent models do not: their states pass through the tokens one after the other."""
    model = family(name)
    prompts = prompts_of([3, 30], seed=9)
    wanted = [model.greedy(prompt, 18) for prompt in prompts]
    with model.engine(**SPECULATES) as engine:
        runner = engine.model.runner
        graphs = EagerGraphs(runner)
        runner.memory.graphs = graphs  # type: ignore[assignment]
        remembering(engine, {tuple(prompt): answer for prompt, answer in zip(prompts, wanted, strict=True)})
        assert [list(one.tokens) for one in engine.generate(prompts, greedy(18))] == wanted
        assert (graphs.with_drafts > 3) == (not runner.has_states)


@pytest.mark.parametrize("name", often_and_soaked("qwen3_next"))
def test_the_largest_steps_with_drafts_are_run_before_serving(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = family(name)
    prompts = prompts_of([5, 9], seed=8)
    wanted = [model.greedy(prompt, 18) for prompt in prompts]
    with model.engine(max_batch_tokens=40, **{**SPECULATES, "speculate_max_batch": 3}) as engine:
        runner, plans = engine.model.runner, []
        launch = runner.launch
        monkeypatch.setattr(runner, "launch", lambda plan, ledger: (plans.append(plan), launch(plan, ledger))[1])
        shapes = [shape for shape in engine.stress_shapes() if shape.name == VERIFY]
        for shape in shapes:
            engine.stress(shape)
        assert [(plan.tokens, plan.decode_rows, len(plan.chunks)) for plan in plans] == [(15, 15, 0), (40, 15, 1)]
        assert [shape.tokens for shape in shapes] == [15, 40]
        learned = [step for step in engine.scaling_steps().steps if step.stress.name == VERIFY]
        assert [(step.shape.batch, step.shape.tokens) for step in learned] == [(15, 15)]
        engine.worst_steps.warm_up(engine.loop.scheduler.ledger, silent)
        assert any(plan.drafts for plan in plans[2:])
        assert nothing_is_held(engine)
        remembering(engine, {tuple(prompt): answer for prompt, answer in zip(prompts, wanted, strict=True)})
        assert [list(one.tokens) for one in engine.generate(prompts, greedy(18))] == wanted
        assert all(plan.decode_rows <= 15 for plan in plans)


def test_without_speculation_there_are_no_such_steps() -> None:
    with family("llama").engine() as engine:
        assert VERIFY not in {shape.name for shape in engine.stress_shapes()}


def test_after_a_fit_a_batch_is_weighed_in_bytes() -> None:
    probe = CpuProbe(2**24)
    prompt = prompts_of([12], seed=8)[0]
    engine = family("llama").engine(0, probe=probe, max_batch=2, max_length=64, **SPECULATES)
    report = fit_engine(engine, probe=probe, canary_bytes=2**16)
    with engine:
        assert report.scaling is not None
        remembering(engine, {tuple(prompt): family("llama").greedy(prompt, 18)})
        assert list(engine.generate([prompt], greedy(18))[0].tokens) == family("llama").greedy(prompt, 18)
        speculator = engine.loop.speculator
        assert speculator is not None
        assert speculator.figures.accepted > 0
        held = engine.kv_bytes(32)  # blocks of the whole text
        assert held < speculator.gate.weight * report.scaling.limit_bytes < report.scaling.limit_bytes


def test_a_batch_above_the_limit_is_not_speculated_for() -> None:
    model = family("llama")
    prompts = prompts_of([4, 5, 6], seed=8)
    answers = {tuple(prompt): model.greedy(prompt, 18) for prompt in prompts}
    with model.engine(**{**SPECULATES, "speculate_max_batch": 2}) as engine:
        speculator = remembering(engine, answers, right=1.0)
        got = engine.generate(prompts, [greedy(6), greedy(6), greedy(18)])
        assert [list(one.tokens) for one in got] == [
            answers[tuple(prompt)][:count] for prompt, count in zip(prompts, (6, 6, 18), strict=True)
        ]
        assert speculator.figures.closed_for_batch == 1
        assert 0 < speculator.figures.accepted <= 12  # only when the last was alone: the limit must be undercut


def test_a_request_may_ask_not_to_be_speculated_for() -> None:
    model = family("llama")
    prompt = prompts_of([4], seed=8)[0]
    with model.engine(**SPECULATES) as engine:
        speculator = remembering(engine, {tuple(prompt): model.greedy(prompt, 18)})
        name = engine.submit(prompt, greedy(18, speculate=False))
        assert list(run(engine, [name])[name][0].tokens) == model.greedy(prompt, 18)
        assert speculator.figures.proposed == 0
