"""Tokens from logits, held against a slow reference in numpy and against transformers."""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.engine.requests.params import SamplingParams

torch = pytest.importorskip("torch")

from brim.engine.run.sampling import sampler  # noqa: E402
from brim.engine.run.sampling.sampler import SampleRow, sample, uniform  # noqa: E402
from brim.engine.run.scoring.whole_rows import prompt_logprobs  # noqa: E402

VOCAB = 97


def some_logits(rows: int, vocab: int = VOCAB, seed: int = 0, scale: float = 3.0) -> Any:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def reference_probabilities(logits: np.ndarray, row: SampleRow) -> np.ndarray:
    """The distribution a token is drawn from: float64, one token after the other, no cleverness."""
    params = row.params
    scores = logits.astype(np.float64)
    for token, bias in params.logit_bias:
        scores[token] += bias
    if params.repetition_penalty != 1:
        for token in {*row.prompt, *row.output}:
            if scores[token] < 0:
                scores[token] *= params.repetition_penalty
            else:
                scores[token] /= params.repetition_penalty
    for token in set(row.output):
        scores[token] -= params.presence_penalty + params.frequency_penalty * list(row.output).count(token)
    if row.index < params.min_tokens:
        scores[[*row.eos_ids, *params.stop_token_ids]] = -np.inf
    if params.greedy:
        return np.eye(len(scores))[scores.argmax()]
    scores = scores / params.temperature
    order = np.argsort(-scores, kind="stable")
    kept = list(order[: params.top_k or len(order)])
    odds = np.exp(scores[kept] - scores.max())
    odds /= odds.sum()
    before = np.concatenate([[0.0], np.cumsum(odds)[:-1]])
    kept = [token for token, mass in zip(kept, before, strict=True) if mass < params.top_p]
    weights = np.zeros(len(scores))
    weights[kept] = np.exp(scores[kept] - scores.max())
    weights[weights < params.min_p] = 0
    return weights / weights.sum()


def reference_token(logits: np.ndarray, row: SampleRow) -> int:
    running = np.cumsum(reference_probabilities(logits, row))
    return int(np.searchsorted(running, uniform(row.seed, row.index) * running[-1], side="right"))


def tokens_of(logits: Any, rows: list[SampleRow], rows_at_once: int = 64) -> list[int]:
    return sample(logits, rows, rows_at_once).tokens.tolist()


KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "repetition_penalty": 1.5},
    {},
    {"temperature": 0.3},
    {"temperature": 7.5},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 10_000},
    {"top_p": 0.7},
    {"top_p": 1e-6},
    {"min_p": 0.2},
    {"top_k": 8, "top_p": 0.8, "min_p": 0.05, "temperature": 0.7},
    {"presence_penalty": 1.5, "frequency_penalty": -0.5, "top_p": 0.9},
    {"repetition_penalty": 0.5, "top_k": 20},
    {"logit_bias": ((3, 50.0), (4, -100.0), (5, 50.0))},
    {"min_tokens": 3, "stop_token_ids": (7, 8), "logit_bias": ((7, 60.0), (2, 60.0))},
    {"logprobs": 3, "top_p": 0.5, "repetition_penalty": 3.0},
]


def mixed_rows(count: int) -> list[SampleRow]:
    return [
        SampleRow(
            params=SamplingParams(**KINDS[number % len(KINDS)]),
            seed=number * 31,
            index=number % 5,
            prompt=[number % VOCAB, 5, 5, 6],
            output=[(number * 3) % VOCAB, 9, 9, 9],
            eos_ids=(2,),
        )
        for number in range(count)
    ]


def test_every_kind_of_row_agrees_with_the_reference() -> None:
    rows = mixed_rows(len(KINDS) * 30)
    logits = some_logits(len(rows))
    expected = [reference_token(line, row) for line, row in zip(logits.numpy(), rows, strict=True)]
    assert tokens_of(logits, rows) == expected
    assert len(set(expected)) > 30


@pytest.mark.parametrize("vocab", [1500, 3000])
def test_filters_beyond_the_topk_limit_agree_with_the_reference(vocab: int) -> None:
    kinds = [{"top_k": 1024}, {"top_k": 1025, "top_p": 0.6}, {"top_k": 2000, "top_p": 0.99}, {"top_p": 0.95}]
    rows = [SampleRow(SamplingParams(**kinds[number % 4]), seed=number, index=0) for number in range(200)]
    logits = some_logits(len(rows), vocab, scale=1.0)
    expected = [reference_token(line, row) for line, row in zip(logits.numpy(), rows, strict=True)]
    assert tokens_of(logits, rows) == expected


