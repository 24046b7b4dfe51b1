"""An engine that embeds or scores, sized by measurement: the largest batch that is proven to fit.

In: a `PoolingEngine` that is loaded and not built. Out: the report of a fit, and the engine built at the proven size.
The size of such an engine is the most tokens of a batch; what a token of a batch takes is measured first, with the
longest input alone and with twice as many tokens, and is the price that `brim.fit.session` searches by. A batch never
has more tokens than was asked for: the next one waits for it.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.errors import DoesNotFit, OutOfMemory
from brim.fit.items import with_note
from brim.fit.keep_free import KeepFree
from brim.fit.session import FitSession, SessionOptions
from brim.fit.target import KvPrice
from brim.ports import CanaryProbe, MemoryProbe
from brim.probes.cpu import CpuProbe
from brim.probes.proven import ProvenBound
from brim.progress import showing
from brim.records.fit import CANARY_BYTES, CUDA_ROUNDING_BYTES, CUDA_WORKSPACE_BYTES, FitReport, FitRequest
from brim.records.memory import DeviceFacts, MemoryReading
from brim.records.progress import Progress, Stage, Told
from brim.records.scaling import ScalingRequest
from brim.reserve.sizing import Sizer
from brim.units import ceil_div, format_bytes
from brim.version import __version__

if TYPE_CHECKING:
    from brim.engine.pooling.engine import PoolingEngine


def fit_batches(
    engine: PoolingEngine,
    *,
    probe: MemoryProbe,
    memory_fraction: float = 1.0,
    canary_bytes: int = CANARY_BYTES,
    keep_free_bytes: int | None = None,
    facts: DeviceFacts | None = None,
    store: Path | None = None,
    progress: Progress = None,
    neighbours: Sizer | None = None,
) -> FitReport:
    """Prove how large batches may be; the options are those of `brim.fit_engine`."""
    with showing(engine.shown if progress is None else progress) as told:
        price = _measured_price(engine, probe, told)
        adapter = _BatchAdapter(engine, memory_fraction, canary_bytes, facts)
        session = FitSession(
            engine,
            probe,
            price,
            adapter,
            SessionOptions(keep_free_bytes, store),
            predictions=adapter,
            neighbours=neighbours,
            told=told,
        )
        report = session.run()
    if isinstance(probe, CanaryProbe):
        engine.watch_memory(probe)
    if isinstance(probe, CpuProbe) and not probe.counts_serving:
        engine.serve_within(ProvenBound(probe, max(shape.tokens for shape in engine.stress_shapes())))
    return _without_kv(report, price(engine.max_length))


def _measured_price(engine: PoolingEngine, probe: MemoryProbe, told: Told) -> KvPrice:
    """Bytes of a batch of so many tokens, beyond what the first one takes anyway."""
    least, most = engine.max_length, _most_tokens(engine)
    sizes = {
        tokens: _batch_bytes(engine, probe, tokens, told) for tokens in dict.fromkeys((least, min(2 * least, most)))
    }
    known = {tokens: size for tokens, size in sizes.items() if size is not None}
    if len(known) == 2:
        (fewer, small), (more, large) = sorted(known.items())
        each = max(1, ceil_div(max(0, large - small), more - fewer))
    else:
        each = max(1, ceil_div(next(iter(known.values()), 0), least))
    return lambda tokens: each * tokens


def _batch_bytes(engine: PoolingEngine, probe: MemoryProbe, tokens: int, told: Told) -> int | None:
    """The peak of the worst batches; None where they do not fit."""
    told(Stage("probe", f"{tokens:,} tokens"))
    engine.build(tokens)
    try:
        probe.reset_peak()
        before = probe.reading().allocated_bytes
        for shape in engine.stress_shapes():
            engine.stress(shape)
        return probe.reading().peak_allocated_bytes - before
    except OutOfMemory:
        return None
    finally:
        engine.teardown()


def _most_tokens(engine: PoolingEngine) -> int:
    """Of a batch: what was asked for, and no more than a full batch has; one input at least."""
    full = engine.settings.max_rows * engine.max_length
    return max(engine.max_length, min(engine.settings.max_batch_tokens, full))


def _without_kv(report: FitReport, probed_bytes: int) -> FitReport:
    """What the session counts as KV is the memory of batches: their activation.

    So was `probed_bytes` of the batch that it measured: they are missing in its workspace, and twice in its activation.
    """
    batches = next((item.measured_bytes or 0 for item in report.items if item.name == "kv"), 0) - probed_bytes
    more = {"activation": batches, "workspace": probed_bytes}
    items = tuple(
        replace(item, measured_bytes=(item.measured_bytes or 0) + more.get(item.name, 0))
        for item in report.items
        if item.name != "kv"
    )
    return replace(
        report,
        kv_tokens=0,
        kv_bytes=0,
        needed_tokens=0,
        needed_bytes=0,
        limit_tokens=0,
        batch_tokens=report.kv_tokens,
        items=with_note(items, "activation", "of the largest batch"),
    )


@dataclass(frozen=True, slots=True)
class _BatchAdapter:
    """An engine that embeds or scores, for a fit session."""

    engine: PoolingEngine
    memory_fraction: float
    canary_bytes: int
    given_facts: DeviceFacts | None

    @property
    def _on_gpu(self) -> bool:
        return self.engine.device.type == "cuda"

    def facts(self) -> DeviceFacts:
        if self.given_facts is not None or not self._on_gpu:
            return self.given_facts or DeviceFacts()
        from brim.probes.facts import gpu_facts

        return gpu_facts(self.engine.device.index or 0)

    def request(self, kept_free: KeepFree) -> FitRequest:
        return FitRequest(
            probe_tokens=self.engine.max_length,
            least_tokens=self.engine.max_length,
            most_tokens=_most_tokens(self.engine),
            memory_fraction=self.memory_fraction,
            canary_bytes=self.canary_bytes,
            keep_free_bytes=kept_free.bytes,
            keep_free_note=kept_free.note,
            leak_tolerance_bytes=CUDA_WORKSPACE_BYTES if self._on_gpu else 0,
            rounding_bytes=CUDA_ROUNDING_BYTES if self._on_gpu else 0,
        )

    def depends_on(self, request: FitRequest, before: MemoryReading) -> Mapping[str, Any]:
        import torch
        import transformers

        model, device = self.engine.model, "cpu"
        if self._on_gpu:
            device = str(torch.cuda.get_device_properties(self.engine.device))
        return {
            "model": model.config.to_dict(),
            "task": str(model.task),
            "weights": model.weight_bytes,
            "width": model.width,
            "dtype": str(model.model.dtype),
            "settings": asdict(self.engine.settings),
            "request": asdict(request),
            "device": device,
            "memory": before.total_bytes,
            "cuda": torch.version.cuda,
            "versions": [__version__, torch.__version__, transformers.__version__, platform.python_version()],
        }

    def warnings(self) -> tuple[str, ...]:
        return self.engine.warnings

    def scaling(self) -> ScalingRequest | None:
        return None

    def explained(self, error: DoesNotFit, request: FitRequest, before: MemoryReading) -> DoesNotFit:
        """In words of batches: the session speaks of KV."""
        longest = self.engine.max_length
        weights = format_bytes(self.engine.model.weight_bytes)
        missing = error.missing_bytes
        short = f"; the shortfall is {format_bytes(missing)}" if missing else ""
        found = DoesNotFit(
            f"the longest input ({longest:,} tokens) does not fit beside {weights} of weights and a canary of "
            f"{format_bytes(request.canary_bytes)}{short}; give more memory, or lower --max-len or --canary",
            missing_bytes=missing,
        )
        found.ledger = error.ledger
        return found

    def compared(self, report: FitReport) -> FitReport:
        return report
