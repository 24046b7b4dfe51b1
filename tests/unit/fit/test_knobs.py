"""The settings of an engine that does not fit: what each would free, and the value that would fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from brim.errors import DoesNotFit
from brim.fit.knobs import CurrentSettings, Knob, explained, knobs
from brim.fit.target import target_tokens
from brim.records.fit import FitItem, FitRequest, Usage
from brim.units import MIB

STANDING = CurrentSettings(
    max_batch=63,
    max_batch_tokens=2048,
    max_length=4096,
    block_size=16,
    kv_dtype="bf16",
    kv_element_bytes=2,
    total_bytes=1000 * MIB,
)
LEDGER = tuple(
    FitItem(name, None, size * MIB)
    for name, size in {"weights": 500, "graphs": 64, "activation": 256, "canary": 100, "kv": 128}.items()
)
REQUEST = FitRequest(probe_tokens=2048, least_tokens=2048, most_tokens=10**6, canary_bytes=100 * MIB)


def price(tokens: int) -> int:
    return tokens * MIB // 16


def turned(
    missing: int | None, ledger: tuple[FitItem, ...] = LEDGER, **changes: Any
) -> list[tuple[str, str, str, int]]:
    """Name, from, to, MiB."""
    request = replace(REQUEST, **{name: value for name, value in changes.items() if hasattr(REQUEST, name)})
    standing = replace(STANDING, **{name: value for name, value in changes.items() if hasattr(STANDING, name)})
    found = knobs(None if missing is None else missing * MIB, ledger, standing, request, price)
    return [(knob.name, knob.current, knob.proposed, knob.buys_bytes // MIB) for knob in found]


def test_each_knob_to_the_value_that_would_fit() -> None:
    assert turned(48) == [
        ("max_batch_tokens", "2048", "1024", 128 + 64),  # half the activation, and half the least request
        ("canary", "100.0 MiB", "52.0 MiB", 48),
        ("max_batch", "63", "15", 48),
        ("kv_dtype", "bf16", "fp8", 64),
        ("max_length", "4096", "1024", 64),
    ]


def test_each_knob_as_far_as_it_goes() -> None:
    assert turned(1000) == [
        ("max_batch_tokens", "2048", "64", 372),
        ("canary", "100.0 MiB", "0 B", 100),
        ("max_batch", "63", "1", 62),
        ("kv_dtype", "bf16", "fp8", 64),
        ("max_length", "4096", "16", 127),
    ]


def test_what_cannot_help_is_not_listed() -> None:
    names = [name for name, *_ in turned(48, canary_bytes=0, kv_element_bytes=1, max_batch_tokens=63, least_tokens=64)]
    assert names == ["max_batch", "max_length"]


def test_nothing_measured_leaves_what_is_known_without() -> None:
    assert [name for name, *_ in turned(48, ledger=())] == ["max_batch_tokens", "canary", "kv_dtype", "max_length"]


def test_an_unknown_shortfall_is_taken_as_five_per_cent() -> None:
    assert ("canary", "100.0 MiB", "93.6 MiB", 6) in turned(None)


def test_a_pinned_size_is_a_knob() -> None:
    assert turned(48, kv_tokens=4096)[0] == ("kv_tokens", "4096", str(4096 - 48 * 16), 48)
    assert turned(1000, kv_tokens=4096)[0] == ("kv_tokens", "4096", "2048", 128)


def test_a_pinned_size_that_was_not_measured_is_only_bounded() -> None:
    """The allocation that failed may be one of many: no size is known to fit."""
    assert turned(48, ledger=(), kv_tokens=4096)[0] == ("kv_tokens", "4096", f"at most {4096 - 48 * 16}", 48)
    device = STANDING.total_bytes // MIB - 100  # without the canary
    assert turned(48, ledger=(), kv_tokens=10**12)[0][2] == f"at most {device * 16}"
    error = explained(DoesNotFit("no", 48 * MIB), (Knob("kv_tokens", "4096", "at most 3328", 48 * MIB),))
    assert "the shortfall may be more" in str(error)


def test_what_is_kept_free_is_a_knob() -> None:
    assert turned(48, keep_free_bytes=200 * MIB)[0] == ("keep_free", "200.0 MiB", "152.0 MiB", 48)
    assert turned(1000, keep_free_bytes=200 * MIB)[0] == ("keep_free", "200.0 MiB", "0 B", 200)


def test_a_fraction_that_is_too_small_is_a_knob() -> None:
    """80 MiB are left, and one request needs 40."""
    request: dict[str, Any] = {"memory_fraction": 0.25, "least_tokens": 640}
    assert turned(80, **request)[0] == ("memory_fraction", "0.25", "0.5", 80)
    assert turned(80, **{**request, "least_tokens": 2048})[0] == ("memory_fraction", "0.25", "1", 512 - 128)
    names = [name for name, *_ in turned(10, **{**request, "least_tokens": 320})]
    assert "memory_fraction" not in names  # it left enough: something else went wrong


@given(
    st.integers(0, 600),
    st.sampled_from([1.0, 0.9, 0.5, 0.1]),
    st.integers(0, 200),
    st.sampled_from([64, 640, 2048, 4096]),
)
def test_what_a_knob_promises_it_keeps(weights: int, fraction: float, canary: int, least: int) -> None:
    """Canary, fraction and longest request turned as proposed, and the target is found."""
    usage = Usage(1000 * MIB, (weights + 320) * MIB, 0, 0, 0, weights * MIB, 64 * MIB, 256 * MIB, 0)
    request = replace(REQUEST, memory_fraction=fraction, canary_bytes=canary * MIB, least_tokens=least)
    ledger = tuple(replace(item, measured_bytes=weights * MIB) if item.name == "weights" else item for item in LEDGER)
    ledger = tuple(replace(item, measured_bytes=canary * MIB) if item.name == "canary" else item for item in ledger)
    try:
        target_tokens(usage, request, price)
    except DoesNotFit as error:
        missing = error.missing_bytes
        assert missing is not None
        found = knobs(missing, ledger, replace(STANDING, max_batch_tokens=4096), request, price)
        for knob in (one for one in found if one.buys_bytes >= missing):
            if knob.name == "canary":
                better = replace(request, canary_bytes=canary * MIB - knob.buys_bytes)
            elif knob.name == "memory_fraction":
                better = replace(request, memory_fraction=float(knob.proposed))
            elif knob.name == "max_length":
                better = replace(request, least_tokens=min(least, int(knob.proposed)))
            else:
                continue
            target_tokens(usage, better, price)


def test_the_message_lists_ledger_and_knobs() -> None:
    found = (Knob("canary", "100.0 MiB", "52.0 MiB", 48 * MIB), Knob("max_batch", "64", "1", 10 * MIB))
    error = explained(DoesNotFit("no room", 48 * MIB, LEDGER[:2]), found)
    assert (error.missing_bytes, error.ledger, error.knobs) == (48 * MIB, LEDGER[:2], found)
    assert str(error).splitlines() == [
        "no room",
        "measured, with KV for one request:",
        "  weights              500.0 MiB",
        "  graphs                64.0 MiB",
        "settings that would help (estimates):",
        "  canary                            100.0 MiB -> 52.0 MiB frees 48.0 MiB",
        "  max_batch (--max-seqs)            64 -> 1               frees 10.0 MiB, not enough by itself",
    ]


def test_nothing_known_changes_nothing() -> None:
    assert str(explained(DoesNotFit("no room"), ())) == "no room"
