"""A draft model beside a large one: the same tokens as without it, whatever it drafts, and nothing is left behind."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from brim.engine.drafts.draft_model import DraftModel
from brim.engine.engine import Engine
from brim.engine.settings import EngineSettings
from brim.engine.weights.load import LoadedModel, load
from brim.errors import InvalidRequest, OutOfMemory
from brim.probes.cpu import CpuProbe
from brim.records.memory import StressKind
from tests.integration.allocation_sites import SiteProbe
from tests.integration.faults import out_of_memory
from tests.integration.test_engine import EAGER, drawn, family, greedy, nothing_is_held, prompts_of
from tests.integration.tiny_models import tiny_config

GIB = 2**30


def twin(name: str, noise: float = 0.0) -> LoadedModel:
    """A draft that is the model itself, or nearly so."""
    model = copy.deepcopy(family(name).reference)
    numbers = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += noise * weight.std() * torch.randn(weight.shape, generator=numbers) if noise else 0
    return replace(family(name).loaded, model=model)


def engine_of(name: str, draft: LoadedModel | None, kv_tokens: int = 512, **settings: Any) -> Engine:
    chosen = {"max_batch": 4, "max_batch_tokens": 24, "block_size": 8, "draft_tokens": 4, **settings}
    if draft is not None:
        chosen |= {"speculate_max_weight": 1.0}
    return Engine(
        family(name).loaded, draft=draft, kv_tokens=kv_tokens, settings=EngineSettings(**chosen), device="cpu"
    )


def model_of(engine: Engine) -> DraftModel:
    assert engine.loop.speculator is not None
    model = engine.loop.speculator._proposer
    assert isinstance(model, DraftModel)
    return model


def nothing_is_followed(engine: Engine) -> bool:
    """All blocks of the draft's pool are free when it has heard who has ended."""
    model = model_of(engine)
    assert engine.loop.speculator is not None
    engine.loop.speculator._forget_ended()
    return [pool.held for pool in model._ledger.pools] == [0] * len(model._ledger.pools)


@pytest.mark.parametrize("name", ["gemma3_text", pytest.param("llama", marks=pytest.mark.soak)])
def test_a_draft_of_the_same_weights_is_always_right(name: str) -> None:
    """Its prompts are computed over several steps; windows move on; then every token stands."""
    model = family(name)
    prompts = prompts_of([3, 45, 17])
    with engine_of(name, twin(name)) as engine:
        got = engine.generate(prompts, greedy(18))
        assert [list(one.tokens) for one in got] == [model.greedy(prompt, 18) for prompt in prompts]
        figures = engine.figures.speculation
        assert figures is not None
        assert figures.accepted == figures.proposed > 30
        assert engine.figures.steps < 20
        assert nothing_is_held(engine)
        assert nothing_is_followed(engine)


