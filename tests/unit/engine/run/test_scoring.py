"""Log-probabilities of prompts in pieces: the same as from whole rows of logits, within a bound on memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from brim.engine.run.scoring.pieces import piece_size, score_in_pieces  # noqa: E402
from brim.engine.run.scoring.running import Reduction, TorchReduction, reduction_for  # noqa: E402
from brim.engine.weights.head import LogitsHead  # noqa: E402
from brim.probes.cpu import CpuProbe  # noqa: E402
from brim.units import MIB  # noqa: E402
from tests.triton_interpreter import interpreted, needs_interpreter  # noqa: E402
from tests.unit.engine.run.scored_cases import CASES, ScoredCase, difference  # noqa: E402


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pieces_score_as_whole_rows_do(case: ScoredCase) -> None:
    found = difference(case, TorchReduction())
    assert found.largest < 1e-4
    assert (found.wrong_tokens, found.wrong_ranks) == (0, 0)


@given(
    columns=st.integers(1, 70),
    count=st.integers(0, 20),
    rows=st.integers(1, 9),
    cap=st.sampled_from([None, 3.0]),
    equal=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_any_pieces_do(columns: int, count: int, rows: int, cap: float | None, equal: bool) -> None:
    case = ScoredCase(vocab=61, width=8, rows=rows, count=count, columns=columns, cap=cap, equal=equal)
    found = difference(case, TorchReduction())
    assert found.largest < 1e-4
    assert (found.wrong_tokens, found.wrong_ranks) == (0, 0)


@needs_interpreter
def test_the_kernels_score_as_whole_rows_do(tmp_path: Path) -> None:
    found = interpreted("tests/unit/engine/run/interpreted_scores.py", tmp_path / "found.json")
    assert len(found) == len(CASES)
    wrong = [one for one in found if one["largest"] > 1e-4 or one["wrong_tokens"] or one["wrong_ranks"]]
    assert wrong == []


class OneKernel:
    """Sizes of a reduction that takes nothing beside the piece."""

    element_bytes = 4
    reference = TorchReduction.reference
    take = TorchReduction.take


@given(
    rows=st.integers(1, 20_000),
    vocab=st.integers(2, 300_000),
    width=st.integers(8, 16_384),
    memory=st.integers(MIB, 256 * MIB),
    count=st.integers(0, 20),
    kind=st.sampled_from([torch.float32, torch.bfloat16]),
    copies=st.booleans(),
    fused=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_a_piece_is_within_its_bound(
    rows: int, vocab: int, width: int, memory: int, count: int, kind: torch.dtype, copies: bool, fused: bool
) -> None:
    head = LogitsHead(torch.empty(vocab, width, dtype=kind, device="meta"), copies_input=copies)
    reduction: Reduction = OneKernel() if fused else TorchReduction()
    size = piece_size(rows, head, count, reduction, memory)
    assert 1 <= size.rows <= rows
    assert 1 <= size.columns <= vocab
    taken = size.rows * size.stride * reduction.element_bytes
    taken += size.rows * (2 * width * head.weight.element_size() if copies else 0)
    assert taken <= memory


def test_a_piece_uses_its_bound() -> None:
    """With the dimensions of the largest vocabularies: squares of whole tiles, and no more rows than there are."""
    head = LogitsHead(torch.empty(262_144, 3840, dtype=torch.bfloat16, device="meta"))
    size = piece_size(8192, head, 5, OneKernel(), 64 * MIB)
    assert (size.rows % 128, size.columns % 128) == (0, 0)
    assert size.rows * size.columns * 4 > 28 * MIB
    assert 0.5 < size.rows / size.columns < 2
    assert piece_size(16, head, 5, OneKernel(), 64 * MIB).columns == 262_144


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_scoring_takes_no_more_than_it_may(kind: torch.dtype) -> None:
    """Really counted: many rows and a large vocabulary within two MiB, where whole rows would take twenty."""
    memory = 2 * MIB
    head = LogitsHead(torch.randn(20_000, 16, dtype=torch.float32).to(kind))
    hidden, targets = torch.randn(256, 16).to(kind), torch.arange(256)
    size = piece_size(256, head, 20, TorchReduction(), memory)
    peaks = []
    for first in range(0, 256, size.rows):
        here = slice(first, first + size.rows)
        with CpuProbe(1 << 30) as probe:
            probe.reset_peak()
            before = probe.reading().peak_allocated_bytes
            score_in_pieces(hidden[here], targets[here], 20, head, TorchReduction(), size)
            peaks.append(probe.reading().peak_allocated_bytes - before)
    assert 0 < max(peaks) <= memory


def test_the_cpu_scores_with_torch() -> None:
    assert isinstance(reduction_for(torch.device("cpu")), TorchReduction)
    case = replace(CASES[0], rows=2)
    assert difference(case, reduction_for(torch.device("cpu"))).largest < 1e-4
