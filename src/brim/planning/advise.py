"""What each setting would gain: every setting changed one step at a time, least loss of quality first.

In: settings and their solution. Out: `Advice`, each the difference between two solutions. Nothing is estimated: every
change is solved again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from brim.errors import InvalidRequest
from brim.model.quantisation import NAMED_FORMATS
from brim.model.weights import check_tensor_parallel, format_name
from brim.planning.devices import catalogue
from brim.planning.ledger import Pricer
from brim.planning.settings import Settings
from brim.planning.solve import Solution, solve
from brim.records.model import Dtype
from brim.records.plan import Advice
from brim.units import ceil_div, round_down

_SMALLEST_STEP = 512
_FEWEST_PIXELS = 448 * 448
_SHORTEST_CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class _Turn:
    """A setting changed: from, to, and the solution with the change."""

    knob: str
    current: str
    proposed: str
    after: Solution


Turns = Iterator[_Turn]


def advise(settings: Settings, solution: Solution, pricer: Pricer) -> tuple[Advice, ...]:
    """Every change that would free memory, least loss of quality first."""
    knobs = (
        _batch_tokens,
        _graphs,
        _draft,
        _tensor_parallel,
        _device,
        _kv_dtype,
        _image_pixels,
        _context,
        _sequences,
        _weights,
    )
    found = []
    for knob in knobs:
        for turn in knob(settings, solution, pricer):
            frees = turn.after.slack_bytes - solution.slack_bytes
            if frees > 0:
                found.append(
                    Advice(turn.knob, turn.current, turn.proposed, frees, turn.after.kv_tokens, turn.after.fits)
                )
    return tuple(found)


def _until_it_fits(knob: str, now: object, candidates: Iterable[tuple[object, Settings]], pricer: Pricer) -> Turns:
    """The first candidate that fits; the last when none does."""
    last = None
    for proposed, turned in candidates:
        last = _Turn(knob, str(now), str(proposed), solve(turned, pricer))
        if last.after.fits:
            break
    if last is not None:
        yield last


def _batch_tokens(settings: Settings, solution: Solution, pricer: Pricer) -> Turns:
    now, sizes = solution.batch_tokens, []
    size = round_down(now // 2, 256)
    while size >= _SMALLEST_STEP:
        sizes.append(size)
        size //= 2
    candidates = ((size, _pinned(settings, solution, batch_tokens=size)) for size in sizes)
    yield from _until_it_fits("batch_tokens", now, candidates, pricer)


def _graphs(settings: Settings, solution: Solution, pricer: Pricer) -> Turns:
    if settings.graphs:
        yield _Turn("graphs", "on", "off", solve(_pinned(settings, solution, graphs=False), pricer))


def _draft(settings: Settings, solution: Solution, pricer: Pricer) -> Turns:
    if settings.draft is not None:
        yield _Turn("draft", settings.draft.name, "none", solve(_pinned(settings, solution, draft=None), pricer))


def _tensor_parallel(settings: Settings, solution: Solution, pricer: Pricer) -> Turns:
    candidates = (
        (ranks, _pinned(settings, solution, ranks=ranks))
        for ranks in (settings.ranks * 2, settings.ranks * 4, settings.ranks * 8)
        if _divides(settings, ranks)
    )
    yield from _until_it_fits("tp", settings.ranks, candidates, pricer)


def _divides(settings: Settings, ranks: int) -> bool:
    try:
        check_tensor_parallel(settings.spec, ranks)
    except InvalidRequest:
        return False
    return True


def _device(settings: Settings, solution: Solution, pricer: Pricer) -> Turns:
    at_least = max(settings.device.total_bytes * 105 // 100, settings.device.total_bytes - solution.slack_bytes)
    larger = (device for device in catalogue() if device.total_bytes > at_least)
    candidates = ((device.key, _pinned(settings, solution, device=device)) for device in larger)
    yield from _until_it_fits("gpu", settings.device.key, candidates, pricer)


def _kv_dtype(settings: Settings, solution: Solution, pricer: Pricer) -> Turns:
    allowed = settings.engine.kv_dtypes if settings.engine else tuple(Dtype)
    smaller = Dtype.FP8 if Dtype.FP8 in allowed else Dtype.INT8
    if settings.kv_dtype.bytes > 1 and smaller in allowed:
        after = solve(_pinned(settings, solution, kv_dtype=smaller), pricer)
        yield _Turn("kv_dtype", str(settings.kv_dtype), str(smaller), after)


def _image_pixels(settings: Settings, solution: Solution, pricer: Pricer) -> Turns:
    limits = [tower.limits for tower in settings.spec.towers]
    largest = max((max(limit.max_pixels, limit.tile_pixels * limit.max_tiles) for limit in limits), default=0)
    now, sizes = min(settings.image_pixels or largest, largest), []
    pixels = now // 4
    while pixels >= _FEWEST_PIXELS:
        sizes.append(pixels)
        pixels //= 4
    candidates = ((size, _pinned(settings, solution, image_pixels=size)) for size in sizes)
    yield from _until_it_fits("image_pixels", now, candidates, pricer)


def _context(settings: Settings, solution: Solution, pricer: Pricer) -> Turns:
    lengths = [round_down(solution.max_len // divisor, 256) for divisor in (2, 4, 8, 16)]
    candidates = (
        (length, _pinned(settings, solution, max_len=length)) for length in lengths if length >= _SHORTEST_CONTEXT
    )
    yield from _until_it_fits("max_len", solution.max_len, candidates, pricer)


def _sequences(settings: Settings, solution: Solution, pricer: Pricer) -> Turns:
    if not settings.max_seqs or settings.max_seqs == 1 or solution.fits:
        return
    each = solution.costs.request_bytes(solution.max_len)
    fewer = max(1, settings.max_seqs - ceil_div(-solution.slack_bytes, each))
    if fewer < settings.max_seqs:
        after = solve(_pinned(settings, solution, max_seqs=fewer), pricer)
        yield _Turn("max_seqs", str(settings.max_seqs), str(fewer), after)


def _weights(settings: Settings, solution: Solution, pricer: Pricer) -> Turns:
    now = solution.costs.weights
    name = format_name(settings.spec, settings.stored, settings.weights_dtype)
    for target in ("fp8", "int4"):
        stored = NAMED_FORMATS[target]
        if pricer.weights(settings.spec, settings.ranks, stored).rank_bytes < now.rank_bytes * 0.9:
            after = solve(_pinned(settings, solution, stored=stored, weights_dtype=None), pricer)
            yield _Turn("weights", name, target, after)


def _pinned(settings: Settings, solution: Solution, **turned: object) -> Settings:
    """Settings with one change and the solved values fixed, so that the difference comes from this change only."""
    vary: Callable[..., Settings] = replace
    return vary(settings, **{"batch_tokens": solution.batch_tokens, "max_len": solution.max_len, **turned})
