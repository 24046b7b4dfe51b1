"""An engine sized by measurement: connects the engine, the fit and the predictions of plan and trace.

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
from brim.fit.clock import Clock
from brim.fit.fit import fit, validate_stored
from brim.fit.items import COMPILED, GATHERED, compare, with_note
from brim.fit.keep_free import KeepFree, keep_free, with_device_warning
from brim.fit.knobs import CurrentSettings, explained, knobs
from brim.fit.ranks import ONE_RANK, FitRanks, gathered
from brim.fit.scaling.given import check_given, check_margin, check_mode
from brim.fit.store import find_stored
from brim.ports import CanaryProbe, MemoryProbe
from brim.predictions import predicted_activation, predicted_bytes, traced_prefill
from brim.probes.cpu import CpuProbe
from brim.probes.proven import ProvenBound
from brim.progress import showing
from brim.records.fit import CANARY_BYTES, FitReport, FitRequest
from brim.records.memory import DeviceFacts
from brim.records.model import Dtype
from brim.records.progress import Progress, Told
from brim.records.scaling import Scaling, ScalingMode, ScalingRequest, StepPhase
from brim.reserve.probe import LeasedProbe
from brim.reserve.sizing import Sizer
from brim.units import MIB, format_bytes
from brim.version import __version__

if TYPE_CHECKING:
    from brim.engine.engine import Engine

_WORKSPACES_BYTES = 192 * MIB  # workspaces that cuBLAS and other libraries keep in torch's allocator
_ROUNDING_BYTES = 2 * 20 * MIB  # segments grow by 20 MiB: those of steps and those of graphs may each need one more


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
    wanted = _WantedScaling(check_mode(scaling), coefficients, check_margin(safety_margin))
    check_given(wanted.mode, coefficients)
    if ranks is ONE_RANK and engine.ranks is not None:
        ranks = FitRanks(engine.ranks.rank, gathered())
    if ranks.rank and not callable(progress):
        progress = False  # only rank 0 shows it
    with showing(engine.progress if progress is None else progress) as told, _telling(engine, told):
        clock = Clock(told)
        with ranks.together("start"):
            device_probe = probe or _cuda_probe(engine)
            probe = device_probe if neighbours is None else LeasedProbe(device_probe, neighbours)
            facts = facts or _facts(engine)
            probe.hold_canary(0)  # one of an earlier fit
            before = probe.reading()
            kept_free = keep_free(keep_free_bytes, facts, before.total_bytes)
            request = _request(engine, kv_tokens, memory_fraction, canary_bytes, kept_free)
            request = replace(request, keeps_promises=neighbours is not None and neighbours.device.has_driver)
            parts = {**_decisive(engine, probe, request, ranks), "scaling": wanted.decisive}
            found = find_stored(store if kv_tokens is None else None, parts, before.free_bytes)
        report, stored = None, found.report
        if ranks.agree(None if stored is None else stored.kv_tokens) and stored is not None:
            report = validate_stored(engine, probe, request, engine.kv_bytes, stored, ranks=ranks, clock=clock)
        if report is None:
            with _naming(neighbours):
                report = _searched(engine, probe, request, ranks, clock, before.free_bytes, wanted.request(engine))
        if isinstance(device_probe, CanaryProbe):
            engine.watch_memory(device_probe)
        if isinstance(device_probe, CpuProbe) and not device_probe.counts_serving:
            engine.serve_within(ProvenBound(device_probe, _proven_tokens(engine)))
        if neighbours is not None:
            neighbours.hold(device_probe.reading())
            report = replace(report, items=with_note(report.items, "neighbours", neighbours.note()))
        report = replace(_warned(report, engine, facts, kept_free), seconds=clock.seconds())
        if report.from_store and report.scaling is not None:
            report = replace(report, scaling=replace(report.scaling, given_margin_percent=wanted.margin_percent))
        engine.weigh_by(report.scaling)
    return found.kept(report)


@dataclass(frozen=True, slots=True)
class _WantedScaling:
    """What was asked of memory scaling."""

    mode: ScalingMode
    coefficients: Scaling | None
    margin_percent: float | None

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


@contextmanager
def _naming(neighbours: Sizer | None) -> Iterator[None]:
    """If nothing fits, say who else is on the device."""
    try:
        yield
    except DoesNotFit as error:
        note = "" if neighbours is None else neighbours.note()
        if not note:
            raise
        ledger = with_note(error.ledger, "neighbours", note)
        raise DoesNotFit(f"{error}\nneighbours: {note}", error.missing_bytes, ledger, error.knobs) from error


@contextmanager
def _telling(engine: Engine, told: Told) -> Iterator[None]:
    """Report the engine's build stages together with the phases of the fit."""
    before, engine.progress = engine.progress, told
    try:
        yield
    finally:
        engine.progress = before


