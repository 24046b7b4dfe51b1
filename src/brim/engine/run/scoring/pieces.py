"""Scores in pieces of rows × vocabulary, within a bound on memory for any number of either.

In: hidden states, the tokens that follow, a `Head`, and bytes that may be taken beyond these. Out: `PromptLogprobs`.
Products have float32 sums and stay float32, whatever the type of the weights.

Half of the bound is for a piece, the other half for what the rows themselves take. A piece is as square as it can be:
it then takes the fewest reads of hidden states and weights for what it computes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from brim.engine.run.scoring.running import Reduction, RunningScores
from brim.engine.run.scoring.scores import PromptLogprobs
from brim.engine.weights.head import LogitsHead
from brim.units import ceil_div, round_up

_TILE = 128  # rows and columns of a matmul's tiles: pieces of whole tiles waste none
_ROW_STATE_BYTES = 64  # of a row: what is known of it, twice while it changes
_ALTERNATIVE_BYTES = 48  # of a row and an alternative: kept, joined with those of a piece, sorted
_ALIGNED = 16  # elements that a row of a piece begins at a multiple of: loads are then of full width


@dataclass(frozen=True, slots=True)
class PieceSize:
    """Rows and columns that are multiplied at once."""

    rows: int
    columns: int

    @property
    def stride(self) -> int:
        return round_up(self.columns, _ALIGNED)


def piece_size(rows: int, head: LogitsHead, count: int, reduction: Reduction, memory: int) -> PieceSize:
    """The largest square within half of `memory`; longer where there are few rows, wider where rows take much."""
    for_piece = for_rows = memory // 2
    row = _ROW_STATE_BYTES + count * _ALTERNATIVE_BYTES
    column = 0
    if head.copies_input:
        row += 2 * head.width * head.weight.element_size()
    if _multiplies_copies(head):
        row, column = row + 4 * head.width, 4 * head.width
    elements = for_piece // reduction.element_bytes
    side = math.isqrt(elements) if not column else _side_with_copies(elements, column // reduction.element_bytes)
    most = max(1, min(side, for_rows // row))
    height = _evenly(rows, most)
    columns = for_piece // (height * reduction.element_bytes + column)
    return PieceSize(height, _tiles(max(1, min(head.vocab, columns - _ALIGNED)), head.vocab))


def _side_with_copies(elements: int, column: int) -> int:
    """Of a square, where each column takes `column` elements besides."""
    return max(1, int((math.sqrt(column**2 + 4 * elements) - column) / 2))


def _evenly(rows: int, most: int) -> int:
    """Rows at once, the same each time but for the last, in whole tiles where there are several."""
    height = ceil_div(rows, ceil_div(rows, most))
    if height >= _TILE and height < rows:
        height = min(round_up(height, _TILE), max(_TILE, most // _TILE * _TILE))
    return height


def _tiles(columns: int, vocab: int) -> int:
    return columns if columns < _TILE or columns == vocab else columns // _TILE * _TILE


def score_in_pieces(
    rows: torch.Tensor, targets: torch.Tensor, count: int, head: LogitsHead, reduction: Reduction, size: PieceSize
) -> PromptLogprobs:
    """Of rows as the head is given them, `size.columns` of the vocabulary at once. No more rows than `size` has."""
    count = min(count, head.vocab)
    memory = size.rows * size.stride * reduction.element_bytes
    running = RunningScores.begun(targets, reduction.reference(rows, targets, head, memory), count)
    buffer = torch.empty(len(rows), size.stride, dtype=torch.float32, device=rows.device)
    for first in range(0, head.vocab, size.columns):
        weight = head.weight[first : first + size.columns]
        piece = buffer[:, : len(weight)]
        _multiply(rows, weight, piece)
        reduction.take(piece, first, head, running)
    return running.finished()


def _multiplies_copies(head: LogitsHead) -> bool:
    """The CPU has no product of half-precision numbers that stays float32."""
    return head.weight.dtype != torch.float32 and head.weight.device.type == "cpu"


def _multiply(rows: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    if weight.device.type == "meta":  # nothing is taken beside `out`
        return
    if weight.dtype == torch.float32:
        torch.mm(rows, weight.t(), out=out)
    elif weight.device.type == "cpu":
        torch.mm(rows.float(), weight.float().t(), out=out)
    else:
        torch.mm(rows, weight.t(), out_dtype=torch.float32, out=out)
