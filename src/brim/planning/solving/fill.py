"""A device filled under a load: what is left for KV, and how many tokens that is.

Everything here is exact for given settings and a given load. Which load to take is decided in `solve` and `lower`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from brim.planning.ledger import fixed_items
from brim.planning.pricer import Costs, Pricer, StepLoad
from brim.planning.settings import PlanSettings
from brim.records.plan import LedgerItem
from brim.units import round_up

_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class Filled:
    """The ledger of a device but for its KV cache, which gets the rest."""

    settings: PlanSettings
    load: StepLoad
    costs: Costs
    fixed: tuple[LedgerItem, ...]
    state_bytes: int  # of every request that may run
    null_bytes: int  # of KV blocks that no request gets
    kv_bytes: int  # the rest; negative where the other items are too large
    others: tuple[Filled, ...] = ()  # devices that hold other parts of the model, under the same load

    @property
    def devices(self) -> tuple[Filled, ...]:
        """This device and the others, in the order of their stages."""
        return (replace(self, others=()), *self.others) if self.others else (self,)

    def tightest(self, length: int) -> Filled:
        """The device that decides: the one that lacks most, or else holds the fewest tokens."""
        if self.slack_bytes(length) < 0:
            return min(self.devices, key=lambda one: one.slack_bytes(length))
        return min(self.devices, key=lambda one: one._own_tokens(length))

    def tokens(self, length: int) -> int:
        """The tokens that every device holds, in requests of a length that occupy whole blocks."""
        fewest = min(one._own_tokens(length) for one in self.devices)
        return self.load.running * length if fewest == _NO_LIMIT else fewest

    def _own_tokens(self, length: int) -> int:
        """The tokens that this device holds; without limit where its layers keep states only."""
        if self.kv_bytes < 0:
            return 0
        occupied = round_up(length, self.settings.block_tokens)
        each = self.costs.kv_bytes(occupied)
        if not each:
            return _NO_LIMIT  # only states: the requests are limited, their tokens are not
        whole, rest = divmod(self.kv_bytes, each)
        return whole * occupied + self._longest(rest, 0, occupied)

    def longest(self, requests: int, at_most: int) -> int:
        """The longest length of which every device holds so many requests; 0 if one holds none."""
        for one in self.others:
            at_most = one.longest(requests, at_most)
        if self.kv_bytes < 0 or not at_most:
            return 0
        return min(at_most, self._longest(self.kv_bytes // requests, 0, round_up(at_most, self.settings.block_tokens)))

    def holds(self, requests: int, tokens: int) -> bool:
        """Whether every device has room for so many requests."""
        return all(one.kv_bytes >= requests * one.costs.kv_bytes(tokens) for one in self.devices)

    def slack_bytes(self, length: int) -> int:
        """What is left on the device that has least, once what was asked for is met; negative: it is missing."""
        return min(one.kv_bytes - one.demand_bytes(length) for one in self.devices)

    def _longest(self, size: int, low: int, high: int) -> int:
        """The most tokens of one request, in whole blocks, that so many bytes hold."""
        block = self.settings.block_tokens
        low, high = low // block, high // block
        if self.costs.kv_bytes(high * block) <= size:
            return high * block
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.costs.kv_bytes(middle * block) <= size
            low, high = (middle, high) if fits else (low, middle - 1)
        return low * block

    def bytes_of(self, tokens: int, length: int) -> int:
        """KV of so many tokens, in requests of a length."""
        whole, rest = divmod(tokens, length)
        return whole * self.costs.kv_bytes(length) + self.costs.kv_bytes(rest)

    def demand_bytes(self, length: int) -> int:
        """KV of what was asked for: the requests of full length, and the tokens."""
        settings = self.settings
        occupied = round_up(length, settings.block_tokens)
        demand = settings.full_requests * self.costs.kv_bytes(occupied)
        return max(demand, self.bytes_of(settings.kv_tokens, occupied)) if settings.kv_tokens else demand


class Filler:
    """Fills a device under one load after the other, each once."""

    def __init__(self, settings: PlanSettings, pricer: Pricer) -> None:
        self.settings = settings
        self._pricer = pricer
        self._filled: dict[tuple[StepLoad, int], Filled] = {}

    def filled(self, load: StepLoad, context: int) -> Filled:
        """The device under a load; media of a prompt are bounded by its context."""
        key = (load, context)
        if key not in self._filled:
            self._filled[key] = self._fill(load, context)
        return self._filled[key]

    def _fill(self, load: StepLoad, context: int) -> Filled:
        first, *others = (self._fill_device(one, load, context) for one in self._pricer.parts(self.settings))
        return replace(first, others=tuple(others)) if others else first

    def _fill_device(self, settings: PlanSettings, load: StepLoad, context: int) -> Filled:
        costs = self._pricer.costs(settings, load.step_tokens)
        fixed = fixed_items(settings, self._pricer, costs, load, context)
        state = load.running * costs.state_bytes
        null = settings.engine.null_blocks * costs.kv_bytes(settings.block_tokens) if settings.engine else 0
        taken = sum(item.bytes for item in fixed) + costs.footprint.scale_bytes + null + state
        return Filled(settings, load, costs, fixed, state, null, settings.device.total_bytes - taken)
