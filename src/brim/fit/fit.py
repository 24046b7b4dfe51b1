"""Drive an engine until the size of its KV cache is proven.

    probe     build small, run the worst steps for real
    measure   the peak of everything but KV, and what neighbours hold
    target    give the rest, less a canary and what stays free, to the KV cache: in tokens, the minimum over all ranks
    rebuild   tear down, check that everything was freed, build at the target, hold the canary
    scaling   if wanted: measure a few smaller steps, from which the laws of memory scaling are learned
    validate  run the worst steps again; out of memory shrinks the target, a few times

Only out-of-memory is retried. Any other error tears the engine down and is raised. A report is only returned for a
size that was validated.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from functools import partial

from brim.errors import DeviceError, DoesNotFit, InvalidRequest, OutOfMemory
from brim.fit.clock import Clock
from brim.fit.items import measured_items
from brim.fit.leaks import is_leak, leak_error, residue, residue_warning
from brim.fit.measure import UNREST_BYTES, Measurement, least_free_bytes, measure
from brim.fit.ranks import ONE_RANK, FitRanks
from brim.fit.scaling.blocks import kv_tokens_without_rebuild
from brim.fit.scaling.learn import report_scaling
from brim.fit.scaling.measure import measure_steps
from brim.fit.target import KvPrice, left_bytes, limit_tokens, shrunk_tokens, target_tokens, tokens_left
from brim.ports import MemoryProbe, SizableEngine
from brim.records.fit import Attempt, AttemptOutcome, FitReport, FitRequest, Usage
from brim.records.memory import MemoryReading
from brim.records.scaling import MeasuredShape, ScalingRequest, StepPhase
from brim.units import format_bytes

_REPEATS = 3  # of a measurement during which the memory use of neighbours changed


def fit(
    engine: SizableEngine,
    probe: MemoryProbe,
    request: FitRequest,
    price: KvPrice,
    *,
    ranks: FitRanks = ONE_RANK,
    clock: Clock | None = None,
    scaling: ScalingRequest | None = None,
) -> FitReport:
    """The largest KV cache that passed the worst steps; the engine is left built at that size."""
    with ranks.together("request"):
        _check(request)
    return _Fitting(engine, probe, request, price, ranks, clock or Clock(), scaling).run()


def validate_stored(
    engine: SizableEngine,
    probe: MemoryProbe,
    request: FitRequest,
    price: KvPrice,
    stored: FitReport,
    *,
    ranks: FitRanks = ONE_RANK,
    clock: Clock | None = None,
) -> FitReport | None:
    """The stored size, validated once again; None, and nothing built, if that fails."""
    return _Fitting(engine, probe, request, price, ranks, clock or Clock()).run_stored(stored)


def _check(request: FitRequest) -> None:
    if not 0 < request.memory_fraction <= 1:
        raise InvalidRequest(f"memory_fraction is {request.memory_fraction}; it must be above 0 and at most 1")
    if request.kv_tokens is not None and request.kv_tokens < request.least_tokens:
        raise InvalidRequest(
            f"kv_tokens is {request.kv_tokens}; one request needs {request.least_tokens}: give at least that many"
        )
    for name in ("canary", "keep_free"):
        size = getattr(request, f"{name}_bytes")
        if size < 0:
            raise InvalidRequest(f"{name} is {size}; it must not be negative")


@dataclass(slots=True)
class _Fitting:
    """One fit. What may fail runs inside `ranks.together`, so that no rank waits for one that has failed."""

    engine: SizableEngine
    probe: MemoryProbe
    request: FitRequest
    price: KvPrice
    ranks: FitRanks
    clock: Clock
    scaling: ScalingRequest | None = None
    warning: str = ""  # of the last teardown
    shapes: tuple[MeasuredShape, ...] = ()  # measured for scaling, at the first size that was built

    def run(self) -> FitReport:
        usage: Usage | None = None
        target = self.request.kv_tokens
        try:
            before = self._start()
            if target is None:
                usage = self._measure_small(before)
                with self.ranks.together("target"):
                    target = target_tokens(usage, self.request, self.price)
                target = self.ranks.fewest(target)
            attempts = self._prove(target, before)
            with self.ranks.together("report"):
                report = self._report(attempts, usage)
            return report if self.scaling is None else self._with_scaling(report, self.scaling, usage)
        except BaseException as error:
            self._give_back()
            if isinstance(error, DoesNotFit) and usage is not None:
                needed = self.price(self.request.least_tokens)
                error.ledger = measured_items(usage, self.request, needed)
            raise

    def run_stored(self, stored: FitReport) -> FitReport | None:
        try:
            before = self._start()
            attempt = self.ranks.worst(self._attempt(stored.kv_tokens))
            if attempt.outcome is not AttemptOutcome.PROVEN:
                self._take_down(before)
                return None
            with self.ranks.together("report"):
                found = self._report((attempt,), None)
        except BaseException:
            self._give_back()
            raise
        return replace(
            found, from_store=True, items=stored.items, limit_tokens=stored.limit_tokens, scaling=stored.scaling
        )

    # -- measure -------------------------------------------------------------------------------------------------

    def _start(self) -> MemoryReading:
        """The device before anything is built, without the canary of an earlier fit."""
        with self.ranks.together("start"):
            self.probe.hold_canary(0)
            return self.probe.reading()

    def _measure_small(self, before: MemoryReading) -> Usage:
        """The engine's peak without KV: measured with a small KV cache, and a smaller one if that leaves no memory."""
        kv_tokens, least = self.request.probe_tokens, self.request.least_tokens
        measured = self._measure_quietly(kv_tokens, before)
        while kv_tokens > least and not self.ranks.all(self._leaves_room(measured)):
            kv_tokens = max(kv_tokens // 2, least)
            measured = self._measure_quietly(kv_tokens, before)
        with self.ranks.together("probe"):
            if measured.usage is None:
                raise self._too_small(measured, before)
        return measured.usage

    def _leaves_room(self, measured: Measurement) -> bool:
        if measured.usage is None:
            return False
        return tokens_left(measured.usage, self.request, self.price) >= self.request.least_tokens

    def _measure_quietly(self, kv_tokens: int, before: MemoryReading) -> Measurement:
        """A measurement during which the neighbours' memory was stable on every rank; nothing is left built."""
        for _ in range(_REPEATS):
            with self.ranks.together("probe"):
                measured = measure(
                    self.engine, self.probe, kv_tokens, self.price, self.clock.phase, self.request.own_growth_bytes
                )
            self._take_down(before)
            if self.ranks.all(measured.quiet):
                return measured
        raise DeviceError(
            f"other processes on the device allocated or freed more than {format_bytes(UNREST_BYTES)} during each of "
            f"{_REPEATS} measurements; try again when their memory use is stable"
        )

    def _too_small(self, measured: Measurement, before: MemoryReading) -> DoesNotFit:
        """The shortfall is at least that of the failed allocation, or what is known to be needed before any step."""
        request, tokens = self.request, min(self.request.least_tokens, self.request.probe_tokens)
        kept = request.canary_bytes + request.keep_free_bytes  # neither was held yet
        known = self.price(tokens) + request.state_bytes + request.feature_bytes + kept - before.free_bytes
        refused = measured.missing_bytes
        missing = max(known, 0 if refused is None else refused + kept)
        words = f"the engine does not fit even with {tokens:,} KV tokens: {measured.problem}"
        if missing > 0:
            included = "canary and keep_free" if request.keep_free_bytes else "canary"
            words += f"; the shortfall is at least {format_bytes(missing)}, {included} included"
        return DoesNotFit(
            words,
            missing_bytes=missing if missing > 0 else None,
        )

    # -- prove ---------------------------------------------------------------------------------------------------

    def _prove(self, target: int, before: MemoryReading) -> tuple[Attempt, ...]:
        """Build and stress at the target, smaller each time it does not fit; the last attempt is the proven one."""
        attempts: list[Attempt] = []
        allowed = 1 if self.request.kv_tokens is not None else self.request.max_attempts
        while len(attempts) < allowed and target >= self.request.least_tokens:
            mine = self._attempt(target)
            attempts.append(self.ranks.worst(mine))
            if attempts[-1].outcome is AttemptOutcome.PROVEN:
                return tuple(attempts)
            self._take_down(before)
            target = self.ranks.fewest(self._next(mine))
        tried = ", ".join(f"{one.kv_tokens:,}" for one in attempts) or "none"
        missing = attempts[-1].shortfall_bytes if attempts else None
        kept_free = self.request.keep_free_bytes
        raise DoesNotFit(
            f"no KV cache size passed validation (tried {tried} tokens; one request needs "
            f"{self.request.least_tokens:,})"
            + (f"; the last shortfall was {format_bytes(missing)}" if missing else "")
            + (f"; {format_bytes(kept_free)} must stay free (keep_free)" if kept_free else ""),
            missing_bytes=missing,
        )

    def _next(self, mine: Attempt) -> int:
        """The next size to try after one that failed on some rank; that of one request is tried before giving up."""
        if mine.outcome is AttemptOutcome.PROVEN:
            return mine.kv_tokens
        smaller = shrunk_tokens(mine, self.price)
        return max(smaller, self.request.least_tokens) if mine.kv_tokens > self.request.least_tokens else smaller

    def _attempt(self, target: int) -> Attempt:
        """Build one size with the canary held, then validate it if all ranks could build; the outcome on this rank."""
        mine = Attempt(target, AttemptOutcome.PROVEN)
        for part in (partial(self._build_at, target), partial(self._measure_scaling, target), self._validate):
            with self.ranks.together("attempt"):
                try:
                    part()
                except OutOfMemory as error:
                    mine = Attempt(target, AttemptOutcome.OUT_OF_MEMORY, error.missing_bytes)
            if not self.ranks.all(mine.outcome is AttemptOutcome.PROVEN):
                break
        return mine

    def _build_at(self, target: int) -> None:
        with self.clock.phase("rebuild", f"{target:,} tokens"):
            self.probe.reset_peak()
            self.engine.build(target)
            self.probe.hold_canary(self.request.canary_bytes)

    def _measure_scaling(self, target: int) -> None:
        """Before the size is validated, so that what these steps leave in the allocator is part of what is proven."""
        if self.scaling is None or self.shapes:
            return
        steps = [step for step in self.scaling.steps.steps if step.pool_tokens <= target]
        if self._keeps_free:
            self._check_kept_free()  # by the build, whose peak is forgotten here
        self.shapes = measure_steps(self.engine, self.probe, steps, self.clock.phase)
        self.probe.reset_peak()

    def _validate(self) -> None:
        for shape in self.engine.stress_shapes():
            with self.clock.phase("validate", shape.title):
                self.engine.stress(shape)
        if self._keeps_free:
            self._check_kept_free()

    @property
    def _keeps_free(self) -> bool:
        return self.request.keep_free_bytes > 0 or self.request.keeps_promises

    def _check_kept_free(self) -> None:
        """Read and not allocated: another process may use this memory meanwhile."""
        wanted, found = self.request.keep_free_bytes, least_free_bytes(self.probe.reading())
        if found < 0 and self.request.keeps_promises:
            used = f"the worst step used {format_bytes(-found)} that neighbours were promised"
            raise OutOfMemory(used, missing_bytes=wanted - found)
        if found < wanted:
            raise OutOfMemory(
                f"keep_free is {format_bytes(wanted)}; {format_bytes(max(0, found))} stayed free in the worst step",
                missing_bytes=wanted - found,
            )

    def _report(self, attempts: tuple[Attempt, ...], usage: Usage | None) -> FitReport:
        proven = attempts[-1].kv_tokens
        kv_bytes, reading = self.price(proven), self.probe.reading()
        running = self.request.running_tokens
        needed = proven if running is None else min(proven, running)
        return FitReport(
            kv_tokens=proven,
            kv_bytes=kv_bytes,
            canary_bytes=self.request.canary_bytes,
            keep_free_bytes=self.request.keep_free_bytes,
            attempts=attempts,
            items=() if usage is None else measured_items(usage, self.request, kv_bytes),
            seconds=self.clock.seconds(),
            from_store=False,
            total_bytes=reading.total_bytes,
            free_bytes=reading.free_bytes,
            limit_tokens=proven if usage is None else limit_tokens(usage, self.request, self.price),
            needed_tokens=needed,
            needed_bytes=self.price(needed),
            limited_by=self._limit(proven),
            warnings=(self.warning,) if self.warning else (),
        )

    def _with_scaling(self, report: FitReport, request: ScalingRequest, usage: Usage | None) -> FitReport:
        """The laws, and the limit they give a batch on the tightest rank."""
        sizes = self.ranks.largest(tuple(shape.bytes for shape in self.shapes))
        shapes = [replace(shape, bytes=size) for shape, size in zip(self.shapes, sizes, strict=True)]
        if {shape.phase for shape in shapes} != set(StepPhase):
            small = f"scaling is off: a KV cache of {report.kv_tokens:,} tokens is too small for the steps it measures"
            return replace(report, warnings=(*report.warnings, small))
        step = max(sizes) if usage is None else usage.step_bytes
        learned = report_scaling(shapes, request, self.ranks.fewest(report.kv_bytes + step))
        if usage is not None:
            left = left_bytes(usage, self.request) + usage.step_bytes
            steps = [one.shape for one in request.steps.steps]
            alone = kv_tokens_without_rebuild(left, learned.scaling, steps, self.price, self.request.most_tokens)
            learned = replace(learned, kv_tokens_without_rebuild=self.ranks.fewest(alone))
        return replace(report, scaling=learned)

    def _limit(self, proven: int) -> str:
        if self.request.kv_tokens is not None:
            return "given"
        return "requests" if proven == self.request.most_tokens else "memory"

    # -- take down -----------------------------------------------------------------------------------------------

    def _take_down(self, before: MemoryReading) -> None:
        """Tear down, and check that everything was freed: tensors, and what the allocator reserved for them."""
        with self.clock.phase("rebuild", "teardown"), self.ranks.together("teardown"):
            self._give_back()
            left = residue(before, self.probe.reading())
            if is_leak(left, self.request):
                gc.collect()  # garbage that is not collected yet is no leak
                self.probe.hold_canary(0)  # also empties the allocator's cache
                left = residue(before, self.probe.reading())
            if is_leak(left, self.request):
                raise leak_error(left, self.request, self.probe.largest_held(3))
            self.warning = residue_warning(left, self.request)

    def _give_back(self) -> None:
        try:
            self.probe.hold_canary(0)
        finally:
            self.engine.teardown()
