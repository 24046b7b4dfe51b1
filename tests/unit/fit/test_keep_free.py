"""What stays free on a device: by default, when asked for, and in every size that a fit finds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.errors import DoesNotFit, InvalidRequest
from brim.fit.fit import fit, validate_stored
from brim.fit.keep_free import KeepFree, keep_free
from brim.fit.measure import least_free_bytes
from brim.fit.target import tokens_left
from brim.probes.facts import drives_display, under_wsl
from brim.records.fit import AttemptOutcome, FitItem, FitRequest, Usage
from brim.records.memory import DeviceFacts, MemoryReading
from brim.units import GIB, KIB, MIB

pytest.importorskip("torch")

from tests.unit.fit.sizable import HonestEngine, WatchedProbe, request

DISPLAY, SPILLS = DeviceFacts(drives_display=True), DeviceFacts(spills=True)
KEPT = 16 + 4 + 32 + 8  # KiB: weights, buffers, activation, canary


# -- by default --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "total", "kept"),
    [
        (DeviceFacts(), 24 * GIB, 0),
        (DISPLAY, 24 * GIB, 512 * MIB),
        (SPILLS, 24 * GIB, -(-24 * GIB // 10)),
        (DeviceFacts(drives_display=True, spills=True), 24 * GIB, -(-24 * GIB // 10)),
        (DeviceFacts(drives_display=True, spills=True), 4 * GIB, 512 * MIB),
    ],
)
def test_what_stays_free_by_default(facts: DeviceFacts, total: int, kept: int) -> None:
    found = keep_free(None, facts, total)
    assert found.bytes == kept
    assert bool(found.note) is (kept > 0)
    assert ("nothing can be proven" in found.warning) is facts.spills


@pytest.mark.parametrize("asked", [0, 1, 8 * GIB])
def test_what_was_asked_for_wins(asked: int) -> None:
    assert keep_free(asked, DISPLAY, 24 * GIB) == KeepFree(asked)
    spilling = keep_free(asked, SPILLS, 24 * GIB)
    assert (spilling.bytes, spilling.note) == (asked, "")
    assert "nothing can be proven" in spilling.warning


class Nvml:
    """NVML, as far as it is asked."""

    NVML_FEATURE_ENABLED = 1

    class NVMLError(Exception):
        """Its own."""

    def __init__(self, active: int | None) -> None:
        self.active = active

    def nvmlDeviceGetDisplayActive(self, handle: str) -> int:  # noqa: N802
        assert handle == "handle"
        if self.active is None:
            raise self.NVMLError("not supported")
        return self.active


@pytest.mark.parametrize(("active", "found"), [(1, True), (0, False), (None, False)])
def test_a_display_is_what_nvml_says(active: int | None, found: bool) -> None:
    assert drives_display(Nvml(active), "handle") is found


@pytest.mark.parametrize(
    ("kernel", "found"),
    [
        ("5.15.153.1-microsoft-standard-WSL2", True),
        ("4.4.0-19041-Microsoft Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com)", True),
        ("6.8.0-45-generic Linux version 6.8.0-45-generic (buildd@lcy02)", False),
        ("", False),
    ],
)
def test_wsl_is_seen_by_its_kernel(kernel: str, found: bool) -> None:
    assert under_wsl(kernel) is found


# -- in a fit ----------------------------------------------------------------------------------------------------------


def test_a_fit_leaves_it_free_and_says_so() -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB))
    report = fit(engine, engine.probe, request(keep_free_bytes=50 * KIB, keep_free_note="why"), engine.price)
    assert report.kv_tokens == (256 - KEPT - 50) * KIB // 512
    assert report.keep_free_bytes == 50 * KIB
    assert report.items[-2:] == (
        FitItem("keep_free", None, 50 * KIB, "why"),
        FitItem("kv", None, (256 - KEPT - 50) * KIB),
    )
    assert least_free_bytes(engine.probe.reading()) == 50 * KIB
    assert report.limit_tokens == (256 - KEPT + 8 + 4) * KIB // 512  # no canary
    engine.assert_proven(report.kv_tokens, 8 * KIB)


def test_a_neighbour_that_uses_some_of_it_shrinks_the_size() -> None:
    """It fits, and yet less stays free than was asked for: 200 MiB of a neighbour came after measuring."""
    engine = HonestEngine(WatchedProbe(GIB, neighbours=(*(0,) * 8, 200 * MIB)), token_bytes=64 * KIB)
    report = fit(engine, engine.probe, request(keep_free_bytes=300 * MIB), engine.price)
    assert [one.outcome for one in report.attempts] == [AttemptOutcome.OUT_OF_MEMORY, AttemptOutcome.PROVEN]
    missing = report.attempts[0].shortfall_bytes
    assert missing is not None
    assert 200 * MIB - 64 * KIB < missing <= 200 * MIB  # less what no token fits into
    assert least_free_bytes(engine.probe.reading()) >= 300 * MIB


def test_a_pinned_size_that_leaves_too_little_does_not_fit() -> None:
    pinned = (256 - KEPT - 50) * KIB // 512
    for more, fits in ((0, True), (1, False)):
        engine = HonestEngine(WatchedProbe(256 * KIB))
        asked = request(kv_tokens=pinned + more, keep_free_bytes=50 * KIB)
        if fits:
            assert fit(engine, engine.probe, asked, engine.price).kv_tokens == pinned
            continue
        with pytest.raises(DoesNotFit, match=r"the last shortfall was 512 B; 50\.0 KiB must stay free"):
            fit(engine, engine.probe, asked, engine.price)


def test_a_stored_size_that_leaves_too_little_is_not_taken() -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB))
    stored = fit(engine, engine.probe, request(), engine.price)
    again = HonestEngine(WatchedProbe(256 * KIB))
    assert validate_stored(again, again.probe, request(keep_free_bytes=KIB), again.price, stored) is None


def test_too_much_to_keep_free_is_named() -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB))
    with pytest.raises(DoesNotFit, match=r"250\.0 KiB are kept free \(keep_free\)") as caught:
        fit(engine, engine.probe, request(keep_free_bytes=250 * KIB), engine.price)
    assert {item.name: item.measured_bytes for item in caught.value.ledger}["keep_free"] == 250 * KIB
    small = HonestEngine(WatchedProbe(40 * KIB))
    with pytest.raises(DoesNotFit, match="canary and keep_free included") as caught:
        fit(small, small.probe, request(keep_free_bytes=250 * KIB), small.price)
    assert caught.value.missing_bytes == (16 + 4 + 4 + 32 - 40 + 8 + 250) * KIB


def test_less_than_nothing_cannot_be_kept_free() -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB))
    with pytest.raises(InvalidRequest, match="keep_free is -1"):
        fit(engine, engine.probe, request(keep_free_bytes=-1), engine.price)
    assert engine.events == []


def test_the_least_free_is_that_of_the_peak() -> None:
    now = MemoryReading(1000, 400, 100, 200, 500, 550, 400)
    assert least_free_bytes(now) == 400 - 350


# -- whatever the numbers ----------------------------------------------------------------------------------------------


@st.composite
def asked(draw: st.DrawFn) -> tuple[Usage, FitRequest, int]:
    sizes = [draw(st.integers(0, 2000)) for _ in range(3)]
    usage = Usage(draw(st.integers(0, 10_000)), sum(sizes), draw(st.integers(0, 2000)), 0, 0, *sizes, 0)
    wanted = request(
        most_tokens=draw(st.integers(1, 5000)),
        canary_bytes=draw(st.integers(0, 1000)),
        keep_free_bytes=draw(st.integers(0, 3000)),
        rounding_bytes=draw(st.integers(0, 100)),
        memory_fraction=draw(st.sampled_from([1.0, 0.9, 0.3])),
    )
    return usage, wanted, draw(st.sampled_from([1, 3, 16]))


@given(asked(), st.integers(0, 3000), st.integers(0, 3000))
def test_more_memory_never_gives_less_and_more_kept_free_never_more(
    case: tuple[Usage, FitRequest, int], memory: int, kept: int
) -> None:
    usage, wanted, token_bytes = case

    def found(of: Usage, asked: FitRequest) -> int:
        return tokens_left(of, asked, lambda tokens: tokens * token_bytes)

    tokens = found(usage, wanted)
    assert found(replace(usage, total_bytes=usage.total_bytes + memory), wanted) >= tokens
    assert found(usage, replace(wanted, keep_free_bytes=wanted.keep_free_bytes + kept)) <= tokens
    free = usage.total_bytes - usage.other_bytes - usage.held_bytes
    assert tokens == 0 or tokens * token_bytes <= free - wanted.canary_bytes - wanted.keep_free_bytes
    both = replace(wanted, keep_free_bytes=wanted.keep_free_bytes + kept)
    assert found(replace(usage, total_bytes=usage.total_bytes + kept), both) == tokens


@settings(max_examples=150, deadline=None)
@given(
    st.integers(60, 400), st.integers(0, 200), st.integers(0, 60), st.sampled_from([0, 0, 64]), st.none() | st.just(40)
)
def test_what_was_to_stay_free_stayed_free(budget: int, kept: int, more: int, growth: int, pinned: int | None) -> None:
    """In the worst step of the size that came out; also where activations grow with it, and it had to shrink."""
    sizes = []
    for keep in (kept, kept + more):
        engine = HonestEngine(WatchedProbe(budget * KIB), growth_bytes=growth)
        wanted = request(keep_free_bytes=keep * KIB, kv_tokens=pinned, max_attempts=50)
        try:
            report = fit(engine, engine.probe, wanted, engine.price)
        except DoesNotFit:
            sizes.append(0)
            continue
        assert least_free_bytes(engine.probe.reading()) >= keep * KIB
        sizes.append(report.kv_tokens)
    if not growth:
        assert sizes[0] >= sizes[1]
