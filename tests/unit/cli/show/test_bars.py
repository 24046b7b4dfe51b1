"""The bar of a terminal: as wide as asked, in proportion, and read without colour."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from brim.cli.show.bars import Item, bar_key, ledger_mark, memory_bar
from brim.cli.show.palette import ITEM_COLOURS, item_colour, item_keys

GIB = 1 << 30
DEVICE = 24 * GIB
FITTING = [(name, size, item_colour(name)) for name, size in (
    ("context", GIB), ("weights", 15 * GIB), ("activation", GIB), ("graphs", 512), ("kv", 6 * GIB),
)]  # fmt: skip

ledgers = st.lists(
    st.tuples(st.sampled_from(list(ITEM_COLOURS)), st.integers(-GIB, 40 * GIB)), unique_by=lambda item: item[0]
)


def coloured(ledger: list[tuple[str, int]]) -> list[Item]:
    return [(name, size, item_colour(name)) for name, size in ledger]


@given(ledgers, st.integers(1, 40 * GIB), st.integers(20, 200), st.integers(0, 40 * GIB))
def test_a_bar_has_its_width_and_its_letters_in_order(
    ledger: list[tuple[str, int]], total: int, width: int, shortfall: int
) -> None:
    items = coloured(ledger)
    bar = memory_bar(items, total, width, shortfall).plain
    assert len(bar) == width
    needed = max(total + shortfall, sum(max(0, size) for _, size in ledger))
    assert ("┃" in bar) == (needed > total)
    keys = item_keys(name for name, _ in ledger)
    wide = [keys[name] for name, size in ledger if size * (width - 1) >= 2 * needed]
    rest = iter(bar)
    assert all(key in rest for key in wide)


@given(ledgers, st.integers(40, 160))
def test_the_key_names_every_item_and_fits(ledger: list[tuple[str, int]], width: int) -> None:
    key = bar_key(coloured(ledger), width).plain
    assert all(len(line) <= width for line in key.splitlines())
    assert all((f" {name} " in key) == (size > 0) for name, size in ledger)


def test_a_plan_that_fits() -> None:
    assert memory_bar(FITTING, DEVICE, 60).plain == "C█▒▒▒▒▒▒▒▒ W weights 15.00 GiB ▒▒▒▒▒▒▒▒▒█A█▒▒▒▒ K kv ▒▒▒▒▒··"
    wide = memory_bar(FITTING, DEVICE, 120).plain
    assert "W weights 15.00 GiB" in wide
    assert "K kv 6.00 GiB" in wide


@pytest.mark.parametrize("width", [60, 120])
def test_an_item_too_small_for_a_cell_is_in_the_key(width: int) -> None:
    assert "G" not in memory_bar(FITTING, DEVICE, width).plain.replace("GiB", "")
    assert " G  graphs 512 B" in bar_key(FITTING, width).plain


def test_items_of_most_of_a_cell_do_not_widen_the_bar() -> None:
    sizes = (2, 2, 6, 6, 6, 6, 6, 6)
    items = [(name, size, "#ffffff") for name, size in zip("abcdefgh", sizes, strict=True)]
    assert len(memory_bar(items, sum(sizes), 4).plain) == 4


def test_neighbours_have_different_fills() -> None:
    items = [(name, GIB, item_colour(name)) for name in ("context", "weights", "draft", "encoder")]
    assert memory_bar(items, 4 * GIB, 24).plain == "██C███▒▒W▒▒▒██D███▒▒E▒▒▒"


def test_what_is_free_and_what_is_short() -> None:
    items = [("weights", 2 * GIB, item_colour("weights"))]
    assert memory_bar(items, 4 * GIB, 20).plain == "████W█████··········"
    assert memory_bar(items, 2 * GIB, 21, shortfall_bytes=2 * GIB).plain == "████W█████┃▶▶▶▶▶▶▶▶▶▶"
    assert memory_bar(items, GIB, 41, shortfall_bytes=GIB).plain.index("┃") == 20


def test_the_end_of_the_device_does_not_cut_a_label() -> None:
    items = [("weights", 10 * GIB, item_colour("weights"))]
    for total in range(1, 10):
        assert " W weights 10.00 GiB " in memory_bar(items, total * GIB, 80).plain


def test_without_colour_the_same_text_is_printed() -> None:
    console = Console(width=60, no_color=True, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(memory_bar(FITTING, DEVICE, 60))
    assert captured.get().rstrip("\n") == memory_bar(FITTING, DEVICE, 60).plain
    assert ledger_mark("K", item_colour("kv")).plain == " K "
