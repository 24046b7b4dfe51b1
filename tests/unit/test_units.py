from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InvalidRequest
from brim.units import (
    GIB,
    ceil_div,
    format_bytes,
    parse_bytes,
    parse_count,
    parse_pixels,
    parse_seconds,
    round_down,
    round_up,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * GIB),
        ("24G", 24 * GIB),
        ("24g", 24 * GIB),
        ("80GB", 80 * 10**9),
        ("1.5 GiB", 3 * GIB // 2),
        ("512", 512),
        ("512MiB", 512 << 20),
        ("0", 0),
    ],
)
def test_sizes_people_write(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "-4GiB", "4 apples", "1e9", "nan", "9" * 30 + "GiB", "9" * 400, "4GiBs", "1.5", "0.1B"]
)
def test_sizes_that_are_not(text: str) -> None:
    with pytest.raises(InvalidRequest, match="reserve"):
        parse_bytes(text, "reserve")


@given(st.integers(min_value=0, max_value=1 << 45))
def test_text_of_bytes_reads_back_near(size: int) -> None:
    back = parse_bytes(format_bytes(size).replace(",", ""))
    assert abs(back - size) <= max(1, size // 20)


@given(st.integers(0, 10**12), st.integers(1, 10**6))
def test_rounding(value: int, multiple: int) -> None:
    assert round_down(value, multiple) <= value <= round_up(value, multiple)
    assert round_up(value, multiple) - round_down(value, multiple) in (0, multiple)
    assert ceil_div(value, multiple) * multiple == round_up(value, multiple)


def test_counts_and_pixels() -> None:
    assert parse_count("32k") == 32768
    assert parse_count("1M") == 1 << 20
    assert parse_pixels("1280x784") == 1280 * 784
    assert parse_pixels("1003520") == 1003520
    for bad in ("-1", "3.5", "many", "1" * 40):
        with pytest.raises(InvalidRequest, match="max-len"):
            parse_count(bad, "max-len")


def test_durations() -> None:
    texts = ("120", "120s", "2m", "0.5 h", "500ms", "2 min", "0")
    assert [parse_seconds(text) for text in texts] == [120, 120, 120, 1800, 0.5, 120, 0]
    for text in ("", "soon", "-5s", "5 days", "1e3", "9" * 400):
        with pytest.raises(InvalidRequest, match=r"wait '.*' is not a duration.*write it like 120s or 2m"):
            parse_seconds(text, "wait")