@pytest.mark.parametrize("kind", [{}, {"top_k": 12}, {"top_p": 0.8}, {"min_p": 0.1}, {"temperature": 2.0, "top_k": 6}])
def test_the_draw_has_the_frequencies_of_the_distribution(kind: dict[str, Any]) -> None:
    draws, vocab = 20_000, 24
    line = some_logits(1, vocab, seed=4, scale=1.5)
    rows = [SampleRow(SamplingParams(**kind), seed=number // 50, index=number % 50) for number in range(draws)]
    seen = np.bincount(tokens_of(line.expand(draws, -1), rows, 4096), minlength=vocab)
    expected = reference_probabilities(line[0].numpy(), rows[0]) * draws
    assert (seen[expected == 0] == 0).all()
    likely = expected > 5
    chi_square = (((seen - expected) ** 2)[likely] / expected[likely]).sum()
    freedom = likely.sum() - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)  # four standard deviations


def test_uniform_is_uniform_and_depends_on_both_numbers() -> None:
    values = np.array([[uniform(seed, index) for index in range(200)] for seed in range(-100, 100)])
    assert values.min() >= 0
    assert values.max() < 1
    assert len(np.unique(values)) == values.size
    seen, _ = np.histogram(values, bins=100, range=(0, 1))
    assert ((seen - 400) ** 2 / 400).sum() < 99 + 4 * math.sqrt(2 * 99)
    neighbours = [
        np.corrcoef(values[:-1].ravel(), values[1:].ravel()),
        np.corrcoef(values[:, :-1].ravel(), values[:, 1:].ravel()),
    ]
    assert all(abs(each[0, 1]) < 0.02 for each in neighbours)
    assert uniform(-1, 0) == uniform(2**64 - 1, 0)


def test_uniform_never_changes() -> None:
    """A seed that a user wrote down gives the same text in the next version."""
    assert [uniform(0, 0), uniform(0, 1), uniform(1234, 7)] == [
        0.6524484863740322,
        0.7012121095215252,
        0.23707615596959386,
    ]


@settings(max_examples=60, deadline=None)
@given(
    order=st.permutations(range(2 * len(KINDS))),
    rows_at_once=st.integers(1, 40),
    kept=st.integers(1, 2 * len(KINDS)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_neither_batch_nor_order_changes_a_token(order: list[int], rows_at_once: int, kept: int, dtype: Any) -> None:
    rows = mixed_rows(2 * len(KINDS))
    logits = some_logits(len(rows), seed=2).to(dtype)  # bfloat16 has many ties
    alone = [tokens_of(logits[number : number + 1], [row])[0] for number, row in enumerate(rows)]
    chosen = order[:kept]
    assert tokens_of(logits[chosen], [rows[number] for number in chosen], rows_at_once) == [alone[i] for i in chosen]


@settings(max_examples=100, deadline=None)
@given(
    allowed=st.sets(st.integers(0, VOCAB - 1), min_size=1, max_size=6),
    kind=st.sampled_from(KINDS[:13]),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_a_token_of_minus_infinity_is_never_drawn(allowed: set[int], kind: dict[str, Any], seed: int) -> None:
    logits = torch.full((8, VOCAB), -math.inf)
    logits[:, list(allowed)] = some_logits(1, len(allowed), seed=1)
    rows = [SampleRow(SamplingParams(**kind), seed, index, prompt=[1], output=[2, 3]) for index in range(8)]
    assert set(tokens_of(logits, rows)) <= allowed


@pytest.mark.parametrize("number", [0.0, 2.0**-53, 1 - 2.0**-53])
@pytest.mark.parametrize("kind", [{}, {"top_k": 3}, {"top_p": 0.999}, {"temperature": 100}, {"temperature": 2e-5}])
def test_the_ends_of_the_unit_interval(number: float, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "uniform", lambda seed, index: number)
    vocab = 200_000  # where a float32 running sum ends visibly off 1
    logits = some_logits(1, vocab, scale=0.01)
    logits[:, :1000] = -math.inf
    logits[:, -1000:] = -math.inf
    (token,) = tokens_of(logits, [SampleRow(SamplingParams(**kind), seed=0, index=0)])
    assert 1000 <= token < vocab - 1000


def test_logits_that_are_not_numbers_still_give_an_id_of_the_vocabulary() -> None:
    rows = mixed_rows(len(KINDS))
    for value in (math.nan, math.inf, -math.inf):
        assert all(0 <= token < VOCAB for token in tokens_of(torch.full((len(rows), VOCAB), value), rows))


def test_plain_rows_are_one_argmax_that_leaves_no_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_sample_slice", None)
    logits = some_logits(70).to(torch.bfloat16)
    sampled = sample(logits, [SampleRow(SamplingParams(temperature=0), seed=1, index=0)] * 70)
    assert torch.equal(sampled.tokens, logits.argmax(-1))
    assert (sampled.chosen_logprob, sampled.top_logprobs, sampled.top_tokens) == (None, None, None)
    assert sample(logits[:0], []).tokens.shape == (0,)


def test_a_sort_is_made_only_of_the_rows_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_rows = []
    real = torch.Tensor.sort

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        sorted_rows.append(len(self))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "sort", counted)
    kinds: list[dict[str, Any]] = [{"top_p": 0.5}, {"top_k": 5, "top_p": 0.5}, {}, {"min_p": 0.1}, {"temperature": 0}]
    rows = [SampleRow(SamplingParams(**kinds[number % 5]), seed=number, index=0) for number in range(50)]
    sample(some_logits(50), rows)
    assert sorted_rows == [10]


def test_the_logits_are_left_as_they_were() -> None:
    rows = mixed_rows(2 * len(KINDS))
    logits = some_logits(len(rows))
    before = logits.clone()
    sample(logits, rows)
    assert torch.equal(logits, before)


def adjusted(logits: Any, row: SampleRow) -> Any:
    """The scores before temperature, as the logprobs show them."""
    part = sampler._sent_up([row], [0], logits)
    scores = logits.clone()
    sampler._adjust(scores, part, sampler._changes([row], logits))
    return scores


@pytest.mark.parametrize("penalty", [0.5, 1.2, 10.0])
def test_the_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    processors = pytest.importorskip("transformers.generation.logits_process")
    logits = some_logits(1)
    prompt, output = [3, 3, 4, 50], [96, 0, 3]
    theirs = processors.RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + output]), logits.clone())
    for prompt_as, output_as in ((prompt, output), (array("q", prompt), array("q", output))):
        row = SampleRow(SamplingParams(repetition_penalty=penalty), 0, 0, prompt_as, output_as)
        assert torch.equal(adjusted(logits, row), theirs)


