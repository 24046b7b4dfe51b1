"""An engine sized by measurement: the engine, the fit and the predictions of plan and trace put together.

engine = brim.Engine("path/to/model", kv_tokens=0)
report = brim.fit_engine(engine)
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.errors import CannotTrace, DoesNotFit, InputError
from brim.fit.fit import fit, validate_stored
from brim.fit.items import COMPILED, GATHERED, compare
from brim.fit.knobs import Standing, explained, knobs
from brim.fit.ranks import ALONE, Ranks, gathered
from brim.fit.store import FitStore, fingerprint
from brim.ports import MemoryProbe
from brim.records.fit import CANARY_BYTES, FitReport, FitRequest
from brim.records.model import Dtype
from brim.units import MIB, round_up
from brim.version import __version__

if TYPE_CHECKING:
    from brim.engine.engine import Engine

_WORKSPACES_BYTES = 192 * MIB  # what cuBLAS and its like keep inside torch's allocator once they have run


def fit_engine(
    engine: Engine,
    *,
    probe: MemoryProbe | None = None,
    kv_tokens: int | None = None,
    memory_fraction: float = 1.0,
    canary_bytes: int = CANARY_BYTES,
    store: Path | None = None,
    ranks: Ranks = ALONE,
    told: Callable[[str], None] = lambda phase: None,
) -> FitReport:
    """Size an engine that is loaded and not built; it is left built at the proven size.

    Every rank of a split engine calls this; they agree among themselves.
    """
    if ranks is ALONE and engine.ranks is not None:
        ranks = Ranks(engine.ranks.rank, gathered())
    with ranks.together("start"):
        probe = probe or _cuda_probe(engine)
        request = _request(engine, kv_tokens, memory_fraction, canary_bytes)
        probe.hold_canary(0)  # one of an earlier fit
        free_bytes = probe.reading().free_bytes
        kept = FitStore(store) if store is not None and kv_tokens is None else None
        print_ = fingerprint(_decisive(engine, probe, request, ranks))
        stored = kept.read(print_, free_bytes) if kept is not None else None
    if ranks.agree(None if stored is None else stored.kv_tokens) and stored is not None:
        again = validate_stored(engine, probe, request, engine.kv_bytes, stored, ranks=ranks, told=told)
        if again is not None:
            return again
    try:
        report = fit(engine, probe, request, engine.kv_bytes, ranks=ranks, told=told)
    except DoesNotFit as error:
        found = knobs(error.missing_bytes, error.ledger, _standing(engine, probe), request, engine.kv_bytes)
        raise explained(error, found) from error
    try:
        report = compare(report, predicted_bytes(engine, report), _activation_note(engine))
    except BaseException:
        probe.hold_canary(0)
        engine.teardown()
        raise
    report = replace(report, warnings=(*report.warnings, *engine.warnings))
    if kept is not None:
        try:
            kept.write(print_, report, free_bytes)
        except OSError as error:
            return replace(report, warnings=(*report.warnings, f"the fit could not be kept in {store}: {error}"))
    return report


def _activation_note(engine: Engine) -> str:
    """Why a step may take something else than the model's own code behind fused attention."""
    if engine.device.type == "cpu":
        return GATHERED
    return COMPILED if engine.settings.compile else ""


def _cuda_probe(engine: Engine) -> MemoryProbe:
    from brim.probes.cuda import CudaProbe

    return CudaProbe(engine.device.index or 0)


def _request(engine: Engine, kv_tokens: int | None, memory_fraction: float, canary_bytes: int) -> FitRequest:
    from brim.engine.stressing import least_stress_tokens

    settings = engine.settings
    most = settings.max_batch * round_up(engine.max_length, settings.block_size)
    probe_tokens = least_stress_tokens(settings)
    if engine.device.type == "cpu":
        probe_tokens += engine.max_length  # there attention takes memory by the length of a request
    return FitRequest(
        probe_tokens=min(probe_tokens, most),
        least_tokens=engine.least_tokens,
        most_tokens=most,
        kv_tokens=kv_tokens,
        memory_fraction=memory_fraction,
        canary_bytes=canary_bytes,
        leak_tolerance_bytes=_WORKSPACES_BYTES if engine.device.type == "cuda" else 0,
    )


