"""What each setting would gain: every setting changed one step at a time, least loss of quality first.

In: settings and their solution. Out: `Advice`, each the difference between two solutions. Nothing is estimated: every
change is solved again. Changes that gain next to nothing are left out; if none makes the plan fit, the cheapest two
that do so together are added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from brim.errors import InvalidRequest
from brim.model.quantisers.quantisation import NAMED_FORMATS
from brim.model.weights import format_name
from brim.planning.devices import larger_devices
from brim.planning.flags import engine_ruling
from brim.planning.placement.automatic import with_cpu_experts, with_host_layers
from brim.planning.placement.experts import has_experts
from brim.planning.placement.resolve import divided_model
from brim.planning.pricer import Pricer
from brim.planning.settings import PlanSettings, check_ranks
from brim.planning.solving.lower import largest_image
from brim.planning.solving.solve import Solution, solve
from brim.records.model import Dtype
from brim.records.plan import Advice
from brim.units import MIB, ceil_div, round_down

_SMALLEST_STEP = 512
_FEWEST_PIXELS = 448 * 448
_SHORTEST_CONTEXT = 1024
_LEAST_GAIN = 0.005  # of the KV tokens, for a change to be worth a line
_LEAST_GAIN_BYTES = 64 * MIB  # if the KV tokens are given
_LEAST_HELP = 0.05  # of what is missing


@dataclass(frozen=True, slots=True)
class _Change:
    """A setting changed: from, to, and the fields of `Settings` that say so."""

    knob: str
    current: str
    proposed: str
    turned: Mapping[str, object]
    alone: bool = True  # whether it may be enough by itself


@dataclass(frozen=True, slots=True)
class _Turn:
    change: _Change
    after: Solution


Changes = Iterator[_Change]  # of one setting, each going further than the one before


def advise(settings: PlanSettings, solution: Solution, pricer: Pricer) -> tuple[Advice, ...]:
    """Every change that would help, least loss of quality first."""
    advisor = _Advisor(settings, solution, pricer)
    ladders = [[one for one in knob(settings, solution) if _runs(settings, one)] for knob in _KNOBS]
    turns = [advisor.until_it_fits(ladder) for ladder in ladders if ladder]
    found = [advisor.advice(turn) for turn in turns if advisor.helps(turn)]
    if not solution.fits and not any(one.fits_after for one in found):
        pair = advisor.cheapest_pair([ladder for ladder in ladders if ladder], turns)
        found += [advisor.advice(pair)] if pair is not None else []
    return tuple(found)


class _Advisor:
    """Solves with changes, and holds the results against the solution as it is."""

    def __init__(self, settings: PlanSettings, solution: Solution, pricer: Pricer) -> None:
        self._settings = settings
        self._solution = solution
        self._pricer = pricer

    def turn(self, change: _Change) -> _Turn:
        """Solved with a change and all solved values fixed, so that the difference comes from this change only."""
        solved = self._solution
        pinned: dict[str, object] = {
            "batch_tokens": solved.batch_tokens,
            "max_len": solved.max_len,
            "max_seqs": solved.max_seqs,
            "graphs": solved.graphs,
            "image_pixels": solved.image_pixels,
            "images_per_prompt": solved.images_per_prompt,
        }
        return _Turn(change, solve(_varied(self._settings, {**pinned, **change.turned}), self._pricer))

    def until_it_fits(self, ladder: Sequence[_Change]) -> _Turn:
        """The first change of a setting that fits; the last when none does."""
        for change in [*(one for one in ladder[:-1] if one.alone), ladder[-1]]:
            turn = self.turn(change)
            if turn.after.fits:
                break
        return turn

    def cheapest_pair(self, ladders: Sequence[Sequence[_Change]], turns: Sequence[_Turn]) -> _Turn | None:
        """The two changes that make it fit together, with the least loss of quality."""
        frees = [self._frees(turn) for turn in turns]
        for second in range(len(ladders)):
            for first in range(second):
                if frees[first] + frees[second] + self._solution.slack_bytes < 0:
                    continue
                if turns[first].change.knob == turns[second].change.knob:
                    continue
                for one in ladders[first]:
                    turn = self._first_that_fits([_both(one, other) for other in ladders[second]])
                    if turn is not None:
                        return turn
        return None

    def _first_that_fits(self, ladder: Sequence[_Change]) -> _Turn | None:
        """By halving: each change goes further than the one before."""
        low, high = 0, len(ladder) - 1
        found = self.turn(ladder[high])
        if not found.after.fits:
            return None
        while low < high:
            middle = (low + high) // 2
            turn = self.turn(ladder[middle])
            low, high, found = (low, middle, turn) if turn.after.fits else (middle + 1, high, found)
        return found

    def helps(self, turn: _Turn) -> bool:
        after, now = turn.after, self._solution
        if not now.fits:
            return after.fits or self._frees(turn) >= -now.slack_bytes * _LEAST_HELP
        if self._settings.kv_tokens is not None:
            return self._frees(turn) >= _LEAST_GAIN_BYTES
        gains = after.fits and after.kv_tokens >= now.kv_tokens * (1 + _LEAST_GAIN)
        return gains and self._frees(turn) > 0  # more tokens alone may come from what was open, and is now given

    def advice(self, turn: _Turn) -> Advice:
        change, after = turn.change, turn.after
        return Advice(change.knob, change.current, change.proposed, self._frees(turn), after.kv_tokens, after.fits)

    def _frees(self, turn: _Turn) -> int:
        return turn.after.slack_bytes - self._solution.slack_bytes


def _varied(settings: PlanSettings, turned: Mapping[str, object]) -> PlanSettings:
    vary: Callable[..., PlanSettings] = replace
    return vary(settings, **turned)


def _runs(settings: PlanSettings, change: _Change) -> bool:
    """Whether the engine that was asked for runs what a change leads to."""
    if settings.engine is None:
        return True
    return engine_ruling(_varied(settings, change.turned), settings.engine).refusal is None


def _both(one: _Change, other: _Change) -> _Change:
    return _Change(
        f"{one.knob} + {other.knob}",
        f"{one.current} + {other.current}",
        f"{one.proposed} + {other.proposed}",
        {**one.turned, **other.turned},
    )


def _batch_tokens(settings: PlanSettings, solution: Solution) -> Changes:
    size = round_down(solution.batch_tokens // 2, 256)
    while size >= _SMALLEST_STEP and settings.running_within(size, solution.max_seqs) == solution.max_seqs:
        yield _Change("batch_tokens", str(solution.batch_tokens), str(size), {"batch_tokens": size})
        size //= 2


def _graphs(settings: PlanSettings, solution: Solution) -> Changes:
    if solution.graphs:
        yield _Change("graphs", "on", "off", {"graphs": False})


def _draft(settings: PlanSettings, solution: Solution) -> Changes:
    if settings.draft is not None:
        yield _Change("draft", settings.draft.name, "none", {"draft": None, "draft_tokens": 0})


def _tensor_parallel(settings: PlanSettings, solution: Solution) -> Changes:
    for ranks in (settings.ranks * 2, settings.ranks * 4, settings.ranks * 8):
        if not settings.device.is_cpu and _divides(settings, ranks):
            yield _Change("tp", str(settings.ranks), str(ranks), {"ranks": ranks})


def _divides(settings: PlanSettings, ranks: int) -> bool:
    try:
        divided = divided_model(settings.spec, ranks, settings.placement, settings.engine)
        check_ranks(divided, ranks, settings.engine, settings.draft)
    except InvalidRequest:
        return False
    return True


def _in_host_memory(settings: PlanSettings, solution: Solution) -> Changes:
    """Experts of layers, or layers, that leave the GPU: as few as fit, from what a layer frees at most."""
    placement, layers = settings.placement, len(settings.spec.layers)
    apart = settings.device.has_host_memory_apart and settings.splits_layers
    if solution.fits or not apart or placement.gpu_layers is not None:
        return
    experts = has_experts(settings.spec)
    kv = settings.full_requests * solution.costs.request_bytes(solution.max_len)
    each = max(1, (solution.costs.weights.rank_bytes + kv) // layers)
    first = placement.cpu_experts if experts else 0
    least = first + max(1, -solution.slack_bytes // each)
    for number in range(least, layers + 1):
        varied = with_cpu_experts(settings, number) if experts else with_host_layers(settings, number)
        knob = "cpu_moe" if experts else "gpu_layers"
        current, proposed = (first, number) if experts else (layers + 1, layers + 1 - number)
        yield _Change(knob, str(current), str(proposed), {"placement": varied.placement})


def _device(settings: PlanSettings, solution: Solution) -> Changes:
    """A larger one of the same vendor, and of the same kind where there is one that does it."""
    now = settings.device
    for device in () if now.is_cpu else larger_devices(now):
        enough = device.total_bytes > now.total_bytes - solution.slack_bytes
        yield _Change("gpu", now.key, device.key, {"device": device}, alone=enough)


def _kv_dtype(settings: PlanSettings, solution: Solution) -> Changes:
    allowed = settings.engine.kv_dtypes if settings.engine else tuple(Dtype)
    smaller = Dtype.FP8 if Dtype.FP8 in allowed else Dtype.INT8
    if settings.kv_dtype.bytes > 1 and smaller in allowed:
        yield _Change("kv_dtype", str(settings.kv_dtype), str(smaller), {"kv_dtype": smaller})


def _image_pixels(settings: PlanSettings, solution: Solution) -> Changes:
    largest = largest_image(settings)
    now = min(solution.image_pixels or largest, largest)
    pixels = now // 4
    while pixels >= _FEWEST_PIXELS:
        yield _Change("image_pixels", str(now), str(pixels), {"image_pixels": pixels})
        pixels //= 4


def _context(settings: PlanSettings, solution: Solution) -> Changes:
    for divisor in (2, 4, 8, 16):
        length = round_down(solution.max_len // divisor, 256)
        if length >= max(_SHORTEST_CONTEXT, settings.mean_len or 0):
            yield _Change("max_len", str(solution.max_len), str(length), {"max_len": length})


def _requests(settings: PlanSettings, solution: Solution) -> Changes:
    """Fewer requests of full length, or fewer that run at once, where they were asked for."""
    if solution.fits:
        return
    now = settings.concurrency
    if now is not None and now > 1:
        each = solution.costs.request_bytes(solution.max_len)
        fewer = max(1, now - ceil_div(-solution.slack_bytes, each)) if each else 1
        for number in dict.fromkeys((fewer, max(1, fewer * 3 // 4), 1)):
            if number < now:
                total = settings.placement.replicas
                yield _Change("concurrency", str(now * total), str(number * total), {"concurrency": number})
    elif settings.max_seqs is not None:
        number = settings.max_seqs // 2
        while number >= 1:
            yield _Change("max_seqs", str(settings.max_seqs), str(number), {"max_seqs": number})
            number //= 2


def _weights(*names: str) -> Callable[[PlanSettings, Solution], Changes]:
    """The matrices of the layers in another format: the first of several alike that the engine runs."""

    def changes(settings: PlanSettings, solution: Solution) -> Changes:
        engine = settings.engine
        runs = names if engine is None else [name for name in names if name in {*engine.converts, *engine.formats}]
        now = format_name(settings.spec, settings.stored, settings.weights_dtype)
        for name in runs[:1]:
            stored = NAMED_FORMATS[name]
            if now != stored.name:
                yield _Change("weights", now, name, {"stored": stored, "weights_dtype": None})

    return changes


_KNOBS: tuple[Callable[[PlanSettings, Solution], Changes], ...] = (
    _batch_tokens,
    _graphs,
    _draft,
    _tensor_parallel,
    _in_host_memory,
    _device,
    _kv_dtype,
    _image_pixels,
    _context,
    _requests,
    _weights("fp8", "int8", "q8_0"),
    _weights("int4", "awq", "gptq", "q4_0"),
)