@pytest.mark.parametrize("penalty", [5e-324, 1e-44, 1e-30])
def test_no_repetition_penalty_makes_a_score_infinite_or_passes_a_mask_by(penalty: float) -> None:
    logits = some_logits(1)
    logits[0, 5], logits[0, 6], logits[0, 7] = 0.0, 2.0, -1.0
    allowed = np.packbits([token in (5, 6, 7) for token in range(VOCAB)], bitorder="little")
    for kind in ({"temperature": 0}, {"temperature": 1e-5}, {}, {"top_k": 2}, {"top_p": 0.9}, {"logprobs": 3}):
        params = SamplingParams(repetition_penalty=penalty, **kind)
        sampled = sample(logits, [SampleRow(params, 1, 0, prompt=(5, 6, 7, 20), output=(), allowed=allowed)])
        assert sampled.tokens.tolist() == [6], kind
        if params.logprobs is not None:
            assert sampled.top_tokens[0].tolist() == [6, 5, 7] or sampled.top_tokens[0].tolist() == [6, 7, 5]
            assert sampled.top_logprobs.isfinite().all()


def test_presence_once_and_frequency_for_each_time_over_the_output_alone() -> None:
    row = SampleRow(
        SamplingParams(presence_penalty=0.5, frequency_penalty=0.25), 0, 0, prompt=[1, 2], output=[2, 3, 3, 3]
    )
    expected = torch.zeros(1, 6)
    expected[0, 2] = -0.75
    expected[0, 3] = -1.25
    assert torch.equal(adjusted(torch.zeros(1, 6), row), expected)


def test_ids_outside_the_vocabulary_are_left_out() -> None:
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=1.0, min_tokens=5)
    strange = SampleRow(params, 0, 0, prompt=[-1, VOCAB, 5], output=[10**9, 6], eos_ids=(2, VOCAB + 3))
    plain = SampleRow(params, 0, 0, prompt=[5], output=[6], eos_ids=(2,))
    logits = some_logits(1)
    assert torch.equal(adjusted(logits, strange), adjusted(logits, plain))


def test_no_end_before_min_tokens() -> None:
    params = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=(1,))
    logits = torch.tensor([[9.0, 8.0, 7.0, 1.0]]).expand(3, -1)
    rows = [SampleRow(params, seed=0, index=index, eos_ids=(0,)) for index in range(3)]
    assert tokens_of(logits, rows) == [2, 2, 0]


