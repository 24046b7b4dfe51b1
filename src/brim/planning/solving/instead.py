"""What does fit where what was asked for does not: as little less of it as possible.

In: settings whose solution does not fit. Out: the solution of other settings that does, or None. Requests of the same
length become fewer first, then tokens of KV that were asked for, then the context shorter; limits on steps and on
requests at once are left open last. What the model is stored in, and the device, stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from brim.planning.pricer import Pricer
from brim.planning.settings import PlanSettings
from brim.planning.solving.solve import Solution, solve


def what_fits_instead(settings: PlanSettings, pricer: Pricer, solution: Solution) -> Solution | None:
    """The solution of the first settings, each asking for less than those before, that fits."""
    fewer = _fewer_requests(replace(settings, max_len=solution.max_len), pricer)
    if fewer is not None:
        return fewer
    solutions = (solve(one, pricer) for one in _asking_for_less(settings))
    return next((one for one in solutions if one.fits), None)


def _fewer_requests(settings: PlanSettings, pricer: Pricer) -> Solution | None:
    """With the most requests of full length that fit; None where not even one does."""
    found, low, high = None, 0, settings.full_requests  # so many do not fit
    while low + 1 < high:
        middle = (low + high) // 2
        solution = solve(_with_requests(settings, middle), pricer)
        low, high = (middle, high) if solution.fits else (low, middle)
        found = solution if solution.fits else found
    return found


def _with_requests(settings: PlanSettings, requests: int) -> PlanSettings:
    slots = settings.slots_divide_context and settings.max_seqs is not None
    return replace(settings, concurrency=requests, max_seqs=requests if slots else settings.max_seqs)


def _asking_for_less(settings: PlanSettings) -> Iterator[PlanSettings]:
    if settings.kv_tokens is not None:
        settings = replace(settings, kv_tokens=None)
        yield settings
    if settings.max_len is not None or settings.concurrency is not None:
        one = replace(settings, max_len=None, mean_len=None, concurrency=None)
        settings = replace(one, max_seqs=None) if settings.slots_divide_context else one
        yield settings
    if settings.batch_tokens is not None or settings.max_seqs is not None:
        yield replace(settings, batch_tokens=None, max_seqs=None)
