"""Prompts scored in pieces: the same scores as at once, and never more rows than were allowed."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from brim.vllm.runner.pieces import score_in_pieces

torch = pytest.importorskip("torch")

_VOCABULARY, _COUNT = 50, 3


class Scores(NamedTuple):
    """vLLM's record, whose last field is none where nothing was drawn."""

    ids: Any
    values: Any
    ranks: Any
    drawn: Any = None


class Sampler:
    """vLLM's, as far as prompts are scored."""

    def compute_logprobs(self, logits: Any) -> Any:
        return logits.log_softmax(dim=-1, dtype=torch.float32)

    def gather_logprobs(self, scores: Any, count: int, tokens: Any) -> Scores:
        values, ids = scores.topk(count, dim=-1)
        own = scores.gather(-1, tokens.unsqueeze(-1))
        return Scores(ids, values, (scores >= own).sum(-1))


class Model:
    """Logits by a matrix; keeps how many rows it was asked for."""

    def __init__(self, head: Any) -> None:
        self.head = head
        self.asked: list[int] = []

    def compute_logits(self, hidden: Any) -> Any:
        self.asked.append(len(hidden))
        return hidden @ self.head


class Runner:
    """The V1 runner, as far as prompts are scored."""

    def __init__(self, *, raw: bool) -> None:
        made = torch.Generator().manual_seed(0)
        self.model: Any = Model(torch.randn(8, _VOCABULARY, generator=made))
        self.sampler: Any = Sampler()
        self.raw = raw

    def _get_prompt_logprobs_dict(self, hidden: Any, tokens: Any) -> Scores:
        logits = self.model.compute_logits(hidden)
        scores = logits.to(torch.float32) if self.raw else self.sampler.compute_logprobs(logits)
        found: Scores = self.sampler.gather_logprobs(scores, _COUNT, tokens)
        return found


def _prompt(tokens: int) -> tuple[Any, Any]:
    made = torch.Generator().manual_seed(1)
    return torch.randn(tokens, 8, generator=made), torch.randint(_VOCABULARY, (tokens,), generator=made)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("tokens", [1, 6, 7, 8, 23])
def test_the_scores_are_those_of_all_rows_at_once(tokens: int, raw: bool) -> None:
    plain, pieces = Runner(raw=raw), Runner(raw=raw)
    score_in_pieces(pieces, _VOCABULARY, piece_bytes=7 * 4 * _VOCABULARY)
    hidden, targets = _prompt(tokens)
    at_once = plain._get_prompt_logprobs_dict(hidden, targets)
    in_pieces = pieces._get_prompt_logprobs_dict(hidden, targets)
    assert torch.equal(at_once.ids, in_pieces.ids)
    assert torch.equal(at_once.ranks, in_pieces.ranks)
    assert torch.allclose(at_once.values, in_pieces.values, atol=1e-6)
    assert in_pieces.drawn is None
    assert sum(pieces.model.asked) == tokens
    assert max(pieces.model.asked) <= 7


def test_a_row_is_the_least_piece() -> None:
    runner = Runner(raw=False)
    score_in_pieces(runner, _VOCABULARY, piece_bytes=1)
    runner._get_prompt_logprobs_dict(*_prompt(3))
    assert runner.model.asked == [1, 1, 1]


def test_the_model_and_the_sampler_are_back_also_after_an_error() -> None:
    runner = Runner(raw=False)
    model, sampler = runner.model, runner.sampler
    score_in_pieces(runner, _VOCABULARY)
    hidden, targets = _prompt(4)
    with pytest.raises(RuntimeError):
        runner._get_prompt_logprobs_dict(hidden[:, :5], targets)  # a width that the model does not have
    assert (runner.model, runner.sampler) == (model, sampler)
