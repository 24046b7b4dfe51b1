"""The collectives of any step, learned from those of a few."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from brim.engine.ranks.collectives import Collective, CollectiveKind, StepCollectives, StepWork, learned  # noqa: E402

HIDDEN, VOCAB = 64, 50
SIZES = (1, 2, 3, 5)
Notes = dict[int, list[Collective]]


def one(kind: CollectiveKind, elements: int, group: str = "0") -> Collective:
    return Collective(kind, elements, torch.float32, group)


def forward(rows: int) -> list[Collective]:
    return [
        one(CollectiveKind.REDUCE, rows * HIDDEN),
        one(CollectiveKind.GATHER_INTO, rows * HIDDEN + 7),
        one(CollectiveKind.REDUCE, 9),
    ]


def head(rows: int) -> list[Collective]:
    return [one(CollectiveKind.GATHER_INTO, rows * VOCAB)]


def tokens(rows: int) -> list[Collective]:
    return [Collective(CollectiveKind.BROADCAST, rows, torch.int64, "0")]


def notes(make: object, sizes: tuple[int, ...] = SIZES) -> Notes:
    return {rows: make(rows) for rows in sizes}  # type: ignore[operator]


def known() -> StepCollectives:
    found = learned(notes(forward), notes(head), notes(tokens), "0")
    assert found is not None
    return found


@pytest.mark.parametrize("work", [StepWork(17, (256, 0, 4), 4), StepWork(1, (1,), 1), StepWork(9, (), 0)])
def test_those_of_a_step_follow_its_rows(work: StepWork) -> None:
    passes = forward(work.tokens) + [one for rows in work.heads for one in head(rows)]
    assert known().in_passes(work) == passes
    assert known().of(work) == passes + (tokens(work.drawn) if work.drawn else [])


def test_the_reserve_holds_the_largest_and_what_all_ranks_send() -> None:
    most = StepWork(100, (32, 20), 32)
    gathered = (100 * HIDDEN + 7) * 4
    assert known().reserve_bytes(most, ranks=4) == -(-gathered // 512) * 512 + 4 * gathered


def test_an_engine_of_one_token_knows_its_only_step() -> None:
    found = learned(notes(forward, (1,)), notes(head, (1,)), notes(tokens, (1,)), "0")
    assert found is not None
    assert found.of(StepWork(1, (1,), 1)) == forward(1) + head(1) + tokens(1)


@pytest.mark.parametrize(
    "odd",
    [
        notes(forward) | {3: forward(3)[:2]},  # one of them is not always there
        notes(forward) | {1: forward(1)[::-1]},  # nor in this order
        notes(forward) | {2: [one(CollectiveKind.REDUCE, 2**2), *forward(2)[1:]]},  # its size follows something else
        {rows: [*forward(rows), Collective(CollectiveKind.OTHER)] for rows in SIZES},
        {rows: [*forward(rows), one(CollectiveKind.REDUCE, 5, group="1")] for rows in SIZES},
    ],
)
def test_what_cannot_be_foretold_is_not(odd: Notes) -> None:
    assert learned(odd, notes(head), notes(tokens), "0") is None
    assert learned(notes(forward), odd, notes(tokens), "0") is None
