"""Solve for what the user did not give: KV tokens, concurrency, context length, or tokens per step.

| given                      | solved                                                          |
| -------------------------- | --------------------------------------------------------------- |
| nothing                    | the longest context that fits, then how many such requests      |
| max_len                    | how many requests of that length                                |
| max_seqs                   | how long each of them may be                                    |
| max_len and max_seqs       | tokens per step, and the KV tokens that remain                  |
| kv_tokens                  | tokens per step; and what of max_len and max_seqs is open       |
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from brim.planning.ledger import DEFAULT_SEQUENCES, Costs, Pricer, fixed_items
from brim.planning.settings import DEFAULT_BATCH_TOKENS, Settings
from brim.records.plan import LedgerItem, Source
from brim.units import round_down, round_up

_SMALLEST_STEP = 256
_LARGEST_STEP = 65536
_SHORTEST_CONTEXT = 2048  # a plan that holds less than one such request does not fit
_MOST_SEQUENCES = 1 << 20


@dataclass(frozen=True, slots=True)
class Solution:
    """The ledger of the fullest device, and the numbers it was solved for."""

    items: tuple[LedgerItem, ...]
    costs: Costs
    fits: bool
    slack_bytes: int  # what is left once the demand is met; a shortfall is negative
    kv_bytes: int
    kv_tokens: int
    max_len: int
    max_seqs: int
    batch_tokens: int
    limited_by: str


def solve(settings: Settings, pricer: Pricer) -> Solution:
    """Fill the device."""
    if settings.batch_tokens is None and settings.demand_is_fixed:
        return _largest_step(settings, pricer)
    step_tokens = settings.batch_tokens or DEFAULT_BATCH_TOKENS
    found = _at_step(settings, pricer, step_tokens)
    if settings.max_seqs is None and found.max_seqs > DEFAULT_SEQUENCES:
        return _most_sequences(settings, pricer, step_tokens, found)
    return found


def _most_sequences(settings: Settings, pricer: Pricer, step_tokens: int, found: Solution) -> Solution:
    """More requests than a step was planned for need more rows of logits, which leave memory for fewer requests."""
    low, high = DEFAULT_SEQUENCES, found.max_seqs
    while low < high:
        middle = (low + high + 1) // 2
        asked = replace(settings, max_seqs=middle, max_len=found.max_len)
        low, high = (middle, high) if _at_step(asked, pricer, step_tokens).fits else (low, middle - 1)
    asked = replace(settings, max_seqs=low, max_len=found.max_len)
    return replace(_at_step(asked, pricer, step_tokens), limited_by=found.limited_by)


def _largest_step(settings: Settings, pricer: Pricer) -> Solution:
    """The demand is given, so the remaining memory goes to the tokens of a step."""
    smallest = _at_step(settings, pricer, _SMALLEST_STEP)
    if not smallest.fits:
        return smallest
    low, high = _SMALLEST_STEP, _LARGEST_STEP
    while low < high:
        middle = round_up((low + high) // 2 + 1, _SMALLEST_STEP)
        if middle > high:
            break
        if _at_step(settings, pricer, middle).fits:
            low = middle
        else:
            high = round_down(middle - 1, _SMALLEST_STEP)
    return replace(_at_step(settings, pricer, low), limited_by="activation" if low < _LARGEST_STEP else "request")


def _at_step(settings: Settings, pricer: Pricer, step_tokens: int) -> Solution:
    """Solve for KV, length and concurrency with the tokens of a step given."""
    spec, block = settings.spec, settings.engine.block_tokens if settings.engine else 1
    longest = settings.max_len or spec.max_positions
    costs = pricer.costs(settings, step_tokens)
    fixed = fixed_items(settings, pricer, costs, step_tokens, longest)
    budget = settings.device.total_bytes - sum(item.bytes for item in fixed) - costs.footprint.scale_bytes

    max_len = _context(settings, costs, budget, longest, block)
    per_request = costs.request_bytes(round_up(max_len, block))
    max_seqs = settings.max_seqs or max(0, min(_MOST_SEQUENCES, budget // per_request))
    demand = _demand(settings, costs, per_request)
    fits = budget >= demand
    state = costs.footprint.state_bytes_per_request * (max_seqs if fits else min(max_seqs, 1))
    kv_bytes = max(0, budget - state)
    kv_tokens = _kv_tokens(costs, kv_bytes, max_len, block)
    return Solution(
        items=_all_items(settings, fixed, costs, state, budget - state, max_len),
        costs=costs,
        fits=fits,
        slack_bytes=budget - demand,
        kv_bytes=kv_bytes,
        kv_tokens=min(settings.kv_tokens, kv_tokens) if settings.kv_tokens else kv_tokens,
        max_len=max_len,
        max_seqs=max_seqs,
        batch_tokens=step_tokens,
        limited_by=_limit(settings, fixed, budget, fits, max_len),
    )


def _context(settings: Settings, costs: Costs, budget: int, longest: int, block: int) -> int:
    """The length of a request: as asked, else the longest that the wanted number of requests leaves room for.

    Requests occupy whole blocks, so that what is solved here fits when it is charged with them.
    """
    if settings.max_len is not None:
        return settings.max_len
    share = budget // (settings.max_seqs or 1)
    at_most = min(longest, settings.kv_tokens) if settings.kv_tokens else longest
    shortest = min(at_most, _SHORTEST_CONTEXT)
    if costs.request_bytes(round_up(shortest, block)) > share:
        return shortest
    low, high = shortest, at_most
    while low < high:
        middle = (low + high + 1) // 2
        fits = costs.request_bytes(round_up(middle, block)) <= share
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _demand(settings: Settings, costs: Costs, per_request: int) -> int:
    """The bytes that must be there for the plan to fit."""
    demand = per_request * (settings.max_seqs or 1)
    if settings.kv_tokens is not None:
        state = costs.footprint.state_bytes_per_request * (settings.max_seqs or 1)
        length = settings.max_len or min(settings.kv_tokens, settings.spec.max_positions)
        demand = max(demand, _bytes_of_tokens(costs, settings.kv_tokens, length) + state)
    return demand


def _bytes_of_tokens(costs: Costs, tokens: int, length: int) -> int:
    """Bytes of so many tokens of KV, in requests of a length."""
    whole, rest = divmod(tokens, length)
    return whole * _kv_of_request(costs, length) + _kv_of_request(costs, rest)


def _kv_of_request(costs: Costs, tokens: int) -> int:
    draft = costs.draft_footprint.kv_bytes(tokens) if costs.draft_footprint else 0
    return costs.footprint.kv_bytes(tokens) + draft


def _kv_tokens(costs: Costs, kv_bytes: int, length: int, block: int) -> int:
    """The tokens that fit into so many bytes, in requests of a length."""
    each = _kv_of_request(costs, length)
    if not each:
        return 0
    whole, rest = divmod(kv_bytes, each)
    partial = rest * length // each
    return round_down(whole * length + partial, block)


def _all_items(
    settings: Settings, fixed: tuple[LedgerItem, ...], costs: Costs, state: int, kv: int, max_len: int
) -> tuple[LedgerItem, ...]:
    """The ledger in its order; KV is the rest, so that the sum is the device."""
    each, own = _kv_of_request(costs, max_len), costs.footprint.kv_bytes(max_len)
    for_draft = max(0, kv) * (each - own) // each if each else 0
    kinds = ", ".join(
        f"{kind.layers} {kind.kind}" + (f" of {kind.window:,} tokens" if kind.window else "")
        for kind in costs.footprint.kinds
    )
    slots = state // costs.footprint.state_bytes_per_request if state else 0
    held = f"convolution and recurrent state, {slots} request{'s' if slots > 1 else ''}"
    ending = [
        LedgerItem("state", state, Source.EXACT, held if state else "no recurrent layers"),
        *[item for item in fixed if item.name in ("neighbours", "canary")],
        LedgerItem(
            "kv",
            kv - for_draft + costs.footprint.scale_bytes,
            Source.SOLVED,
            f"the rest: {settings.kv_dtype}, {kinds} layers",
        ),
    ]
    beginning = [
        replace(item, bytes=item.bytes + for_draft, detail=f"{item.detail}, and its KV")
        if item.name == "draft" and for_draft
        else item
        for item in fixed
        if item.name not in ("neighbours", "canary")
    ]
    return (*beginning, *ending)


def _limit(settings: Settings, fixed: tuple[LedgerItem, ...], budget: int, fits: bool, max_len: int) -> str:
    if not fits:
        return "kv" if budget > 0 else max(fixed, key=lambda item: item.bytes).name
    if settings.demand_is_fixed:
        return "request"
    if settings.max_len is None and settings.max_seqs is not None and max_len == settings.spec.max_positions:
        return "model context"
    return "kv"