def test_logprobs_are_those_before_temperature_and_filters() -> None:
    logits = some_logits(4)
    bias = SamplingParams(logit_bias=((5, 4.0),), temperature=0.5, top_k=3, logprobs=5)
    rows = [
        SampleRow(SamplingParams(temperature=0, logprobs=2), seed=0, index=0),
        SampleRow(SamplingParams(temperature=0), seed=0, index=0),
        SampleRow(bias, seed=1, index=0),
        SampleRow(SamplingParams(top_p=0.5, logprobs=0), seed=2, index=0),
    ]
    sampled = sample(logits, rows)
    scores = logits.clone()
    scores[2, 5] += 4.0
    truth = scores.log_softmax(-1)
    top = truth.topk(5)
    asked = [0, 2, 3]
    chosen = truth.gather(-1, sampled.tokens[:, None])[:, 0]
    torch.testing.assert_close(sampled.chosen_logprob[asked], chosen[asked])
    torch.testing.assert_close(sampled.top_logprobs[asked], top.values[asked])
    assert torch.equal(sampled.top_tokens[asked], top.indices[asked])
    assert sampled.top_tokens.shape == (4, 5)
    assert sampled.tokens.tolist() == tokens_of(logits, rows, rows_at_once=1)


def test_named_tokens_are_scored_beside_rows_that_ask_for_the_likeliest() -> None:
    logits = some_logits(3)
    likeliest = SamplingParams(temperature=0, logprobs=3)
    named = SamplingParams(temperature=0, logprobs=0, logprob_token_ids=(9, 2))
    rows = [SampleRow(params, seed=0, index=0) for params in (likeliest, named, SamplingParams(temperature=0))]
    sampled = sample(logits, rows)
    assert sampled.top_tokens is not None
    assert sampled.top_logprobs is not None
    wanted = logits.float().log_softmax(dim=-1)
    assert sampled.top_tokens[0].tolist() == wanted[0].topk(3).indices.tolist()
    assert sampled.top_tokens[1, :2].tolist() == [9, 2]
    assert torch.allclose(sampled.top_logprobs[1, :2], wanted[1, [9, 2]], atol=1e-5)
    assert torch.allclose(sampled.top_logprobs[0], wanted[0].topk(3).values, atol=1e-5)


def test_logprobs_of_the_chosen_token_alone_have_no_columns() -> None:
    sampled = sample(some_logits(1), [SampleRow(SamplingParams(logprobs=0), seed=0, index=0)])
    assert sampled.top_logprobs.shape == (1, 0)
    assert sampled.chosen_logprob.shape == (1,)


def test_prompt_logprobs() -> None:
    logits = some_logits(6).to(torch.bfloat16)
    following = torch.tensor([0, 5, 96, 7, 7, int(logits[5].argmax())])
    judged = prompt_logprobs(logits, following, 4)
    truth = logits.float().log_softmax(-1)
    torch.testing.assert_close(judged.logprob, truth[torch.arange(6), following])
    torch.testing.assert_close(judged.top_logprobs, truth.topk(4).values)
    torch.testing.assert_close(truth.gather(-1, judged.top_tokens), judged.top_logprobs)
    ranks = [1 + sum(other > line[token] for other in line) for line, token in zip(truth, following, strict=True)]
    assert judged.rank.tolist() == [int(rank) for rank in ranks]
    assert judged.rank[5] == 1
    assert prompt_logprobs(logits, following, 0).top_tokens.shape == (6, 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_cuda_nothing_waits_and_the_tokens_are_the_same(dtype: Any) -> None:
    rows = mixed_rows(20 * len(KINDS))
    logits = some_logits(len(rows)).to(dtype)
    on_device = logits.cuda()
    sample(on_device, rows)  # kernels are loaded, pinned memory is there
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        sampled = sample(on_device, rows)
        alone = [sample(on_device[number : number + 1], [row]).tokens for number, row in enumerate(rows)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sampled.tokens.tolist() == [int(token) for token in alone]
    same = (sampled.tokens.cpu() == sample(logits, rows).tokens).float().mean()
    assert same > 0.99  # the last bit of an exponential may differ between the two


def test_long_histories_go_up_in_several_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the texts are, a slice looks at so many tokens and no more; tokens do not depend on it."""
    params = SamplingParams(repetition_penalty=1.3, frequency_penalty=0.5)
    histories = [[(7 * number + place) % VOCAB for place in range(50)] for number in range(6)]
    rows = [SampleRow(params, seed, index=50, prompt=ids[:30], output=ids[30:]) for seed, ids in enumerate(histories)]
    logits = some_logits(len(rows))
    whole = tokens_of(logits, rows)
    sizes = []
    one_slice = sampler._sample_slice

    def counted(logits: Any, rows: Any, places: list[int], result: Any) -> None:
        sizes.append(len(places))
        one_slice(logits, rows, places, result)

    monkeypatch.setattr(sampler, "_sample_slice", counted)
    monkeypatch.setattr(sampler, "HISTORY_AT_ONCE", 150)  # a row's prompt and output, and its output once more: 70
    assert tokens_of(logits, rows) == whole
    assert sizes == [2, 2, 2]
