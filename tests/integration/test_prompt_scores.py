"""Log-probabilities of prompts through the engine: bounded, right for every kind of head, and known to plan and fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from brim.engine.engine import Engine
from brim.engine.requests.params import SamplingParams
from brim.engine.run.scoring.prompts import PromptScorer, scored_runs
from brim.engine.settings import EngineSettings
from brim.engine.stress.text import SCORES
from brim.engine.weights.head import find_head
from brim.engine.weights.load import load
from brim.engine.weights.text_model import TextModel
from brim.errors import InvalidRequest
from brim.predictions import traced_steps
from brim.probes.cpu import CpuProbe
from brim.units import MIB
from tests.integration.test_engine import family, greedy, prompts_of
from tests.integration.tiny_models import VOCAB, tiny_config

if TYPE_CHECKING:
    import torch


# scale, cap, whether there is a bias, whether hidden states are changed first
FORMS: dict[str, tuple[dict[str, Any], tuple[float, float | None, bool, bool]]] = {
    "llama": ({}, (1.0, None, False, False)),
    "gemma2": ({"final_logit_softcapping": 7.5}, (1.0, 7.5, False, False)),
    "gemma3_text": ({"final_logit_softcapping": 12.0}, (1.0, 12.0, False, False)),
    "granite": ({"logits_scaling": 8.0}, (0.125, None, False, False)),
    "cohere2": ({"logit_scale": 0.25}, (0.25, None, False, False)),
    "phi": ({}, (1.0, None, True, False)),
    "minicpm3": ({}, (1.0, None, False, True)),
    "opt": ({}, (1.0, None, False, False)),
}


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_what_a_class_does_around_its_head_is_found(kind: str, dtype: str) -> None:
    changes, (scale, cap, bias, copies) = FORMS[kind]
    config = tiny_config(kind, **changes)
    head = find_head(TextModel(load(config, load_format="dummy", dtype=dtype, attention="eager").model))
    assert head is not None
    assert head.scale == pytest.approx(scale, rel=1e-6)
    assert head.cap == (None if cap is None else pytest.approx(cap, rel=1e-6))
    assert ((head.bias is not None), head.copies_input) == (bias, copies)


def test_a_head_that_does_more_is_computed_whole() -> None:
    """A class that bans a token, and one whose head is no plain layer."""
    model = load(tiny_config("llama"), load_format="dummy", dtype="fp32").model
    own = type(model).forward

    def without_token_5(*args: Any, **kwargs: Any) -> Any:
        output = own(model, *args, **kwargs)
        output.logits[..., 5] = -100.0
        return output

    model.forward = without_token_5
    assert find_head(TextModel(model)) is None
    del model.forward
    assert find_head(TextModel(model)) is not None
    model.lm_head.register_forward_hook(lambda module, given, output: output)
    assert find_head(TextModel(model)) is None


@pytest.mark.parametrize("name", ["gemma2", "cohere2"])
def test_ranks_and_scores_are_those_of_whole_logits(name: str) -> None:
    """Several prompts at once, of which one does not ask, in chunks, within the least memory."""
    model = family(name)
    prompts = prompts_of([30, 11, 7, 19])
    params = [greedy(1, prompt_logprobs=3), greedy(1, prompt_logprobs=0), greedy(1), greedy(1, prompt_logprobs=20)]
    with model.engine(scoring_memory=MIB) as engine:
        answers = engine.generate(prompts, params)
    for prompt, one, asked in zip(prompts, answers, params, strict=True):
        if asked.prompt_logprobs is None:
            assert one.prompt_logprobs == ()
            continue
        scores = model.log_probabilities(prompt)
        assert [each.token for each in one.prompt_logprobs] == prompt[1:]
        for place, each in enumerate(one.prompt_logprobs):
            own = scores[place, each.token]
            assert each.logprob == pytest.approx(float(own), abs=1e-4)
            assert int((scores[place] > own + 1e-4).sum()) < each.rank <= int((scores[place] > own - 1e-4).sum())
            top = scores[place].topk(asked.prompt_logprobs).values.tolist()
            assert [value for _, value in each.top] == pytest.approx(top, abs=1e-4)


def test_whole_rows_and_pieces_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a head that is split over ranks: few rows at a time."""
    prompts, params = prompts_of([30, 11]), greedy(1, prompt_logprobs=4)
    with family("gemma2").engine() as engine:
        pieces = engine.generate(prompts, params)
    monkeypatch.setattr("brim.engine.model.find_head", lambda text_model: None)
    with family("gemma2").engine() as engine:
        scorer = engine.model.runner.scorer
        assert scorer.whole_rows == 64 * MIB // (VOCAB * (4 * 4 + 13))
        scorer.whole_rows = 4
        whole = engine.generate(prompts, params)
    for one, other in zip(pieces, whole, strict=True):
        for mine, its in zip(one.prompt_logprobs, other.prompt_logprobs, strict=True):
            assert (mine.token, mine.rank) == (its.token, its.rank)
            assert mine.logprob == pytest.approx(its.logprob, abs=1e-4)


