"""The fullest device: the most tokens of KV, and the load that goes with them.

How many requests run at once and how many tokens a step has, where they are open, follow from the KV tokens: a cache
of few tokens serves few requests and takes small steps. More memory therefore never gives fewer tokens: what a number
of tokens needs, their own bytes and the load that goes with them, only grows with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from brim.planning.pricer import StepLoad
from brim.planning.settings import PlanSettings
from brim.planning.solving.fill import Filled, Filler
from brim.planning.solving.lower import SMALLEST_STEP
from brim.units import ceil_div, round_down, round_up

_SHORTEST_CONTEXT = 2048  # a plan that holds less than one such request does not fit
_SHORT_REQUEST = 1024  # tokens of a request on average, where nothing is said about it
_RUNNING = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # requests at once, where it is open
_MORE_RUNNING = (384, 512, 768, 1024)  # and if the mean length says that so many will run
_STEPS_IN_KV = 4  # a step has at least that share of the KV tokens, up to the usual size
_MANY = 64  # more than that many run in multiples of this
_KV_PER_STATE = 8  # the least KV of an average request, as a multiple of its recurrent state


def shortest_request(settings: PlanSettings) -> int:
    """The length of a request: as asked, else the shortest that a plan is made for.

    So many tokens of KV take the least bytes in requests as long as they are.
    """
    at_most = longest_request(settings)
    if settings.max_len is not None or settings.kv_tokens is not None:
        return at_most
    return min(at_most, max(_SHORTEST_CONTEXT, settings.mean_len or 0))


def longest_request(settings: PlanSettings) -> int:
    """The longest request that may be asked for."""
    if settings.max_len is not None:
        return settings.max_len
    if settings.kv_tokens is None:
        return settings.most_positions
    return min(settings.most_positions, max(1, settings.kv_tokens // settings.full_requests))


def asked_tokens(settings: PlanSettings, length: int) -> int:
    promised = settings.full_requests * round_up(length, settings.block_tokens)
    return max(promised, settings.kv_tokens or 0)


@dataclass(frozen=True, slots=True)
class FullestFill:
    """The tokens of KV on a device, in requests of a length."""

    filled: Filled
    length: int
    tokens: int

    @property
    def occupied(self) -> int:
        """The tokens that a request takes, in whole blocks."""
        return round_up(self.length, self.filled.settings.block_tokens)

    @property
    def requests(self) -> int:
        return self.tokens // self.occupied


class Fullest:
    """The most tokens of KV under the load that so many tokens usually have."""

    def __init__(self, settings: PlanSettings, filler: Filler) -> None:
        self._settings = settings
        self._filler = filler
        self._mean = round_up(self._mean_length(), settings.block_tokens)
        self._running = _RUNNING + (_MORE_RUNNING if settings.mean_len else ())

    def solved(self) -> FullestFill | None:
        """The fullest solution; None if what was asked for does not fit."""
        settings = self._settings
        length = settings.max_len or self._longest_request()
        if length < shortest_request(settings):
            return None
        found = self._most_tokens(length)
        if settings.spec.towers and settings.max_len is None and length < longest_request(settings):
            at_most = settings.full_requests * (found.occupied + settings.block_tokens) - 1
            found = replace(found, tokens=min(found.tokens, at_most))  # more tokens would be a longer context
        return found if found.tokens >= asked_tokens(settings, length) else None

    def _longest_request(self) -> int:
        return self._longest_with_media() if self._settings.spec.towers else self._longest_of_text()

    def _longest_of_text(self) -> int:
        requests, at_most = self._settings.full_requests, longest_request(self._settings)
        for low, high, filled in self._spans(at_most):
            length = filled.longest(requests, at_most)
            if requests * length >= low:
                within = length if high is inf else round_down(int(high - 1) // requests, self._settings.block_tokens)
                return min(length, within)
        return 0

    def _longest_with_media(self) -> int:
        """By halving: a longer context allows larger images, and those take memory too."""
        requests, block = self._settings.full_requests, self._settings.block_tokens
        low, high = 0, ceil_div(longest_request(self._settings), block)
        while low < high:
            middle = (low + high + 1) // 2
            filled = self._filler.filled(self.load(requests * middle * block), middle * block)
            fits = filled.holds(requests, middle * block)
            low, high = (middle, high) if fits else (low, middle - 1)
        return min(low * block, longest_request(self._settings))

    def _most_tokens(self, length: int) -> FullestFill:
        """Of requests of a length: tokens and their load go together."""
        for low, high, filled in self._spans(length):
            found = FullestFill(filled, length, int(min(filled.tokens(length), high - 1)))
            if self._settings.max_seqs is None and found.requests > filled.load.running:
                found = self._many(found)
            if found.tokens >= low:
                return found
        raise AssertionError("the last span begins at 0 tokens")

    def _spans(self, context: int) -> Iterator[tuple[int, float, Filled]]:
        """(from, below, device) for the spans of KV tokens with the same load, largest first."""
        high = inf
        for low in sorted(self._breakpoints(), reverse=True):
            yield low, high, self._filler.filled(self.load(low), context)
            high = low

    def _breakpoints(self) -> set[int]:
        """The numbers of tokens at which the load changes."""
        settings, points = self._settings, {0}
        if settings.batch_tokens is None:
            points |= {_STEPS_IN_KV // 2 * step + 1 for step in _steps(settings) if step > SMALLEST_STEP}
        if settings.max_seqs is None:
            points |= {running * self._mean + 1 for running in self._running[:-1] if running >= settings.full_requests}
        return points

    def load(self, tokens: int) -> StepLoad:
        """What steps are sized for when the KV cache has so many tokens."""
        settings = self._settings
        enough = (step for step in _steps(settings) if _STEPS_IN_KV * step >= tokens)
        step = settings.batch_tokens or min(enough, default=settings.usual_step)
        average = ceil_div(tokens, self._mean)
        usual = next((running for running in self._running if running >= average), self._running[-1])
        return StepLoad(step, settings.max_seqs or max(settings.full_requests, settings.running_within(step, usual)))

    def _mean_length(self) -> int:
        """The tokens of a request on average: as given, else short, and more where requests have large states."""
        settings = self._settings
        if settings.mean_len is not None:
            return settings.mean_len
        longest = settings.max_len or settings.spec.max_positions
        if settings.slots_divide_context:
            return longest
        load = StepLoad(settings.batch_tokens or settings.usual_step, 1)
        costs = self._filler.filled(load, longest).costs
        kv = costs.kv_bytes(longest)
        of_state = ceil_div(_KV_PER_STATE * costs.state_bytes * longest, kv) if kv else longest
        return min(longest, max(_SHORT_REQUEST, of_state))

    def _many(self, found: FullestFill) -> FullestFill:
        """More requests of full length than usually run: all that a step has tokens for, in multiples of a number."""
        usual, step = found.filled.load.running, found.filled.load.step_tokens
        most_running = self._settings.running_within(step, found.requests)

        def under(running: int) -> FullestFill:
            within = self._settings.running_within(step, running)
            load = replace(found.filled.load, running=max(usual, within))
            filled = self._filler.filled(load, found.length)
            return FullestFill(filled, found.length, min(found.tokens, filled.tokens(found.length)))

        low, high = usual // _MANY, ceil_div(most_running, _MANY)
        fullest = under(high * _MANY)
        if fullest.requests > fullest.filled.load.running:
            return fullest
        while low + 1 < high:  # under `high`, no more requests fit than run; under `low`, more do
            middle = (low + high) // 2
            low, high = (low, middle) if under(middle * _MANY).requests <= middle * _MANY else (middle, high)
        most, fewer = under(high * _MANY), under(low * _MANY)
        at_most = (fewer.filled.load.running + 1) * found.occupied - 1  # tokens of which no more requests are made
        return most if most.tokens > at_most else replace(fewer, tokens=min(fewer.tokens, at_most))


def _steps(settings: PlanSettings) -> Iterator[int]:
    """The usual tokens of a step and its halves, largest first."""
    step = settings.usual_step
    while step >= max(SMALLEST_STEP, settings.least_step):
        yield step
        step //= 2
