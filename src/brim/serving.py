"""Brim's engine sized by measurement: its adapter for `brim.fit.session`, with the predictions of plan and trace.

engine = brim.Engine("path/to/model", kv_tokens=0)
report = brim.fit_engine(engine)
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.errors import DoesNotFit
from brim.fit.items import COMPILED, GATHERED, compare
from brim.fit.keep_free import KeepFree
from brim.fit.knobs import CurrentSettings, explained, knobs
from brim.fit.ranks import ONE_RANK, FitRanks, gathered
from brim.fit.scaling.given import check_given, check_margin, check_mode
from brim.fit.session import FitSession, SessionOptions
from brim.ports import CanaryProbe, MemoryProbe
from brim.predictions import predicted_activation, predicted_bytes, traced_prefill
from brim.probes.cpu import CpuProbe
from brim.probes.proven import ProvenBound
from brim.progress import showing
from brim.records.fit import CANARY_BYTES, CUDA_ROUNDING_BYTES, CUDA_WORKSPACE_BYTES, FitReport, FitRequest
from brim.records.memory import DeviceFacts, MemoryReading
from brim.records.model import Dtype
from brim.records.progress import Progress, Told
from brim.records.scaling import Scaling, ScalingMode, ScalingRequest, StepPhase
from brim.reserve.sizing import Sizer
from brim.units import format_bytes
from brim.version import __version__

if TYPE_CHECKING:
    from brim.engine.engine import Engine


def fit_engine(
    engine: Engine,
    *,
    probe: MemoryProbe | None = None,
    kv_tokens: int | None = None,
    memory_fraction: float = 1.0,
    canary_bytes: int = CANARY_BYTES,
    keep_free_bytes: int | None = None,
    facts: DeviceFacts | None = None,
    store: Path | None = None,
    ranks: FitRanks = ONE_RANK,
    progress: Progress = None,
    scaling: str = ScalingMode.AUTO,
    coefficients: Scaling | None = None,
    safety_margin: float | None = None,
    neighbours: Sizer | None = None,
) -> FitReport:
    """Size an engine that is loaded and not built; it is left built at the proven size.

    `keep_free_bytes` stay free on the device; None: the default for this device (`facts`, read from the GPU unless
    given). `progress` is as in `brim.progress`; None: the engine's own setting.
    `scaling` is auto (laws of a step's memory are learned from a few steps), manual (`coefficients` are used) or off;
    `safety_margin` is in percent of the budget of a batch; None: derived from the residuals.
    `neighbours` is this process' part of a device that others share (`brim.reserve.sizing`): what they were promised is
    left to them, and what this process holds at the end is published.
    With tensor parallelism every rank calls this, and all get the same size.
    """
    adapter = _EngineAdapter(
        engine,
        _WantedSize(kv_tokens, memory_fraction, canary_bytes),
        _WantedScaling.checked(scaling, coefficients, safety_margin),
        _ranks_of(engine, ranks),
        facts,
    )
    shown = engine.progress if progress is None else progress
    if adapter.ranks.rank and not callable(progress):
        shown = False  # only rank 0 shows it
    with showing(shown) as told, _telling(engine, told):
        with adapter.ranks.together("probe"):
            device_probe = probe or _cuda_probe(engine)
        session = FitSession(
            engine,
            device_probe,
            engine.kv_bytes,
            adapter,
            SessionOptions(keep_free_bytes, store),
            predictions=adapter,
            ranks=adapter.ranks,
            neighbours=neighbours,
            told=told,
        )
        report = adapter.scaling_wanted.applied(session.run())
    _serve_as_proven(engine, device_probe, report)
    return report


def _ranks_of(engine: Engine, ranks: FitRanks) -> FitRanks:
    if ranks is ONE_RANK and engine.ranks is not None:
        return FitRanks(engine.ranks.rank, gathered())
    return ranks


def _serve_as_proven(engine: Engine, probe: MemoryProbe, report: FitReport) -> None:
    """Let the engine spend the canary, and keep its steps within what the fit ran."""
    if isinstance(probe, CanaryProbe):
        engine.watch_memory(probe)
    if isinstance(probe, CpuProbe) and not probe.counts_serving:
        engine.serve_within(ProvenBound(probe, _proven_tokens(engine)))
    engine.weigh_by(report.scaling)


@dataclass(frozen=True, slots=True)
class _WantedSize:
    """What was asked of the size."""

    kv_tokens: int | None
    memory_fraction: float
    canary_bytes: int


@dataclass(frozen=True, slots=True)
class _WantedScaling:
    """What was asked of memory scaling."""

    mode: ScalingMode
    coefficients: Scaling | None
    margin_percent: float | None

    @classmethod
    def checked(cls, mode: str, coefficients: Scaling | None, margin_percent: float | None) -> _WantedScaling:
        wanted = cls(check_mode(mode), coefficients, check_margin(margin_percent))
        check_given(wanted.mode, coefficients)
        return wanted

    @property
    def decisive(self) -> dict[str, Any]:
        """What a stored fit depends on: not the margin, which is applied to what was measured."""
        given = None if self.coefficients is None else asdict(self.coefficients)
        return {"mode": str(self.mode), "coefficients": given}

    def request(self, engine: Engine) -> ScalingRequest | None:
        """The engine's own steps, and the traced curve to start from."""
        if self.mode is ScalingMode.OFF:
            return None
        steps = engine.scaling_steps()
        measured = {one.shape.tokens for one in steps.steps if one.shape.phase is StepPhase.PREFILL}
        between = sum(measured) // len(measured)
        return ScalingRequest(
            steps,
            traced=traced_prefill(engine, sorted({*measured, between})),
            given=self.coefficients,
            margin_percent=self.margin_percent,
        )

    def applied(self, report: FitReport) -> FitReport:
        """A stored fit has the margin that was asked for when it was found; that of now counts."""
        if not report.from_store or report.scaling is None:
            return report
        return replace(report, scaling=replace(report.scaling, given_margin_percent=self.margin_percent))


@dataclass(frozen=True, slots=True)
class _EngineAdapter:
    """Brim's engine for a fit session: what is asked of it, and what plan and trace say."""

    engine: Engine
    size: _WantedSize
    scaling_wanted: _WantedScaling
    ranks: FitRanks
    given_facts: DeviceFacts | None  # None: read from the GPU

    def facts(self) -> DeviceFacts:
        return self.given_facts or _device_facts(self.engine)

    def request(self, kept_free: KeepFree) -> FitRequest:
        return _request(self.engine, self.size, kept_free)

    def depends_on(self, request: FitRequest, before: MemoryReading) -> dict[str, Any]:
        parts = _decisive(self.engine, before.total_bytes, request, self.ranks)
        return {**parts, "scaling": self.scaling_wanted.decisive}

    def warnings(self) -> tuple[str, ...]:
        return tuple(self.engine.warnings)

    def scaling(self) -> ScalingRequest | None:
        return self.scaling_wanted.request(self.engine)

    def explained(self, error: DoesNotFit, request: FitRequest, before: MemoryReading) -> DoesNotFit:
        error = _foreseen(error, self.engine, request, before.free_bytes)
        current = _current_settings(self.engine, before.total_bytes)
        return explained(error, knobs(error.missing_bytes, error.ledger, current, request, self.engine.kv_bytes))

    def compared(self, report: FitReport) -> FitReport:
        return compare(report, predicted_bytes(self.engine, report), _activation_note(self.engine))


@contextmanager
def _telling(engine: Engine, told: Told) -> Iterator[None]:
    """Report the engine's build stages together with the phases of the fit."""
    before, engine.progress = engine.progress, told
    try:
        yield
    finally:
        engine.progress = before


def _foreseen(error: DoesNotFit, engine: Engine, request: FitRequest, free_bytes: int) -> DoesNotFit:
    """If nothing could be measured, the error knows of one failed allocation only; the trace knows the whole step."""
    if error.ledger or request.kv_tokens is not None:
        return error
    step = predicted_activation(engine) or 0
    kept = request.canary_bytes + request.keep_free_bytes
    missing = engine.kv_bytes(request.least_tokens) + request.state_bytes + step + kept - free_bytes
    if missing <= (error.missing_bytes or 0):
        return error
    return DoesNotFit(f"{error}; with the traced worst step the shortfall is {format_bytes(missing)}", missing)


def _proven_tokens(engine: Engine) -> int:
    """Tokens of the largest step that the fit ran."""
    return max(shape.tokens for shape in engine.stress_shapes())


def _activation_note(engine: Engine) -> str:
    """Why the measured activation may differ from the traced one."""
    if engine.device.type == "cpu":
        return GATHERED
    return COMPILED if engine.settings.compile else ""


def _cuda_probe(engine: Engine) -> MemoryProbe:
    from brim.probes.cuda import CudaProbe

    return CudaProbe(engine.device.index or 0)


def _device_facts(engine: Engine) -> DeviceFacts:
    from brim.probes.facts import gpu_facts

    return gpu_facts(engine.device.index or 0) if engine.device.type == "cuda" else DeviceFacts()


def _request(engine: Engine, size: _WantedSize, kept_free: KeepFree) -> FitRequest:
    from brim.engine.stress.text import least_stress_tokens

    running = engine.running_tokens
    probe_tokens = least_stress_tokens(engine.settings)
    if engine.device.type == "cpu":
        probe_tokens += engine.max_length  # there, attention takes memory proportional to the length of a request
    return FitRequest(
        probe_tokens=min(probe_tokens, running),
        least_tokens=engine.least_tokens,
        most_tokens=engine.most_tokens if engine.reuses_prefixes else running,
        kv_tokens=size.kv_tokens,
        memory_fraction=size.memory_fraction,
        canary_bytes=size.canary_bytes,
        keep_free_bytes=kept_free.bytes,
        keep_free_note=kept_free.note,
        leak_tolerance_bytes=CUDA_WORKSPACE_BYTES if engine.device.type == "cuda" else 0,
        rounding_bytes=CUDA_ROUNDING_BYTES if engine.device.type == "cuda" else 0,
        state_bytes=engine.state_bytes,
        feature_bytes=engine.feature_bytes,
        running_tokens=running,
    )


def _current_settings(engine: Engine, total_bytes: int) -> CurrentSettings:
    settings = engine.settings
    kv_dtype = engine.dtype if settings.kv_dtype == "auto" else settings.kv_dtype
    return CurrentSettings(
        max_batch=settings.max_batch,
        max_batch_tokens=settings.max_batch_tokens,
        max_length=engine.max_length,
        block_size=settings.block_size,
        kv_dtype=kv_dtype,
        kv_element_bytes=Dtype(kv_dtype).bytes,
        total_bytes=total_bytes,
    )


def _decisive(engine: Engine, total_bytes: int, request: FitRequest, ranks: FitRanks) -> dict[str, Any]:
    """Everything that the size depends on."""
    import torch
    import transformers

    device: Any = "cpu"
    if engine.device.type == "cuda":
        device = str(torch.cuda.get_device_properties(engine.device))
    return {
        "model": engine.loaded.full_config.to_dict(),
        "weights": engine.loaded.weight_bytes,
        "draft": None if engine.draft is None else engine.draft.full_config.to_dict(),
        "settings": asdict(engine.settings),
        "request": asdict(request),
        "stress": [asdict(shape) for shape in engine.stress_shapes()],
        "rank": ranks.rank,
        "device": device,
        "memory": total_bytes,
        "cuda": torch.version.cuda,
        "versions": [__version__, torch.__version__, transformers.__version__, platform.python_version()],
    }
