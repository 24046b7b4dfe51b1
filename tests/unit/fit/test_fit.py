"""A fit from end to end: what comes out was proven at that size, or nothing of the engine is left."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.errors import DeviceError, DoesNotFit, InvalidRequest, OutOfMemory
from brim.fit.clock import Clock
from brim.fit.fit import fit, validate_stored
from brim.fit.measure import least_free_bytes
from brim.fit.target import most_tokens_within
from brim.probes.cpu import ROUNDING
from brim.records.fit import Attempt, AttemptOutcome, FitItem, FitReport, FitRequest, FitSeconds
from brim.records.memory import MemoryReading
from brim.records.progress import Stage
from brim.units import GIB, KIB, MIB, round_up

torch = pytest.importorskip("torch")

from tests.unit.fit.sizable import HonestEngine, WatchedProbe, request  # noqa: E402

NO_TIME = FitSeconds()
KEPT = 16 + 4 + 32 + 8  # KiB: weights, buffers, activation, canary


def fitted(engine: HonestEngine, asked: FitRequest) -> FitReport:
    return replace(fit(engine, engine.probe, asked, engine.price), seconds=NO_TIME)


def test_what_is_left_goes_to_the_kv_cache() -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB))
    proven = (256 - KEPT) * KIB // 512
    assert fitted(engine, request()) == FitReport(
        kv_tokens=proven,
        kv_bytes=proven * 512,
        canary_bytes=8 * KIB,
        attempts=(Attempt(proven, AttemptOutcome.PROVEN),),
        items=tuple(
            FitItem(name, None, size * KIB)
            for name, size in {
                "context": 0,
                "neighbours": 0,
                "weights": 16,
                "graphs": 4,
                "activation": 32,
                "workspace": 0,
                "canary": 8,
                "kv": 256 - KEPT,
            }.items()
        ),
        seconds=NO_TIME,
        from_store=False,
        total_bytes=256 * KIB,
        free_bytes=32 * KIB,
        limit_tokens=proven + (8 + 4) * KIB // 512,
        needed_tokens=proven,
        needed_bytes=proven * 512,
    )
    assert engine.probe.most_live_bytes == 256 * KIB
    assert engine.events == [
        *(("build", 16), *(("prefill", 16), ("decode", 16)) * 2, ("teardown", 16)),
        *(("build", proven), ("prefill", proven), ("decode", proven)),
    ]


@pytest.mark.parametrize(("running", "needed"), [(100, 100), (392, 392), (1000, 392)])
def test_what_is_beyond_running_requests_is_a_cache(running: int, needed: int) -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB))
    report = fitted(engine, request(running_tokens=running))
    assert (report.kv_tokens, report.needed_tokens, report.cache_tokens) == (392, needed, 392 - needed)
    assert (report.needed_bytes, report.cache_bytes) == (needed * 512, (392 - needed) * 512)


def test_phases_are_reported_and_timed() -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB))
    told: list[Stage] = []
    report = fit(engine, engine.probe, request(), engine.price, clock=Clock(told.append))
    shapes = ["prefill, 64 tokens", "decode, 4 tokens"]
    assert told == [
        Stage("probe", "16 tokens"),
        *(Stage("stress", shape) for shape in shapes * 2),
        *(Stage("rebuild", "teardown"), Stage("rebuild", "392 tokens")),
        *(Stage("validate", shape) for shape in shapes),
    ]
    seconds = asdict(report.seconds)
    assert seconds.pop("total") == pytest.approx(sum(seconds.values()))
    assert seconds.pop("predict") == seconds.pop("scaling") == 0
    assert min(seconds.values()) > 0


def test_out_of_memory_shrinks_by_the_shortfall() -> None:
    engine = HonestEngine(WatchedProbe(1024 * KIB), growth_bytes=64)
    report = fitted(engine, request())
    assert [one.outcome for one in report.attempts] == [AttemptOutcome.OUT_OF_MEMORY, AttemptOutcome.PROVEN]
    first, second = report.attempts
    assert first.shortfall_bytes is not None
    assert second.kv_tokens == (engine.price(first.kv_tokens) - first.shortfall_bytes) // 512
    engine.assert_proven(report.kv_tokens, 8 * KIB)


def test_out_of_memory_without_figures_shrinks_by_five_per_cent() -> None:
    engine = HonestEngine(WatchedProbe(1024 * KIB), faults={("prefill", 3): OutOfMemory("no figures")})
    report = fitted(engine, request())
    first, second = report.attempts
    assert second.kv_tokens == int(first.kv_tokens * 512 * 0.95) // 512
    engine.assert_proven(report.kv_tokens, 8 * KIB)


def test_four_attempts_and_no_more() -> None:
    engine = HonestEngine(
        WatchedProbe(1024 * KIB), faults={("decode", number): OutOfMemory("again") for number in range(3, 9)}
    )
    with pytest.raises(DoesNotFit, match="no KV cache size passed validation") as caught:
        fitted(engine, request())
    assert [name for name, _ in engine.events].count("build") == 1 + 4
    assert {item.name: item.measured_bytes for item in caught.value.ledger}["activation"] == 32 * KIB
    assert engine.probe.live_bytes == engine.weights_bytes


def test_one_request_is_tried_before_giving_up() -> None:
    """The shortfall is larger than the whole KV cache; a smaller one also needs less of everything else."""
    engine = HonestEngine(WatchedProbe(256 * KIB), faults={("prefill", 3): OutOfMemory("injected", GIB)})
    report = fitted(engine, request())
    assert [one.kv_tokens for one in report.attempts][1:] == [8]
    engine.assert_proven(8, 8 * KIB)


def test_a_pinned_size_is_stressed_once() -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB))
    report = fitted(engine, request(kv_tokens=64))
    assert (report.kv_tokens, report.items, report.limit_tokens) == (64, (), 64)
    assert [name for name, _ in engine.events] == ["build", "prefill", "decode"]
    engine.assert_proven(64, 8 * KIB)


def test_a_pinned_size_that_does_not_fit_fails_at_once() -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB))
    with pytest.raises(DoesNotFit, match="tried 500 tokens"):
        fitted(engine, request(kv_tokens=500))
    assert [name for name, _ in engine.events].count("build") == 1
    assert engine.probe.live_bytes == engine.weights_bytes


@pytest.mark.parametrize("fraction", [0, -0.5, 1.01, float("nan"), float("inf")])
def test_a_fraction_outside_its_range_is_an_error_before_anything_is_built(fraction: float) -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB))
    with pytest.raises(InvalidRequest, match="memory_fraction"):
        fitted(engine, request(memory_fraction=fraction))
    assert engine.events == []


@pytest.mark.parametrize("wrong", [{"kv_tokens": 7}, {"kv_tokens": 0}, {"kv_tokens": -1}, {"canary_bytes": -1}])
def test_impossible_requests_are_errors_before_anything_is_built(wrong: dict[str, int]) -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB))
    with pytest.raises(InvalidRequest):
        fitted(engine, request(**wrong))
    assert engine.events == []


def test_the_fraction_multiplies_what_was_measured() -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB))
    assert fitted(engine, request(memory_fraction=0.5)).kv_tokens == (256 - KEPT) * KIB // 2 // 512


def test_the_reported_shortfall_is_enough() -> None:
    """One request needs 512 tokens, 256 KiB."""
    asked = request(least_tokens=512, probe_tokens=16, memory_fraction=0.29)
    probe = WatchedProbe(512 * KIB)
    engine = HonestEngine(probe)
    with pytest.raises(DoesNotFit, match="the shortfall is") as caught:
        fitted(engine, asked)
    missing = caught.value.missing_bytes
    assert missing is not None
    assert str(f"{missing:,} bytes") in str(caught.value)
    for less, fits in ((1, False), (0, True)):
        engine = HonestEngine(WatchedProbe(512 * KIB + missing - less))
        if fits:
            assert fitted(engine, asked).kv_tokens >= 512
        else:
            with pytest.raises(DoesNotFit):
                fitted(engine, asked)


def test_a_probe_that_does_not_fit_is_made_smaller() -> None:
    """Room for 20 tokens: the probe of 256 and those of half as many each time do not fit, that of 16 does."""
    engine = HonestEngine(WatchedProbe((KEPT + 10) * KIB))
    report = fitted(engine, request(probe_tokens=256))
    assert [tokens for name, tokens in engine.events if name == "build"] == [256, 128, 64, 32, 20]
    assert report.kv_tokens == 20


def test_an_engine_that_does_not_fit_at_all_says_so() -> None:
    engine = HonestEngine(WatchedProbe(40 * KIB))
    with pytest.raises(DoesNotFit, match="does not fit even with 8 KV tokens") as caught:
        fitted(engine, request())
    assert caught.value.missing_bytes == (16 + 4 + 4 + 32 - 40 + 8) * KIB
    assert engine.probe.live_bytes == engine.weights_bytes


def test_a_leak_names_what_holds_it_and_stops() -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB), leaks=(3 * KIB,))
    with pytest.raises(DeviceError, match=r"3\.0 KiB of tensors were not freed .* \(3072,\) torch\.uint8") as caught:
        fitted(engine, request())
    assert not isinstance(caught.value, DoesNotFit)
    assert [name for name, _ in engine.events].count("build") == 1


def test_a_leak_after_an_attempt_stops_too() -> None:
    engine = HonestEngine(WatchedProbe(1024 * KIB), growth_bytes=64, leaks=(0, 3 * KIB))
    with pytest.raises(DeviceError, match="were not freed"):
        fitted(engine, request())


def test_what_stays_reserved_is_a_leak_too() -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB), fragments=(3 * KIB,))
    with pytest.raises(DeviceError, match=r"3\.0 KiB stayed reserved by the allocator .* hold 0 B of it") as caught:
        fitted(engine, request())
    assert not isinstance(caught.value, DoesNotFit)
    assert [name for name, _ in engine.events].count("build") == 1


def test_the_error_names_which_of_the_two_leaks() -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB), leaks=(KIB,), fragments=(4 * KIB,))
    with pytest.raises(DeviceError, match=r"1\.0 KiB of tensors were not freed"):
        fitted(engine, request())
    engine = HonestEngine(WatchedProbe(256 * KIB), leaks=(KIB,), fragments=(4 * KIB,))
    with pytest.raises(DeviceError, match=r"5\.0 KiB stayed reserved .* tensors hold 1\.0 KiB of it"):
        fitted(engine, request(leak_tolerance_bytes=2 * KIB))


def test_what_stays_reserved_within_the_tolerance_is_a_warning() -> None:
    """The proven size leaves memory for it; what rounding explains gives no warning."""
    engine = HonestEngine(WatchedProbe(256 * KIB), fragments=(3 * KIB,))
    report = fitted(engine, request(leak_tolerance_bytes=4 * KIB))
    assert report.warnings == ("3.0 KiB stay reserved but unused after the engine is torn down",)
    assert report.kv_tokens == (256 - KEPT - 3) * KIB // 512
    engine = HonestEngine(WatchedProbe(256 * KIB), fragments=(3 * KIB,))
    assert fitted(engine, request(leak_tolerance_bytes=4 * KIB, rounding_bytes=3 * KIB)).warnings == ()


def test_a_leak_of_a_disturbed_measurement_is_no_weight() -> None:
    """A neighbour makes the first measurement worthless; what it left behind is a leak all the same."""
    engine = HonestEngine(WatchedProbe(GIB, neighbours=(0, 0, 0, 0, 256 * MIB)), leaks=(3 * KIB,))
    with pytest.raises(DeviceError, match="were not freed"):
        fitted(engine, request())


def test_libraries_may_keep_what_was_agreed() -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB), leaks=(3 * KIB,))
    report = fitted(engine, request(leak_tolerance_bytes=3 * KIB))
    assert report.attempts[-1].outcome is AttemptOutcome.PROVEN


def test_a_second_fit_with_the_same_probe_finds_the_same() -> None:
    """The canary of the first is not taken for weights."""
    engine = HonestEngine(WatchedProbe(256 * KIB))
    first = fitted(engine, request())
    engine.teardown()
    assert fitted(engine, request()) == first


def test_loading_leaves_no_trace_in_the_measurement() -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB))
    with engine.probe:
        torch.empty(200 * KIB, dtype=torch.uint8)  # a copy that loading made for a moment
    assert fitted(engine, request()).kv_tokens == (256 - KEPT) * KIB // 512


PHASES = [
    *(("build", 1), ("prefill", 1), ("decode", 1), ("prefill", 2), ("decode", 2), ("teardown", 1)),
    *(("build", 2), ("prefill", 3), ("decode", 3)),
]


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt(), ValueError("odd"), DeviceError("driver")])
@pytest.mark.parametrize("phase", PHASES)
def test_any_other_exception_ends_the_fit_at_once(phase: tuple[str, int], error: BaseException) -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB), faults={phase: error})
    with pytest.raises(type(error)) as caught:
        fitted(engine, request())
    assert caught.value is error
    assert engine.events[-1][0] == "teardown"
    assert [name for name, _ in engine.events].count(phase[0]) <= phase[1] + 1
    assert engine.probe.live_bytes == engine.weights_bytes


def test_an_exception_of_the_report_itself_tears_down() -> None:
    class Failing(WatchedProbe):
        readings = 0

        def reading(self):  # type: ignore[no-untyped-def]
            self.readings += 1
            if self.readings == 9:
                raise DeviceError("the driver is gone")
            return super().reading()

    engine = HonestEngine(Failing(256 * KIB))
    with pytest.raises(DeviceError, match="the driver is gone"):
        fitted(engine, request())
    assert engine.log[-1].name == "teardown"
    assert [event.name for event in engine.log].count("build") == 2


def test_a_neighbour_that_comes_while_measuring_is_noticed() -> None:
    came = 256 * MIB
    engine = HonestEngine(WatchedProbe(GIB, neighbours=(0, 0, 0, came)), token_bytes=64 * KIB)
    report = fitted(engine, request())
    assert [tokens for name, tokens in engine.events if name == "build"][:2] == [16, 16]
    assert report.kv_tokens == (GIB - came - KEPT * KIB) // (64 * KIB)
    assert {item.name: item.measured_bytes for item in report.items}["neighbours"] == came


def test_a_neighbour_that_leaves_again_is_noticed() -> None:
    came = 256 * MIB
    engine = HonestEngine(WatchedProbe(GIB, neighbours=(0, 0, came, 0)), token_bytes=64 * KIB)
    assert fitted(engine, request()).kv_tokens == (GIB - KEPT * KIB) // (64 * KIB)
    assert [tokens for name, tokens in engine.events if name == "build"][:2] == [16, 16]


def test_neighbours_that_are_never_stable_are_an_error() -> None:
    engine = HonestEngine(WatchedProbe(GIB, neighbours=(0, 128 * MIB) * 20))
    with pytest.raises(DeviceError, match="try again when their memory use is stable"):
        fitted(engine, request())
    assert engine.probe.live_bytes == engine.weights_bytes


def test_out_of_memory_by_a_passing_neighbour_is_measured_again() -> None:
    """The neighbour takes all but a few bytes while the probe is built, and is gone when it is built again."""
    came = GIB - 32 * KIB
    engine = HonestEngine(WatchedProbe(GIB, neighbours=(0, 0, came, came, 0)), token_bytes=64 * KIB)
    assert fitted(engine, request()).kv_tokens == (GIB - KEPT * KIB) // (64 * KIB)


def test_a_neighbour_that_comes_after_measuring_shrinks_the_size() -> None:
    readings = 7  # before the last one of a measurement and its teardown
    engine = HonestEngine(WatchedProbe(GIB, neighbours=(*(0,) * readings, 200 * MIB)), token_bytes=64 * KIB)
    report = fitted(engine, request())
    assert len(report.attempts) > 1
    assert report.kv_tokens <= (GIB - 200 * MIB - KEPT * KIB) // (64 * KIB)
    engine.assert_proven(report.kv_tokens, 8 * KIB)


def test_a_stored_size_is_proven_again_with_one_stress() -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB))
    stored = fit(engine, engine.probe, request(), engine.price)
    again = HonestEngine(WatchedProbe(256 * KIB))
    found = validate_stored(again, again.probe, request(), again.price, stored)
    assert found is not None
    assert replace(found, seconds=NO_TIME) == replace(stored, from_store=True, seconds=NO_TIME)
    assert [name for name, _ in again.events] == ["build", "prefill", "decode"]
    again.assert_proven(stored.kv_tokens, 8 * KIB)


def test_a_stored_size_that_does_not_fit_leaves_nothing() -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB))
    stored = fit(engine, engine.probe, request(), engine.price)
    again = HonestEngine(WatchedProbe(250 * KIB))
    assert validate_stored(again, again.probe, request(), again.price, stored) is None
    assert again.probe.live_bytes == again.weights_bytes


@pytest.mark.parametrize("phase", PHASES[:3])
def test_an_exception_while_validating_a_stored_size_tears_down(phase: tuple[str, int]) -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB))
    stored = fit(engine, engine.probe, request(), engine.price)
    again = HonestEngine(WatchedProbe(256 * KIB), faults={phase: RuntimeError("boom")})
    with pytest.raises(RuntimeError, match="boom"):
        validate_stored(again, again.probe, request(), again.price, stored)
    assert again.probe.live_bytes == again.weights_bytes


SIZES = st.integers(0, 300 * KIB)


@st.composite
def cases(draw: st.DrawFn) -> tuple[HonestEngine, FitRequest]:
    """An engine on a device, and what is asked of them: most do not fit easily."""
    weights, buffers, activation = draw(SIZES), draw(SIZES), draw(SIZES)
    budget = draw(st.integers(0, 1024 * KIB))
    probe = WatchedProbe(
        max(budget, round_up(weights, ROUNDING)), fail_at=draw(st.none() | st.integers(1, 20)), neighbours=()
    )
    least = draw(st.integers(1, 200))
    engine = HonestEngine(
        probe,
        token_bytes=draw(st.sampled_from([1, 7, 512, 1000, 4096])),
        weights_bytes=weights,
        buffers_bytes=buffers,
        activation_bytes=activation,
        growth_bytes=draw(st.sampled_from([0, 0, 1, 100])),
    )
    asked = request(
        probe_tokens=draw(st.integers(1, 300)),
        least_tokens=least,
        most_tokens=draw(st.integers(least, 5000)),
        kv_tokens=draw(st.none() | st.none() | st.integers(1, 1000)),
        memory_fraction=draw(st.sampled_from([1.0, 1.0, 0.9, 0.37, 1e-9, 0.0, 1.1])),
        canary_bytes=draw(st.integers(0, 100 * KIB)),
    )
    return engine, asked


@settings(max_examples=400, deadline=None)
@given(cases())
def test_a_proven_size_or_a_clear_failure(case: tuple[HonestEngine, FitRequest]) -> None:
    engine, asked = case
    before = engine.probe.live_bytes
    try:
        report = fit(engine, engine.probe, asked, engine.price)
    except (DoesNotFit, InvalidRequest, DeviceError):
        assert engine.probe.live_bytes == before
        assert engine.kv_tokens == 0
        return
    engine.assert_proven(report.kv_tokens, asked.canary_bytes)
    assert engine.kv_tokens == report.kv_tokens >= asked.least_tokens
    assert len(report.attempts) <= asked.max_attempts
    assert engine.probe.most_live_bytes <= engine.probe.device_bytes
    if asked.kv_tokens is not None:
        assert report.kv_tokens == asked.kv_tokens


@settings(max_examples=200, deadline=None)
@given(cases())
def test_nothing_is_left_where_memory_does_not_grow(case: tuple[HonestEngine, FitRequest]) -> None:
    """With what a probe can see and no accidents, the first attempt takes exactly what is left."""
    engine, asked = case
    engine.growth_bytes, engine.probe.fail_at = 0, None
    whole = round_up(asked.canary_bytes, ROUNDING)
    asked = replace(asked, kv_tokens=None, memory_fraction=1.0, canary_bytes=whole)
    kept = (engine.weights_bytes, engine.buffers_bytes, engine.activation_bytes, asked.canary_bytes)
    left = engine.probe.device_bytes - sum(round_up(size, ROUNDING) for size in kept)
    most = most_tokens_within(left, asked.most_tokens, engine.price)
    if most < asked.least_tokens:
        with pytest.raises(DoesNotFit):
            fit(engine, engine.probe, asked, engine.price)
    else:
        report = fit(engine, engine.probe, asked, engine.price)
        assert report.attempts == (Attempt(most, AttemptOutcome.PROVEN),)


class PromisedProbe(WatchedProbe):
    """Neighbours were promised a part of what is free, as a leased device counts it."""

    promised_bytes = 0

    def reading(self) -> MemoryReading:
        found = super().reading()
        return replace(
            found,
            free_bytes=found.free_bytes - self.promised_bytes,
            other_bytes=found.other_bytes + self.promised_bytes,
        )


def test_what_neighbours_were_promised_is_still_there_after_the_worst_step() -> None:
    """Steps at the full size need more than the small build showed: memory that is free, and not for this engine."""
    probe = PromisedProbe(1024 * KIB)
    probe.promised_bytes = 256 * KIB
    engine = HonestEngine(probe, growth_bytes=64)
    report = fit(engine, probe, request(keeps_promises=True), engine.price)
    assert len(report.attempts) > 1
    assert least_free_bytes(probe.reading()) >= 0
    assert report.items[1] == FitItem("neighbours", None, 256 * KIB)
