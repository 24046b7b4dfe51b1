"""One fit from start to report, for any engine: stored fits, validation or search, neighbours, warnings.

In: an engine that can be sized, a probe of its device, and an adapter that says what only the engine's author knows.
Out: the report of a proven size, at which the engine is left built with the canary held, stored for the next start.

    report = FitSession(engine, probe, price, adapter).run()

Knows records and ports only. `brim.serving` has the adapter of Brim's own engine and `brim.vllm.sizing` that of vLLM's
worker; what one engine does before a fit or with the report afterwards is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from brim.errors import DoesNotFit, InvalidRequest
from brim.fit.clock import Clock
from brim.fit.fit import fit, validate_stored
from brim.fit.items import with_note
from brim.fit.keep_free import KeepFree, keep_free, with_device_warning
from brim.fit.leased import LeasedProbe
from brim.fit.ranks import ONE_RANK, FitRanks
from brim.fit.store import StoredFit, find_stored
from brim.fit.target import KvPrice
from brim.ports import MemoryProbe, Neighbours, SizableEngine
from brim.records.fit import FitReport, FitRequest
from brim.records.memory import DeviceFacts, MemoryReading
from brim.records.progress import Told, silent
from brim.records.scaling import ScalingRequest


class FitAdapter(Protocol):
    """What only the author of an engine knows. Asked before anything is built, but for the warnings."""

    def facts(self) -> DeviceFacts:
        """Of the device."""
        ...

    def request(self, kept_free: KeepFree) -> FitRequest:
        """How the engine is to be sized, with so much left free."""
        ...

    def depends_on(self, request: FitRequest, before: MemoryReading) -> Mapping[str, Any]:
        """Everything that the size depends on (model, settings, device, versions), by name: a stored fit's key.

        Asked where there is a store.
        """
        ...

    def warnings(self) -> tuple[str, ...]:
        """For the report, of the engine as it is built."""
        ...


class FitPredictions(Protocol):
    """What plan and trace add to a measurement. Optional."""

    def scaling(self) -> ScalingRequest | None:
        """Steps to learn memory scaling from; None: it is off."""
        ...

    def explained(self, error: DoesNotFit, request: FitRequest, before: MemoryReading) -> DoesNotFit:
        """The error with what would help; `before` is the device before anything was built."""
        ...

    def compared(self, report: FitReport) -> FitReport:
        """The report with what was predicted."""
        ...


@dataclass(frozen=True, slots=True)
class RequestAdapter:
    """An engine that needs no more than a `FitRequest`. What stays free is added to it.

    `key` is everything that the size depends on; without it, no fit can be stored.
    """

    asked: FitRequest
    key: Mapping[str, Any] = field(default_factory=dict)
    device: DeviceFacts = field(default_factory=DeviceFacts)

    def facts(self) -> DeviceFacts:
        return self.device

    def request(self, kept_free: KeepFree) -> FitRequest:
        return replace(self.asked, keep_free_bytes=kept_free.bytes, keep_free_note=kept_free.note)

    def depends_on(self, request: FitRequest, before: MemoryReading) -> Mapping[str, Any]:
        if not self.key:
            raise InvalidRequest(
                "store: a stored fit needs a key: everything that the size depends on (RequestAdapter.key)"
            )
        return {**self.key, "request": asdict(request), "memory": before.total_bytes}

    def warnings(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What the operator decides about any engine's fit."""

    keep_free_bytes: int | None = None  # None: the default for this device
    store: Path | None = None  # a folder of proven fits; None: nothing is read or written


@dataclass(frozen=True, slots=True)
class _Start:
    """What is decided before anything is built."""

    before: MemoryReading
    facts: DeviceFacts
    kept_free: KeepFree
    request: FitRequest
    stored: StoredFit


def _unheard(words: str) -> None:
    """For those who do not ask."""


@dataclass(frozen=True, slots=True)
class FitSession:
    """A fit that is about to run. With several ranks, each runs one, and all get the same size."""

    engine: SizableEngine
    probe: MemoryProbe  # of the whole device, shared or not
    price: KvPrice
    adapter: FitAdapter
    options: SessionOptions = SessionOptions()
    predictions: FitPredictions | None = None
    ranks: FitRanks = ONE_RANK
    neighbours: Neighbours | None = None
    told: Told = silent
    say: Callable[[str], None] = _unheard  # why a stored fit is not used

    def run(self) -> FitReport:
        """A stored size, validated once again, or the result of a search."""
        clock = Clock(self.told)
        probe = self.probe if self.neighbours is None else LeasedProbe(self.probe, self.neighbours)
        with self.ranks.together("start"):
            start = self._start(probe)
        if start.stored.unused:
            self.say(f"the stored fit is not used: {start.stored.unused}")
        report = self._validated(probe, start, clock)
        if report is None:
            with self._naming_neighbours():
                report = self._searched(probe, start, clock)
        report = self._warned(self._published(report), start)
        return start.stored.kept(replace(report, seconds=clock.seconds()))

    def _start(self, probe: MemoryProbe) -> _Start:
        facts = self.adapter.facts()
        probe.hold_canary(0)  # one of an earlier fit, and the allocator's cache
        before = probe.reading()
        kept_free = keep_free(self.options.keep_free_bytes, facts, before.total_bytes)
        promises = self.neighbours is not None and self.neighbours.keeps_promises
        request = replace(self.adapter.request(kept_free), keeps_promises=promises)
        folder = self.options.store if request.kv_tokens is None else None
        parts = {} if folder is None else self.adapter.depends_on(request, before)
        stored = find_stored(folder, parts, before.free_bytes)
        return _Start(before, facts, kept_free, request, stored)

    def _validated(self, probe: MemoryProbe, start: _Start, clock: Clock) -> FitReport | None:
        stored = start.stored.report
        if not self.ranks.agree(None if stored is None else stored.kv_tokens) or stored is None:
            return None
        return validate_stored(self.engine, probe, start.request, self.price, stored, ranks=self.ranks, clock=clock)

    def _searched(self, probe: MemoryProbe, start: _Start, clock: Clock) -> FitReport:
        scaling = None if self.predictions is None else self.predictions.scaling()
        try:
            report = fit(self.engine, probe, start.request, self.price, ranks=self.ranks, clock=clock, scaling=scaling)
        except DoesNotFit as error:
            if self.predictions is None:
                raise
            raise self.predictions.explained(error, start.request, start.before) from error
        if self.predictions is None:
            return report
        try:
            with clock.phase("predict"):
                return self.predictions.compared(report)
        except BaseException:
            probe.hold_canary(0)
            self.engine.teardown()
            raise

    @contextmanager
    def _naming_neighbours(self) -> Iterator[None]:
        """If nothing fits, say who else is on the device."""
        try:
            yield
        except DoesNotFit as error:
            note = "" if self.neighbours is None else self.neighbours.note()
            if not note:
                raise
            ledger = with_note(error.ledger, "neighbours", note)
            raise DoesNotFit(f"{error}\nneighbours: {note}", error.missing_bytes, ledger, error.knobs) from error

    def _published(self, report: FitReport) -> FitReport:
        """Neighbours learn what this process holds, and the report says who they are."""
        if self.neighbours is None:
            return report
        self.neighbours.hold(self.probe.reading())
        return replace(report, items=with_note(report.items, "neighbours", self.neighbours.note()))

    def _warned(self, report: FitReport, start: _Start) -> FitReport:
        report = with_device_warning(report, start.facts, start.kept_free)
        return replace(report, warnings=(*report.warnings, *self.adapter.warnings()))
