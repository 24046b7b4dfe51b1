"""From bytes to tokens: the KV cache that fits the remaining memory, and the next size after out of memory."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil, floor

from brim.errors import DoesNotFit
from brim.records.fit import Attempt, FitRequest, Usage
from brim.units import format_bytes

KvPrice = Callable[[int], int]  # bytes of a KV cache of so many tokens; never falls

_LEAST_SHRINK = 0.01
_BLIND_SHRINK = 0.05  # when the shortfall is unknown


def tokens_left(usage: Usage, request: FitRequest, price: KvPrice) -> int:
    """The most tokens that fit the remaining memory; 0 if none do."""
    return most_tokens_within(left_bytes(usage, request), request.most_tokens, price)


def left_bytes(usage: Usage, request: FitRequest) -> int:
    """What the KV cache may take."""
    return floor(_measured_bytes(usage, request) * _share(request))


def _measured_bytes(usage: Usage, request: FitRequest) -> int:
    return usage.left_for_kv(request.canary_bytes + request.keep_free_bytes + request.rounding_bytes)


def target_tokens(usage: Usage, request: FitRequest, price: KvPrice) -> int:
    """The same; `DoesNotFit` if that does not hold one request."""
    tokens = tokens_left(usage, request, price)
    if tokens < request.least_tokens:
        measured, needed = _measured_bytes(usage, request), price(request.least_tokens)
        missing = ceil(needed / _share(request)) - measured
        kept_free = request.keep_free_bytes
        raise DoesNotFit(
            f"{format_bytes(max(floor(measured * _share(request)), 0))} are left for the KV cache and one request "
            f"needs {format_bytes(needed)} ({request.least_tokens:,} tokens): "
            f"the shortfall is {format_bytes(missing)} ({missing:,} bytes)"
            + (f"; {format_bytes(kept_free)} are kept free (keep_free)" if kept_free else ""),
            missing_bytes=missing,
        )
    return tokens


def _share(request: FitRequest) -> Fraction:
    """Exact, so that exactly the reported shortfall is enough."""
    return Fraction(request.memory_fraction)


def limit_tokens(usage: Usage, request: FitRequest, price: KvPrice) -> int:
    """The most that the device could hold: no canary, nothing kept free, no slack, and of buffers only what is used."""
    wanted = request.state_bytes + request.feature_bytes
    at_most = usage.left_for_kv(0) + usage.slack_bytes + usage.built_bytes - wanted
    return most_tokens_within(at_most, request.most_tokens, price)


def most_tokens_within(limit_bytes: int, most_tokens: int, price: KvPrice) -> int:
    """The largest number of tokens whose KV cache is no larger than the limit; 0 if none is."""
    low, high = 0, most_tokens
    while low < high:
        middle = (low + high + 1) // 2
        if price(middle) <= limit_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def shrunk_tokens(attempt: Attempt, price: KvPrice) -> int:
    """The next size after one that did not fit: less by the shortfall, at least 1 %; by 5 % if it is unknown."""
    size = price(attempt.kv_tokens)
    missing = attempt.shortfall_bytes
    less = ceil(size * _BLIND_SHRINK) if missing is None else max(missing, ceil(size * _LEAST_SHRINK))
    return min(most_tokens_within(size - less, attempt.kv_tokens, price), attempt.kv_tokens - 1)
