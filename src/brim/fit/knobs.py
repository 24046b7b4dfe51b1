"""The settings that would help when nothing fits: each with its value, the value that would fit, and what that frees.

In: the shortfall, what was measured, and the settings. Out: `Knob`s, the least harm to serving first, and the error
with all of them in its message. Only settings that free something are listed.

An estimate from one measurement: activations are taken as proportional to the tokens of a step, and what was built
besides KV as proportional to the batch. Logits and the windows of KV, which a smaller batch would lower too, are left
out. A size that was given is not measured: of its shortfall only the allocation that failed is known, so that the size
proposed instead is a bound ("at most").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from brim.errors import DoesNotFit
from brim.fit.items import counted
from brim.fit.target import KvPrice, most_tokens_within
from brim.records.fit import FitItem, FitRequest
from brim.units import ceil_div, format_bytes

_HOW_SURE = "estimates"
_LESS_SURE = "estimates: nothing was measured, and the shortfall may be more than the allocation that failed"
_FLAGS = {"max_batch": "--max-seqs", "max_batch_tokens": "--batch-tokens", "max_length": "--max-len"}  # that differ
_BLIND_SHARE = 20  # of the KV cache, where the shortfall is unknown, as in `shrunk_tokens`


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting: its value, the value that would fit (or the best there is), and the device memory that frees."""

    name: str
    current: str
    proposed: str
    buys_bytes: int


@dataclass(frozen=True, slots=True)
class CurrentSettings:
    """The current settings of an engine."""

    max_batch: int
    max_batch_tokens: int
    max_length: int
    block_size: int
    kv_dtype: str
    kv_element_bytes: int
    total_bytes: int  # of the device


@dataclass(frozen=True, slots=True)
class _Case:
    """What does not fit."""

    missing_bytes: int
    ledger: tuple[FitItem, ...]
    standing: CurrentSettings
    request: FitRequest
    price: KvPrice

    @property
    def tokens(self) -> int:
        """The size that did not fit: the requested one, or that of one request."""
        return self.request.kv_tokens or self.request.least_tokens

    @property
    def left_bytes(self) -> int | None:
        """The measured remaining memory for KV."""
        if not self.ledger:
            return None
        held = sum(size for item, size in counted(self.ledger) if item.name != "kv")
        return self.standing.total_bytes - held

    @property
    def kept_bytes(self) -> int:
        """What no KV cache gets."""
        return self.request.canary_bytes + self.request.keep_free_bytes

    def measured(self, name: str) -> int:
        return sum(item.measured_bytes or 0 for item in self.ledger if item.name == name)

    def device_bytes(self, kv_bytes: int) -> int:
        """The remaining memory needed for a KV cache of that size, of which only a fraction may be used."""
        return ceil(kv_bytes / Fraction(self.request.memory_fraction))

    def with_least(self, max_batch_tokens: int, max_length: int) -> int:
        """What a smaller least request frees."""
        if self.request.kv_tokens is not None:
            return 0
        least = min(self.tokens, max_length, max(max_batch_tokens, self.standing.block_size))
        return self.device_bytes(self.price(self.tokens)) - self.device_bytes(self.price(least))


