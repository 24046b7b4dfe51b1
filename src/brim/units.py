"""Bytes in and out of text, and the integer arithmetic the rest is built on.

In: what people type ("24GiB", "80 GB", "512M"). Out: integers, and text for people ("22.41 GiB").
"""

from __future__ import annotations

import re

from brim.errors import InvalidRequest

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(b?)\s*", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_LARGEST_SIZE_BYTES = 1 << 50  # a pebibyte: more is a typing error


def parse_bytes(text: str, what: str = "size") -> int:
    """Bytes from text. "24GiB", "24G" and "24g" are binary; "24GB" is decimal, as on a datasheet."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"{what} '{text[:40]}' is not a size; write it like 24GiB, 80GB or 512MiB")
    number, prefix, binary, unit = match.groups()
    if "." in number and not prefix:
        raise InvalidRequest(f"{what} '{text[:40]}' is not whole bytes; give it a unit, such as 1.5GiB")
    decimal = bool(prefix) and not binary and unit == "B"
    base = 1000 if decimal else 1024
    size = float(number) * base ** _POWER[prefix.lower()]
    if size > _LARGEST_SIZE_BYTES:
        raise InvalidRequest(f"{what} '{text[:40]}' is more than 1 PiB; write it like 24GiB, 80GB or 512MiB")
    return int(size)


def format_bytes(size: int) -> str:
    """Bytes as a person reads them, always binary: "512 B", "37.5 MiB", "22.41 GiB"."""
    magnitude = abs(size)
    if magnitude < KIB:
        return f"{size} B"
    if magnitude < MIB:
        return f"{size / KIB:.1f} KiB"
    if magnitude < GIB:
        return f"{size / MIB:.1f} MiB"
    return f"{size / GIB:,.2f} GiB"


def ceil_div(numerator: int, denominator: int) -> int:
    """The quotient, rounded up."""
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple that is not below the value."""
    return ceil_div(value, multiple) * multiple


def round_down(value: int, multiple: int) -> int:
    """The largest multiple that is not above the value."""
    return value // multiple * multiple


_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|sec|m|min|h)?\s*", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_LONGEST_SECONDS = 7 * 24 * 3600.0


def parse_seconds(text: str, what: str = "duration") -> float:
    """Seconds from text: "120", "120s", "2m" or "500ms"."""
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) * _SECONDS[(match[2] or "").lower()] if match else -1.0
    if not 0 <= seconds <= _LONGEST_SECONDS:
        raise InvalidRequest(f"{what} '{text[:40]}' is not a duration of at most a week; write it like 120s or 2m")
    return seconds


_COUNT = re.compile(r"\s*(\d+)\s*([km]?)\s*", re.IGNORECASE)
_AREA = re.compile(r"\s*(\d+)\s*[x×]\s*(\d+)\s*", re.IGNORECASE)


def parse_count(text: str, what: str = "count") -> int:
    """A count of tokens or requests from text: "32768", or "32k" for the same."""
    match = _COUNT.fullmatch(text)
    if match is None or len(match[1]) > 15:
        raise InvalidRequest(f"{what} '{text[:40]}' is not a count; write it like 32768 or 32k")
    return int(match[1]) * {"": 1, "k": KIB, "m": MIB}[match[2].lower()]


def parse_pixels(text: str, what: str = "pixels") -> int:
    """Pixels from text: "1003520", or "1280x784" for the same."""
    match = _AREA.fullmatch(text)
    if match is None:
        return parse_count(text, what)
    if max(len(match[1]), len(match[2])) > 9:
        raise InvalidRequest(f"{what} '{text[:40]}' is larger than any image; write it like 1003520 or 1280x784")
    return int(match[1]) * int(match[2])