def _searched(
    engine: Engine,
    probe: MemoryProbe,
    request: FitRequest,
    ranks: FitRanks,
    clock: Clock,
    free_bytes: int,
    scaling: ScalingRequest | None,
) -> FitReport:
    """Search for a size, and add predictions to what was measured."""
    try:
        report = fit(engine, probe, request, engine.kv_bytes, ranks=ranks, clock=clock, scaling=scaling)
    except DoesNotFit as error:
        error = _foreseen(error, engine, request, free_bytes)
        found = knobs(error.missing_bytes, error.ledger, _standing(engine, probe), request, engine.kv_bytes)
        raise explained(error, found) from error
    try:
        with clock.phase("predict"):
            return compare(report, predicted_bytes(engine, report), _activation_note(engine))
    except BaseException:
        probe.hold_canary(0)
        engine.teardown()
        raise


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


def _warned(report: FitReport, engine: Engine, facts: DeviceFacts, kept_free: KeepFree) -> FitReport:
    """The report with the warnings of the engine and about the device."""
    report = with_device_warning(report, facts, kept_free)
    return replace(report, warnings=(*report.warnings, *engine.warnings))


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


def _facts(engine: Engine) -> DeviceFacts:
    from brim.probes.facts import gpu_facts

    return gpu_facts(engine.device.index or 0) if engine.device.type == "cuda" else DeviceFacts()


def _request(
    engine: Engine, kv_tokens: int | None, memory_fraction: float, canary_bytes: int, kept_free: KeepFree
) -> FitRequest:
    from brim.engine.stress.text import least_stress_tokens

    running = engine.running_tokens
    probe_tokens = least_stress_tokens(engine.settings)
    if engine.device.type == "cpu":
        probe_tokens += engine.max_length  # there, attention takes memory proportional to the length of a request
    return FitRequest(
        probe_tokens=min(probe_tokens, running),
        least_tokens=engine.least_tokens,
        most_tokens=engine.most_tokens if engine.reuses_prefixes else running,
        kv_tokens=kv_tokens,
        memory_fraction=memory_fraction,
        canary_bytes=canary_bytes,
        keep_free_bytes=kept_free.bytes,
        keep_free_note=kept_free.note,
        leak_tolerance_bytes=_WORKSPACES_BYTES if engine.device.type == "cuda" else 0,
        rounding_bytes=_ROUNDING_BYTES if engine.device.type == "cuda" else 0,
        state_bytes=engine.state_bytes,
        feature_bytes=engine.feature_bytes,
        running_tokens=running,
    )


def _standing(engine: Engine, probe: MemoryProbe) -> CurrentSettings:
    settings = engine.settings
    kv_dtype = engine.dtype if settings.kv_dtype == "auto" else settings.kv_dtype
    return CurrentSettings(
        max_batch=settings.max_batch,
        max_batch_tokens=settings.max_batch_tokens,
        max_length=engine.max_length,
        block_size=settings.block_size,
        kv_dtype=kv_dtype,
        kv_element_bytes=Dtype(kv_dtype).bytes,
        total_bytes=probe.reading().total_bytes,
    )


def _decisive(engine: Engine, probe: MemoryProbe, request: FitRequest, ranks: FitRanks) -> dict[str, Any]:
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
        "memory": probe.reading().total_bytes,
        "cuda": torch.version.cuda,
        "versions": [__version__, torch.__version__, transformers.__version__, platform.python_version()],
    }