@pytest.mark.parametrize("noise", [0.05, pytest.param(1.0, marks=pytest.mark.soak)])
def test_whatever_it_drafts_the_tokens_are_the_same(noise: float) -> None:
    """Requests that come and are cancelled at random steps, drawn and greedy, in pools that may be too small."""
    numbers = random.Random(f"draft {noise}")
    draft = twin("llama", noise)
    prompts = prompts_of([2, 7, 30, 12, 5], seed=4)
    params = [greedy(16), drawn(16, 3, top_p=0.9), greedy(9, logprobs=1), drawn(12, 4, n=2), greedy(16)]
    with engine_of("llama", None) as engine:
        wanted = [engine.generate([prompt], one)[0].tokens for prompt, one in zip(prompts, params, strict=True)]
    accepted = 0
    for kv_tokens in (72, 512):
        engine = engine_of("llama", draft, kv_tokens, **EAGER)
        asked: dict[str, int] = {}
        finished = 0
        for step in range(300):
            if step < 2 * len(prompts) and step % 2 == 0:
                asked[engine.submit(prompts[step // 2], params[step // 2])] = step // 2
            if numbers.random() < 0.03:
                engine.cancel(numbers.choice(list(asked)))
            if engine.idle and step > 2 * len(prompts):
                break
            for update in engine.step():
                if update.completion is not None and update.index == 0:
                    assert update.completion.tokens == wanted[asked[update.request_id]]
                    finished += 1
        assert engine.idle
        assert finished >= 3
        assert nothing_is_held(engine)
        assert nothing_is_followed(engine)
        assert engine.figures.speculation is not None
        accepted += engine.figures.speculation.accepted
        engine.close()
    assert (accepted > 20) == (noise < 1)


def test_the_two_trained_models_agree_on_most_tokens() -> None:
    texts = ["Repeat this: the cat sat on the mat and the dog ran to the park", "What is 3 plus 4?"]
    settings = EngineSettings(max_batch=4, max_length=256)
    answers = []
    for draft in (None, "brim-tiny-draft"):
        with Engine("brim-tiny", draft=draft, kv_tokens=2048, settings=settings, device="cpu", dtype="fp32") as engine:
            answers.append([one.tokens for one in engine.generate(texts, [greedy(24), drawn(24, 1, temperature=0.5)])])
            figures = engine.figures
    assert answers[0] == answers[1]
    assert figures.speculation is not None
    assert figures.speculation.rate > 0.3
    assert figures.steps < 40


def test_a_draft_that_runs_out_of_memory_costs_its_drafts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = prompts_of([3, 20], seed=5)
    with engine_of("llama", twin("llama")) as engine:
        runner = model_of(engine)._runner
        launch, calls = runner.launch, []

        def failing(plan: Any, ledger: Any) -> Any:
            calls.append(plan)
            return launch(plan, ledger) if len(calls) != 5 else out_of_memory()

        monkeypatch.setattr(runner, "launch", failing)
        got = engine.generate(prompts, greedy(18))
        assert [list(one.tokens) for one in got] == [family("llama").greedy(prompt, 18) for prompt in prompts]
        assert len(calls) == 5
        assert engine.health.rescues == 1
        figures = engine.figures.speculation
        assert figures is not None
        assert figures.closed_for_memory == 1
        assert nothing_is_followed(engine)


def test_its_pool_and_its_steps_are_built_stressed_and_counted() -> None:
    probe = CpuProbe(GIB)
    sizes = {}
    for name, draft in (("plain", None), ("drafted", twin("llama"))):
        engine = engine_of("llama", draft, kv_tokens=0)
        engine.probe = probe
        before = probe.reading().allocated_bytes
        engine.build(256)
        taken = probe.reading().allocated_bytes - before
        sizes[name] = taken, engine.figures.kv_bytes, engine.figures.weight_bytes
        assert (StressKind.DRAFT in {shape.name for shape in engine.stress_shapes()}) == (draft is not None)
        for shape in engine.stress_shapes():
            engine.stress(shape)
        assert nothing_is_held(engine)
        prompt = prompts_of([9])[0]
        assert list(engine.generate([prompt], greedy(8))[0].tokens) == family("llama").greedy(prompt, 8)
        engine.teardown()
        assert probe.reading().allocated_bytes - before == 0
        engine.close()
    assert sizes["drafted"][1] == 2 * sizes["plain"][1]  # a twin
    assert sizes["drafted"][0] - sizes["plain"][0] > sizes["plain"][1]
    assert sizes["drafted"][2] == 2 * sizes["plain"][2]


@pytest.mark.parametrize(
    ("kind", "changes", "says"),
    [
        ("llama", {"vocab_size": 77}, "its vocabulary has 77 tokens and the model's"),
        ("llama", {"max_position_embeddings": 16}, "it was made for 16 positions and requests may have"),
        ("qwen3_next", {}, "it has recurrent layers"),
    ],
)
def test_a_draft_that_cannot_be_one_is_refused(kind: str, changes: dict[str, Any], says: str) -> None:
    draft = load(tiny_config(kind, **changes), load_format="dummy", dtype="fp32")
    with pytest.raises(InvalidRequest, match=f"draft: {says}.*; choose"):
        engine_of("llama", draft)


def test_a_draft_of_another_tokenizer_is_refused() -> None:
    from brim.engine.drafts.checks import check_draft

    class Words:
        def __init__(self, *words: str) -> None:
            self.words = words

        def get_vocab(self) -> dict[str, int]:
            return {word: number for number, word in enumerate(self.words)}

    loaded = family("llama").loaded
    padded = replace(loaded, vocab=loaded.vocab + 64)
    check_draft(padded, loaded, 16, False, (Words("a", "b"), Words("a", "b")))
    with pytest.raises(InvalidRequest, match="the word 'b' is 2, and 1 in the model's"):
        check_draft(loaded, loaded, 16, False, (Words("a", "c", "b"), Words("a", "b", "c")))
    with pytest.raises(InvalidRequest, match="3 words, and the model's has 2"):
        check_draft(loaded, loaded, 16, False, (Words("a", "c", "b"), Words("a", "b")))


def test_settings_that_contradict_a_draft_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="speculate is 'lookup', which needs none"):
        engine_of("llama", twin("llama"), speculate="lookup")
    with pytest.raises(InvalidRequest, match="no draft model is named"):
        engine_of("llama", None, speculate="draft")


def test_out_of_memory_while_it_is_built_leaves_nothing_behind() -> None:
    probe = CpuProbe(GIB)
    engine = engine_of("llama", twin("llama"), kv_tokens=0, host_memory=0)  # what it cannot measure it does without
    engine.probe = probe
    engine.build(128)
    allocations = probe.allocations
    engine.teardown()
    empty = probe.reading().allocated_bytes
    for number in random.Random(1).sample(range(1, allocations), 2):
        probe.allocations, probe.fail_at = 0, number
        with pytest.raises(OutOfMemory):
            engine.build(128)
        assert probe.reading().allocated_bytes == empty


@pytest.mark.soak
def test_a_refused_allocation_changes_no_answer() -> None:
    """Of the draft model or of the large one, at any place: drafts are lost, and no request."""
    probe = SiteProbe(GIB)
    engine = engine_of("llama", twin("llama"), kv_tokens=0)
    engine.probe = probe
    prompts = prompts_of([3, 20, 9], seed=5)
    wanted = [family("llama").greedy(prompt, 18) for prompt in prompts]

    def answers(fail_at: int | None) -> list[list[int]]:
        engine.teardown()
        probe.hold_canary(0)
        engine.build(512)
        probe.hold_canary(2**18)
        probe.allocations, probe.fail_at = 0, fail_at
        got = engine.generate(prompts, greedy(18))
        probe.fail_at = None
        assert nothing_is_held(engine)
        return [list(one.tokens) for one in got]

    assert answers(None) == wanted
    for allocation in random.Random(1).sample(range(1, probe.allocations), 60):
        assert answers(allocation) == wanted
        health = engine.health
        assert (health.rescues, health.ended_requests, health.rebuilds) == (1, 0, 0)
    engine.close()
