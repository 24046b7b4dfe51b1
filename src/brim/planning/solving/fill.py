"""A device filled under a load: what is left for KV, and how many tokens that is.

Everything here is exact for given settings and a given load. Which load to take is decided in `solve` and `lower`.
"""

from __future__ import annotations

from dataclasses import dataclass

from brim.planning.ledger import fixed_items
from brim.planning.pricer import Costs, Pricer, StepLoad
from brim.planning.settings import PlanSettings
from brim.records.plan import LedgerItem
from brim.units import round_up


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

    def tokens(self, length: int) -> int:
        """The tokens that the rest holds, in requests of a length that occupy whole blocks."""
        if self.kv_bytes < 0:
            return 0
        occupied = round_up(length, self.settings.block_tokens)
        each = self.costs.kv_bytes(occupied)
        if not each:
            return self.load.running * length  # only states: the requests are limited, their tokens are not
        whole, rest = divmod(self.kv_bytes, each)
        return whole * occupied + self._longest(rest, 0, occupied)

    def longest(self, requests: int, at_most: int) -> int:
        """The longest length of which the rest holds so many requests; 0 if it holds none."""
        if self.kv_bytes < 0:
            return 0
        return min(at_most, self._longest(self.kv_bytes // requests, 0, round_up(at_most, self.settings.block_tokens)))

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
        demand = settings.full_requests * self.costs.kv_bytes(round_up(length, settings.block_tokens))
        return max(demand, self.bytes_of(settings.kv_tokens, length)) if settings.kv_tokens else demand


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
        settings = self.settings
        costs = self._pricer.costs(settings, load.step_tokens)
        fixed = fixed_items(settings, self._pricer, costs, load, context)
        state = load.running * costs.state_bytes
        null = settings.engine.null_blocks * costs.kv_bytes(settings.block_tokens) if settings.engine else 0
        taken = sum(item.bytes for item in fixed) + costs.footprint.scale_bytes + null + state
        return Filled(settings, load, costs, fixed, state, null, settings.device.total_bytes - taken)