@pytest.fixture(scope="module")
def wide() -> Iterator[Engine]:
    """A model with a large vocabulary and nothing else."""
    config = tiny_config("llama", vocab_size=40_000, tie_word_embeddings=True)
    settings = EngineSettings(max_batch=2, max_batch_tokens=128, max_length=256, scoring_memory=2 * MIB)
    options: dict[str, Any] = {"load_format": "dummy", "dtype": "fp32", "device": "cpu", "kv_tokens": 512}
    with Engine(config, settings=settings, probe=CpuProbe(1 << 31), **options) as engine:
        yield engine


def test_a_long_prompt_of_a_large_vocabulary_stays_within_the_bound(wide: Engine) -> None:
    """Whole logits of one step would take 20 MB."""
    probe = wide.probe
    wide.generate([list(range(1, 120))], SamplingParams(max_tokens=1, temperature=0))
    probe.reset_peak()
    before = probe.reading().allocated_bytes
    wide.generate([list(range(500, 620))], SamplingParams(max_tokens=1, temperature=0))
    plain = probe.reading().peak_allocated_bytes - before
    probe.reset_peak()
    scored = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=20)
    wide.generate([list(range(1000, 1120))], scored)
    assert probe.reading().peak_allocated_bytes - before <= plain + 2 * MIB


def test_the_worst_step_with_scores_is_foretold(wide: Engine) -> None:
    """The trace of the step on the meta device, with the scratch of a GPU's kernels, beside what the step takes."""
    shape = next(shape for shape in wide.stress_shapes() if shape.name == SCORES)
    predicted = traced_steps(wide, [shape])[0]
    probe = wide.probe
    wide.stress(shape)
    probe.reset_peak()
    before = probe.reading().allocated_bytes
    wide.stress(shape)
    measured = probe.reading().peak_allocated_bytes - before
    assert measured > MIB // 4
    assert measured <= predicted <= measured + 3 * MIB  # its prompts sample too: a GPU's sort has scratch


def test_a_bound_that_is_none_is_refused() -> None:
    for memory in (0, MIB - 1, 1.5):
        with pytest.raises(InvalidRequest, match=r"^scoring_memory is .*; it must be an integer from 1048576 to"):
            EngineSettings(scoring_memory=memory)  # type: ignore[arg-type]


def test_chunks_that_follow_each_other_are_scored_together(wide: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass over the head for the prompts of a step."""
    runs = []
    real = PromptScorer.score

    def noted(scorer: PromptScorer, plan: Any, hidden: torch.Tensor, staging: Any) -> Any:
        runs.append([(run.start, len(run.targets), run.alternatives) for run in scored_runs(plan)])
        return real(scorer, plan, hidden, staging)

    monkeypatch.setattr(PromptScorer, "score", noted)
    params = [SamplingParams(max_tokens=1, prompt_logprobs=count) for count in (2, 5)]
    first, second = wide.generate([list(range(20)), list(range(30))], params)
    assert runs == [[(0, 49, 5)]]
    assert [len(one.prompt_logprobs) for one in (first, second)] == [19, 29]
    assert {len(each.top) for each in first.prompt_logprobs} == {2}
