"""Least squares with coefficients that are not negative, for a handful of terms.

Every subset of the terms is solved without the constraint; the best solution in which none is negative is the answer
(the constrained optimum is the free optimum of its own positive terms). With five terms that is 31 systems of at most
five equations: no library is needed, and the result does not depend on a starting point.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

_SINGULAR = 1e-10  # a pivot below this, of columns scaled to 1, says that terms cannot be told apart
_BETTER = 1e-12  # by which more terms must improve the fit, so that they are not added for nothing

Row = Sequence[float]


def non_negative_least_squares(rows: Sequence[Row], targets: Sequence[float]) -> list[float]:
    """A coefficient for each column; where errors are equal, the fewest terms and the first columns."""
    width = len(rows[0])
    scales = [max(abs(row[column]) for row in rows) or 1.0 for column in range(width)]
    scaled = [[value / scale for value, scale in zip(row, scales, strict=True)] for row in rows]
    best, least = [0.0] * width, sum(target**2 for target in targets)
    for size in range(1, width + 1):
        for chosen in combinations(range(width), size):
            found = _solution(scaled, targets, chosen)
            if found is None or min(found) < 0:
                continue
            error = _squared_error(scaled, targets, chosen, found)
            if error < least - _BETTER:
                best, least = _spread(found, chosen, width), error
    return [value / scale for value, scale in zip(best, scales, strict=True)]


def _spread(found: Row, chosen: Sequence[int], width: int) -> list[float]:
    values = [0.0] * width
    for column, value in zip(chosen, found, strict=True):
        values[column] = value
    return values


def _squared_error(rows: Sequence[Row], targets: Row, chosen: Sequence[int], found: Row) -> float:
    sums = (sum(row[column] * value for column, value in zip(chosen, found, strict=True)) for row in rows)
    return sum((total - target) ** 2 for total, target in zip(sums, targets, strict=True))


def _solution(rows: Sequence[Row], targets: Row, chosen: Sequence[int]) -> list[float] | None:
    """The normal equations of some columns, solved with pivots; None where they do not determine the coefficients."""
    system = [
        [sum(row[a] * row[b] for row in rows) for b in chosen]
        + [sum(row[a] * target for row, target in zip(rows, targets, strict=True))]
        for a in chosen
    ]
    size = len(chosen)
    for step in range(size):
        pivot = max(range(step, size), key=lambda index: abs(system[index][step]))
        if abs(system[pivot][step]) < _SINGULAR:
            return None
        system[step], system[pivot] = system[pivot], system[step]
        for index in range(size):
            if index != step:
                factor = system[index][step] / system[step][step]
                system[index] = [one - factor * other for one, other in zip(system[index], system[step], strict=True)]
    return [system[index][-1] / system[index][index] for index in range(size)]