def _standing(engine: Engine, probe: MemoryProbe) -> Standing:
    settings = engine.settings
    kv_dtype = engine.dtype if settings.kv_dtype == "auto" else settings.kv_dtype
    return Standing(
        max_batch=settings.max_batch,
        max_batch_tokens=settings.max_batch_tokens,
        max_length=engine.max_length,
        block_size=settings.block_size,
        kv_dtype=kv_dtype,
        kv_element_bytes=Dtype(kv_dtype).bytes,
        total_bytes=probe.reading().total_bytes,
    )


def _decisive(engine: Engine, probe: MemoryProbe, request: FitRequest, ranks: Ranks) -> dict[str, Any]:
    """All that decides a size."""
    import torch
    import transformers

    device: Any = "cpu"
    if engine.device.type == "cuda":
        device = str(torch.cuda.get_device_properties(engine.device))
    return {
        "model": engine.loaded.full_config.to_dict(),
        "weights": engine.loaded.weight_bytes,
        "settings": asdict(engine.settings),
        "request": asdict(request),
        "stress": [asdict(shape) for shape in engine.stress_shapes()],
        "rank": ranks.rank,
        "device": device,
        "memory": probe.reading().total_bytes,
        "cuda": torch.version.cuda,
        "versions": [__version__, torch.__version__, transformers.__version__, platform.python_version()],
    }


def predicted_bytes(engine: Engine, report: FitReport) -> dict[str, int]:
    """What plan and trace say of the same engine, by the names of the ledger."""
    predicted = {"kv": report.kv_bytes, "canary": report.canary_bytes}
    config = engine.loaded.full_config.to_dict()
    with suppress(CannotTrace):  # a model that only its own code can run: the report shows no prediction
        settings = engine.settings
        predicted["activation"] = traced_step(engine, settings.max_batch_tokens, settings.max_batch)
    with suppress(CannotTrace):
        tower = traced_image(engine)
        if tower is not None:  # the step comes when the tower is done, and may well be the larger
            predicted["encoder"] = max(tower, predicted.get("activation", 0))
    with suppress(InputError):  # a family the planner does not know
        predicted |= _planned(engine, config)
    return predicted


def traced_step(engine: Engine, tokens: int, sequences: int) -> int:
    """The peak of a step of prompts that all draw a token, from the model's own code behind fused attention."""
    from brim.records.trace import Phase, TraceShape
    from brim.trace.attention import FUSED
    from brim.trace.tracer import trace_config

    rows = min(sequences, tokens)
    shape = TraceShape(phase=Phase.PACKED, tokens=tokens // rows, batch=rows, attention=FUSED)
    config, ranks = engine.loaded.full_config.to_dict(), 1 if engine.ranks is None else engine.ranks.size
    return trace_config(config, shape, name="engine", dtype=engine.dtype, ranks=ranks).peak_bytes


def traced_image(engine: Engine) -> int | None:
    """The peak of the tower over the largest image, another one's features beside it; None if no image is let in."""
    from brim.records.trace import Phase, TraceShape
    from brim.trace.tracer import trace_config

    image, limits = engine.worst_image(), engine.image_limits
    if image is None or limits is None:
        return None
    patches, config = limits.patches(image), engine.loaded.full_config
    merge_edge = math.isqrt(limits.merge)
    edge = (math.isqrt(max(0, patches // limits.merge - 1)) + 1) * merge_edge  # of the next square: those are traced
    trace = trace_config(
        config.to_dict(), TraceShape(phase=Phase.VISION, tokens=edge**2), name="engine", dtype=engine.dtype
    )
    pixels = image.inputs["pixel_values"]
    hidden = int(config.get_text_config().hidden_size)
    deep = len(getattr(config.vision_config, "deepstack_visual_indexes", None) or ())
    element = 4 if engine.dtype == "fp32" else 2
    on_device = engine.device.type == "cuda"
    tiled = pixels.dim() == 4  # a trace of tiles is of one, whatever it was asked for
    return (
        (trace.peak_bytes if tiled else trace.peak_bytes * patches // edge**2)
        + (pixels.nbytes if on_device else 0)  # as they were sent
        + (pixels.numel() * element if element != pixels.element_size() else 0)  # and in the tower's own type
        + image.tokens * hidden * (1 + deep) * element  # features of the image before it
    )


def _planned(engine: Engine, config: dict[str, Any]) -> dict[str, int]:
    from brim.model.config import read_config
    from brim.model.weights import weight_bytes

    spec = replace(read_config(config, name="engine"), dtype=Dtype(engine.dtype), quantisation=None)
    return {"weights": weight_bytes(spec, 1 if engine.ranks is None else engine.ranks.size).rank_bytes}
