"""The black box of `brim serve`: what its loop, its watch and its device say, written into a recording.

In: every step from the engine's thread, events from the event loop's, and once a second, in a thread of its own, who
holds what by NVML and leases. Out: a file that `brim explain` reads. A reading of the allocator and the driver is taken
at most ten times a second, and steps between carry the last one. Nothing here sees a prompt, an answer or a client.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from brim.errors import BrimError, OutOfMemory, first_line
from brim.probes.host import available_host_bytes
from brim.probes.translate import is_refusal
from brim.probes.usage import gpu_usage, program_name
from brim.record.entries import LedgerLine, Note, NoteKind, StartEntry, StepEntry, StepState
from brim.record.holders import DeviceHolder, DeviceUse, HolderNotes
from brim.record.writer import RecordingWriter
from brim.records.lease import Lease
from brim.records.memory import MemoryReading
from brim.reserve.processes import resident_bytes
from brim.serve.watch.changes import Change
from brim.version import __version__

if TYPE_CHECKING:
    from brim.engine.schedule.plan import StepBounds, StepPlan
    from brim.engine.schedule.scheduler import Scheduler
    from brim.ports import MemoryProbe
    from brim.serve.lifecycle import SizedEngine, SizedPooling

_READING_SECONDS = 0.1
_LOOK_SECONDS = 1.0
_HOST_SECONDS = 10.0
_NOTHING = MemoryReading(0, 0, 0, 0, 0, 0, 0)
_SETTINGS = (
    *("max_batch", "max_batch_tokens", "max_length", "block_size", "kv_dtype", "graphs", "admission"),
    *("speculate", "draft_tokens", "scoring_memory"),
)


class ServeRecorder:
    """Observes one engine from its start to its end."""

    def __init__(self, writer: RecordingWriter, probe: MemoryProbe | None) -> None:
        self._writer = writer
        self._probe = probe
        self._reading = _NOTHING
        self._next_reading = 0.0
        self._launched_at = 0.0
        self._ended = threading.Event()
        self._looking: threading.Thread | None = None

    # -- the engine's thread: a `StepObserver` ---------------------------------------------------------------------

    def planned(self, plan: StepPlan, scheduler: Scheduler, bounds: StepBounds | None) -> None:
        self._launched_at = now = time.perf_counter()
        if now >= self._next_reading and self._probe is not None:
            self._reading, self._next_reading = self._probe.reading(), now + _READING_SECONDS
        prompt = media = scored = 0
        for chunk in plan.chunks:
            request = chunk.sequence.request
            prompt += chunk.length
            if request.params.prompt_logprobs is not None:
                scored += chunk.length
            for span in request.spans:
                media += max(0, min(span.end, chunk.start + chunk.length) - max(span.start, chunk.start))
        held = cached = free = 0
        for pool in scheduler.ledger.pools:
            here, kept = pool.available, pool.cached
            held += pool.blocks - here
            cached += kept
            free += here - kept
        seen = self._reading
        self._writer.step(
            StepEntry(
                time.time(),
                StepState.PLANNED,
                0,
                len(plan.decodes),
                len(plan.chunks),
                prompt,
                media,
                plan.decode_rows - len(plan.decodes) if plan.drafts else 0,
                scored,
                len(scheduler.running),
                len(scheduler.waiting),
                held,
                cached,
                free,
                scheduler.preemptions,
                0 if bounds is None else bounds.tokens,
                seen.allocated_bytes,
                seen.reserved_bytes,
                seen.free_bytes,
                seen.peak_allocated_bytes,
            )
        )

    def launched(self) -> None:
        self._writer.outcome(StepState.LAUNCHED, self._since_launch())

    def failed(self, error: BaseException) -> None:
        refused = isinstance(error, OutOfMemory) or is_refusal(error)
        self._writer.outcome(StepState.OUT_OF_MEMORY if refused else StepState.FAILED, self._since_launch())
        if refused:
            self._writer.tell(NoteKind.OUT_OF_MEMORY, first_line(error))

    def _since_launch(self) -> int:
        return int((time.perf_counter() - self._launched_at) * 1e6)

    # -- the event loop's thread -----------------------------------------------------------------------------------

    def started(self, started: SizedEngine | SizedPooling, model: str) -> None:
        """Write the ledger of the start, and look at the device from now on."""
        self._writer.start(start_entry(started, model))
        self._looking = threading.Thread(
            target=self._keep_looking, args=(_device_look(started),), name="brim-recorder", daemon=True
        )
        self._looking.start()

    def happened(self, change: Change) -> None:
        """An event of the watch."""
        self._writer.tell(NoteKind(str(change.kind)), change.text, count=change.count)

    def close(self) -> None:
        self._ended.set()
        if self._looking is not None:
            self._looking.join()
        self._writer.close()

    # -- its own thread --------------------------------------------------------------------------------------------

    def _keep_looking(self, look: Callable[[], DeviceUse | None]) -> None:
        holders, next_host = HolderNotes(), 0.0
        while not self._ended.wait(_LOOK_SECONDS):
            now = time.time()
            if now >= next_host:
                next_host = now + _HOST_SECONDS
                own = resident_bytes(os.getpid())
                self._writer.note(Note(now, NoteKind.HOST, 1, 0, available_host_bytes(), own))
            try:
                use = look()
            except BrimError:  # the ledger is locked, or the driver does not answer: the next second may be better
                continue
            for note in () if use is None else holders.notes(now, use):
                self._writer.note(note)


def start_entry(started: SizedEngine | SizedPooling, model: str) -> StartEntry:
    """What the fit found; where the size was given, what is known by counting."""
    engine, report = started.engine, started.report
    figures = engine.figures
    lines = (
        (LedgerLine("weights", None, figures.weight_bytes), LedgerLine("kv", None, figures.kv_bytes))
        if report is None
        else tuple(LedgerLine(one.name, one.predicted_bytes, one.measured_bytes) for one in report.items)
    )
    total = report.total_bytes if report is not None else 0
    if not total and started.probe is not None:
        total = started.probe.reading().total_bytes
    return StartEntry(
        engine="brim",
        version=__version__,
        model=model,
        device=str(engine.device),
        total_bytes=total,
        kv_tokens=figures.kv_tokens,
        kv_bytes=figures.kv_bytes,
        settings=tuple(
            (name, str(getattr(engine.settings, name))) for name in _SETTINGS if hasattr(engine.settings, name)
        ),
        ledger=lines,
    )


def _device_look(started: SizedEngine | SizedPooling) -> Callable[[], DeviceUse | None]:
    """How to see who is on the device: by leases, and by NVML on a GPU."""
    sizer, device = started.neighbours, started.engine.device
    uuid = ""
    if sizer is not None:
        uuid = sizer.device.key if sizer.device.has_driver else ""
    elif device.type == "cuda":
        from brim.probes.nvml import device_uuid

        uuid = device_uuid(device.index or 0)

    def look() -> DeviceUse | None:
        leases = () if sizer is None else (sizer.lease, *sizer.neighbours())
        if uuid:
            return _gpu_use(uuid, leases)
        return None if sizer is None else _budget_use(sizer.device.total_bytes, leases)

    return look


def _budget_use(total_bytes: int, leases: tuple[Lease, ...]) -> DeviceUse:
    """Of a budget on the CPU nothing is measured: it is what its leases say."""
    free = total_bytes - sum(one.claim_bytes for one in leases)
    return DeviceUse(total_bytes, max(0, free), tuple(map(_leased, leases)), os.getpid())


def _gpu_use(uuid: str, leases: tuple[Lease, ...]) -> DeviceUse:
    """A GPU by NVML, with the roles and promises of those that have a lease."""
    usage = gpu_usage(uuid)
    holders = {one.pid: one for one in map(_leased, leases)}
    for pid, size in usage.by_pid.items():
        known = holders.get(pid) or DeviceHolder(pid, size, 0, program_name(pid))
        holders[pid] = replace(known, held_bytes=size)
    return DeviceUse(usage.total_bytes, usage.free_bytes, tuple(holders.values()), os.getpid())


def _leased(lease: Lease) -> DeviceHolder:
    return DeviceHolder(lease.holder.pid, lease.held_bytes or 0, lease.claim_bytes, lease.role)