def knobs(
    missing_bytes: int | None,
    ledger: tuple[FitItem, ...],
    standing: CurrentSettings,
    request: FitRequest,
    price: KvPrice,
) -> tuple[Knob, ...]:
    """Every setting that frees something, the least harm to serving first."""
    tokens = request.kv_tokens or request.least_tokens
    case = _Case(missing_bytes or max(1, price(tokens) // _BLIND_SHARE), ledger, standing, request, price)
    kinds = (_kv_tokens, _memory_fraction, _keep_free, _max_batch_tokens, _canary, _max_batch, _kv_dtype, _max_length)
    return tuple(knob for kind in kinds for knob in kind(case) if knob.buys_bytes > 0)


def _kv_tokens(case: _Case) -> Iterator[Knob]:
    now = case.request.kv_tokens
    if now is not None:
        left = min(case.price(now) - case.missing_bytes, case.standing.total_bytes - case.kept_bytes)
        fewer = max(most_tokens_within(left, now, case.price), case.request.least_tokens)
        proposed = str(fewer) if case.ledger else f"at most {fewer}"
        yield Knob("kv_tokens", str(now), proposed, case.price(now) - case.price(fewer))


def _memory_fraction(case: _Case) -> Iterator[Knob]:
    """Helps only where the fraction is what kept the KV cache small."""
    now, left, needed = case.request.memory_fraction, case.left_bytes, case.price(case.tokens)
    if left is None or now >= 1 or case.device_bytes(needed) <= left:
        return
    more = 1.0 if left <= needed else ceil(100 * needed / left) / 100
    yield Knob("memory_fraction", f"{now:g}", f"{more:g}", case.device_bytes(needed) - ceil(needed / Fraction(more)))


def _max_batch_tokens(case: _Case) -> Iterator[Knob]:
    now = case.standing.max_batch_tokens
    activation = case.measured("activation")
    fewer, buys = now, 0
    while buys < case.missing_bytes and fewer // 2 >= case.standing.max_batch:
        fewer //= 2
        buys = activation * (now - fewer) // now + case.with_least(fewer, case.standing.max_length)
    yield Knob("max_batch_tokens", str(now), str(fewer), buys)


def _keep_free(case: _Case) -> Iterator[Knob]:
    yield _kept_back("keep_free", case.request.keep_free_bytes, case.missing_bytes)


def _canary(case: _Case) -> Iterator[Knob]:
    yield _kept_back("canary", case.request.canary_bytes, case.missing_bytes)


def _kept_back(name: str, now: int, missing_bytes: int) -> Knob:
    smaller = max(0, now - missing_bytes)
    return Knob(name, format_bytes(now), format_bytes(smaller), now - smaller)


def _max_batch(case: _Case) -> Iterator[Knob]:
    now = case.standing.max_batch
    built = case.measured("graphs") + case.request.state_bytes + case.request.feature_bytes
    row_bytes = built // (now + 1)  # block tables, recurrent states and captured steps: a row each
    if row_bytes:
        fewer = max(1, now - ceil_div(case.missing_bytes, row_bytes))
        yield Knob("max_batch", str(now), str(fewer), (now - fewer) * row_bytes)


def _kv_dtype(case: _Case) -> Iterator[Knob]:
    size = case.standing.kv_element_bytes
    if size > 1:
        needed = case.price(case.tokens)
        yield Knob(
            "kv_dtype",
            case.standing.kv_dtype,
            "fp8",
            case.device_bytes(needed) - case.device_bytes(ceil_div(needed, size)),
        )


def _max_length(case: _Case) -> Iterator[Knob]:
    now = case.standing.max_length
    shorter, buys = now, 0
    while buys < case.missing_bytes and shorter // 2 >= case.standing.block_size:
        shorter //= 2
        buys = case.with_least(case.standing.max_batch_tokens, shorter)
    yield Knob("max_length", str(now), str(shorter), buys)


def explained(error: DoesNotFit, found: tuple[Knob, ...]) -> DoesNotFit:
    """The same error, with the ledger and the knobs in its message."""
    lines = [str(error)]
    if error.ledger:
        lines += ["measured, with KV for one request:"]
        lines += [f"  {item.name:<18}{format_bytes(item.measured_bytes or 0):>12}" for item in error.ledger]
    if found:
        lines += [f"settings that would help ({_HOW_SURE if error.ledger else _LESS_SURE}):"]
        lines += [_line(knob, error.missing_bytes) for knob in found]
    return DoesNotFit("\n".join(lines), error.missing_bytes, error.ledger, found)


def _line(knob: Knob, missing_bytes: int | None) -> str:
    too_little = "" if missing_bytes is None or knob.buys_bytes >= missing_bytes else ", not enough by itself"
    change = f"{knob.current} -> {knob.proposed}"
    name = f"{knob.name} ({_FLAGS[knob.name]})" if knob.name in _FLAGS else knob.name
    return f"  {name:<34}{change:<21} frees {format_bytes(knob.buys_bytes)}{too_little}"
