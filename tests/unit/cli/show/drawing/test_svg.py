"""Text that fits, ticks that are round, and nothing that a renderer or an XML parser refuses."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from brim.cli.show import palette
from brim.cli.show.drawing.areas import round_ticks
from brim.cli.show.drawing.svg import document, shortened, text, text_width


@given(st.text(), st.floats(0, 500), st.integers(8, 24))
def test_shortened_text_fits(content: str, width: float, size: int) -> None:
    found = shortened(content, width, size)
    assert text_width(found, size) <= width
    assert found in ("", content) or "…" in found


def test_the_ends_of_a_path_are_kept() -> None:
    assert shortened("model.language_model.layers.embed_tokens", 140, 12) == "model.la…ed_tokens"


@given(st.text())
def test_any_text_is_xml(content: str) -> None:
    root = ElementTree.fromstring(document(10, 10, content, [text(1, 2, content)]))
    assert len(root) == 3


@given(st.integers(512, 1 << 50))
def test_ticks_are_few_round_and_below_the_top(top: int) -> None:
    ticks = round_ticks(top)
    sizes = [size for size, _ in ticks]
    assert sizes[0] == 0
    assert 3 <= len(ticks) <= 7
    assert sizes == sorted(set(sizes))
    assert sizes[-1] <= top < sizes[-1] + 1.01 * sizes[1]
    assert ticks[1][1].split()[0].strip("0.,")[:1] in "125"


def test_ticks_of_a_gigabyte() -> None:
    assert [name for _, name in round_ticks(1_100_000_000)] == [
        "0",
        "0.2 GiB",
        "0.4 GiB",
        "0.6 GiB",
        "0.8 GiB",
        "1 GiB",
    ]
    assert [name for _, name in round_ticks(300 << 20)] == [
        "0", "50 MiB", "100 MiB", "150 MiB", "200 MiB", "250 MiB", "300 MiB",
    ]  # fmt: skip


def test_ink_can_be_read_on_every_shade() -> None:
    hues = (palette.GREEN, palette.BLUE, palette.SKY, palette.VIOLET, palette.ORANGE, palette.ROSE, palette.SAND)
    fills = [palette.shade(hue, number) for hue in (*hues, palette.VERMILION, palette.GREY) for number in range(6)]
    for fill in fills:
        bright, dark = sorted((luminance(fill), luminance(palette.ink_on(fill))), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 3.5, fill


def luminance(colour: str) -> float:
    """Relative luminance as accessibility guidelines define it."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
