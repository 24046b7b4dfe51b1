"""A load like that of a service: quiet and busy minutes, bursts, a few long prompts, images, clients that hang up."""

from __future__ import annotations

import random

from brim.bench.lengths import LongTailed
from brim.bench.records import Ask
from brim.bench.trace import RequestTrace

_BURST_EVERY, _BURST_SECONDS = 60.0, 5.0
_LONG, _IMAGE, _LEAVES = 0.05, 0.05, 0.1  # shares of requests


def production_trace(seconds: float, rate: float, context: int, seed: int = 0, *, images: bool = True) -> RequestTrace:
    """About `rate` requests a second, eight times as many in bursts; prompts and answers that fit a context."""
    numbers = random.Random(seed)
    asks, at = [], 0.0
    while at < seconds:
        asks.append(_ask(numbers, at, context, images))
        busy = at % _BURST_EVERY < _BURST_SECONDS
        at += numbers.expovariate(rate * (8 if busy else 1))
    return RequestTrace(tuple(asks), 0)


def _ask(numbers: random.Random, at: float, context: int, images: bool) -> Ask:
    prompt = min(context // 2, LongTailed(context // 16, 0.7).draw(numbers))
    if numbers.random() < _LONG:
        prompt = context * 3 // 4
    answer = min(context // 8, LongTailed(context // 32, 0.7).draw(numbers))
    shown = 1 if images and prompt < context // 2 and numbers.random() < _IMAGE else 0
    leaves = numbers.randrange(1, answer + 1) if numbers.random() < _LEAVES else None
    return Ask(prompt, answer if leaves is None else answer + leaves, at, shown, leaves)
