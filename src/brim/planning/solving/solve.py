"""Solve for what the user did not give: KV tokens, requests, context length, tokens per step.

| given                | solved                                                                  |
| -------------------- | ----------------------------------------------------------------------- |
| nothing              | the longest context that fits, then the tokens of KV                     |
| max_len              | the tokens of KV, and how many requests of that length they are          |
| concurrency          | how long each of so many requests may be                                 |
| kv_tokens            | what of max_len is open                                                  |

The fullest device (`fullest`) is tried first. If what was asked for does not fit that way, what was left open is
lowered (`lower`) before the answer is no.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from brim.planning.pricer import Costs, Pricer
from brim.planning.settings import PlanSettings
from brim.planning.solving.fill import Filled, Filler
from brim.planning.solving.fullest import Fullest, asked_tokens, shortest_request
from brim.planning.solving.lower import lower
from brim.records.plan import AtLength, LedgerItem, Lowered, Source
from brim.units import round_down, round_up

_USUAL_MEANS = (512, 2048, 8192)  # tokens of a request on average


@dataclass(frozen=True, slots=True)
class Solution:
    """The ledger of the fullest device, and the numbers it was solved for."""

    items: tuple[LedgerItem, ...]
    costs: Costs
    fits: bool
    slack_bytes: int  # what is left once the demand is met; a shortfall is negative
    kv_bytes: int
    null_bytes: int  # KV beyond `kv_bytes` that no request gets
    kv_tokens: int
    max_len: int
    max_seqs: int  # the most requests that run at once
    concurrency: int  # requests of max_len that fit at once
    mean_requests: int | None  # requests that run at once at the mean length
    usual_lengths: tuple[AtLength, ...]  # and at usual ones
    batch_tokens: int
    graphs: bool
    images_per_prompt: int | None
    image_pixels: int | None
    lowered: tuple[Lowered, ...]
    limited_by: str
    filled: Filled  # every distinct device under the load


def solve(settings: PlanSettings, pricer: Pricer) -> Solution:
    """Fill the device."""
    usual = Fullest(settings, Filler(settings, pricer))
    found = usual.solved()
    if found is not None:
        return _solution(found.filled, found.length, found.tokens, _small_step(found.filled))
    length = shortest_request(settings)
    tokens = asked_tokens(settings, length)
    filled, lowered = lower(settings, pricer, usual.load(tokens), length)
    return _solution(filled, length, tokens, lowered)


def _small_step(filled: Filled) -> tuple[Lowered, ...]:
    """Steps are small where the KV cache has few tokens."""
    usual, step = filled.settings.usual_step, filled.load.step_tokens
    if filled.settings.batch_tokens is not None or step >= usual:
        return ()
    return (Lowered("batch_tokens", str(usual), str(step)),)


def _solution(filled: Filled, length: int, tokens: int, lowered: tuple[Lowered, ...]) -> Solution:
    everywhere, filled = filled, filled.tightest(length)
    settings, load = filled.settings, filled.load
    slack = everywhere.slack_bytes(length)
    fits = slack >= 0
    if not fits:
        tokens = everywhere.tokens(length)
    if settings.kv_tokens is not None:
        tokens = min(tokens, asked_tokens(settings, length))
    requests = tokens // round_up(length, settings.block_tokens)
    running = load.running
    if settings.slots_divide_context and settings.max_seqs is None:
        running = max(1, min(running, requests))
    return Solution(
        items=ledger_items(filled, length),
        costs=filled.costs,
        fits=fits,
        slack_bytes=slack,
        kv_bytes=max(0, filled.kv_bytes),
        null_bytes=filled.null_bytes,
        kv_tokens=round_down(tokens, settings.block_tokens),
        max_len=length,
        max_seqs=running,
        concurrency=min(running, requests),
        mean_requests=_at_length(everywhere, running, tokens, settings.mean_len) if settings.mean_len else None,
        usual_lengths=_usual_lengths(everywhere, running, tokens, length) if fits else (),
        batch_tokens=load.step_tokens,
        graphs=settings.graphs is not False,
        images_per_prompt=settings.images_per_prompt,
        image_pixels=settings.image_pixels,
        lowered=lowered,
        limited_by=_limit(filled, fits, length, lowered),
        filled=everywhere,
    )


def _at_length(filled: Filled, running: int, tokens: int, mean: int) -> int:
    """Requests that run at once if they have so many tokens on average."""
    return min(running, min(tokens, filled.tokens(mean)) // round_up(mean, filled.settings.block_tokens))


def _usual_lengths(filled: Filled, running: int, tokens: int, longest: int) -> tuple[AtLength, ...]:
    if filled.settings.slots_divide_context:
        return ()  # a slot is as long as it is
    shorter = (mean for mean in _USUAL_MEANS if mean < longest)
    return tuple(AtLength(mean, _at_length(filled, running, tokens, mean)) for mean in shorter)


def ledger_items(filled: Filled, max_len: int) -> tuple[LedgerItem, ...]:
    """The ledger in its order; KV is the rest, so that the sum is the device."""
    costs, settings = filled.costs, filled.settings
    each, own = costs.kv_bytes(max_len), costs.footprint.kv_bytes(max_len)
    for_draft = max(0, filled.kv_bytes) * (each - own) // each if each else 0
    kinds = ", ".join(
        f"{kind.layers} {kind.kind}" + (f" of {kind.window:,} tokens" if kind.window else "")
        for kind in costs.footprint.kinds
    )
    running = filled.load.running
    held = f"convolution and recurrent state, {running} request{'s' if running > 1 else ''}"
    ending = [
        LedgerItem("state", filled.state_bytes, Source.EXACT, held if filled.state_bytes else "no recurrent layers"),
        *[item for item in filled.fixed if item.name in ("neighbours", "canary")],
        LedgerItem(
            "kv",
            filled.kv_bytes - for_draft + costs.footprint.scale_bytes + filled.null_bytes,
            Source.SOLVED,
            f"the rest: {settings.kv_dtype}, {kinds} layers",
        ),
    ]
    beginning = [
        replace(item, bytes=item.bytes + for_draft, detail=f"{item.detail}, and its KV")
        if item.name == "draft" and for_draft
        else item
        for item in filled.fixed
        if item.name not in ("neighbours", "canary")
    ]
    return (*beginning, *ending)


def _limit(filled: Filled, fits: bool, length: int, lowered: tuple[Lowered, ...]) -> str:
    settings = filled.settings
    if not fits:
        return "kv" if filled.kv_bytes > 0 else max(filled.fixed, key=lambda item: item.bytes).name
    if lowered:
        return "activation"
    if settings.kv_tokens is not None or (settings.concurrency is not None and settings.max_len is not None):
        return "request"
    if settings.max_len is None and settings.concurrency is not None and length == settings.most_positions:
        return "model context"
    return "kv"
