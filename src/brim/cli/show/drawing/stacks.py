"""Live bytes over the operations of a step, stacked by owner: the numbers behind a picture, exact to the byte."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from brim.cli.show.drawing.owners import ModelComponent, Owner, layer_of
from brim.records.trace import Allocation, Timeline

_SMALL = 50  # less than this part of the peak is small


@dataclass(frozen=True, slots=True)
class Band:
    """An owner's live bytes in every column, and its tensors alive at the peak, largest first."""

    owner: Owner
    bytes: tuple[int, ...]
    most_bytes: int  # also in operations that have no column
    at_peak: tuple[Allocation, ...]

    @property
    def peak_bytes(self) -> int:
        return sum(made.bytes for made in self.at_peak)


@dataclass(frozen=True, slots=True)
class Stack:
    """Bands from the bottom up over columns, each of which is one operation of the step."""

    operations: tuple[int, ...]
    live_bytes: tuple[int, ...]  # of each column: what its bands add up to
    bands: tuple[Band, ...]

    @property
    def peak_bytes(self) -> int:
        return max(self.live_bytes)

    @property
    def peak(self) -> int:
        """The column of the peak."""
        return self.live_bytes.index(self.peak_bytes)

    @property
    def by_size(self) -> list[Band]:
        """The bands alive at the peak, largest first, then the others."""
        return sorted(self.bands, key=lambda band: (-band.peak_bytes, -band.most_bytes))

    def column_of(self, operation: int) -> int:
        """The column that an operation is drawn in."""
        return max(0, bisect_right(self.operations, operation) - 1)


def stacked(timeline: Timeline, span: range, owner_of: Callable[[Allocation], Owner], columns: int) -> Stack:
    """The operations of a span, at most so many columns, with the bytes of each owner.

    Bands come in the order in which their owners first allocated something that is alive in the span.
    """
    operations = _columns(timeline, span, columns)
    live = tuple(timeline.operations[operation].live_bytes for operation in operations)
    peak = operations[live.index(max(live))]
    changes: dict[Owner, Counter[int]] = defaultdict(Counter)
    alive: dict[Owner, list[Allocation]] = defaultdict(list)
    for made in timeline.allocations:
        if made.freed_at <= span.start or made.made_at >= span.stop or made.made_at == made.freed_at:
            continue
        owner = owner_of(made)
        changes[owner][max(span.start, made.made_at)] += made.bytes
        changes[owner][made.freed_at] -= made.bytes
        if made.is_live_at(peak):
            alive[owner].append(made)
    bands = (_band(owner, change, operations, alive[owner]) for owner, change in changes.items())
    return Stack(operations, live, tuple(bands))


def _band(owner: Owner, changes: Counter[int], operations: tuple[int, ...], alive: list[Allocation]) -> Band:
    """The level after each operation, from the changes at some of them."""
    places = sorted(changes)
    levels = [0, *accumulate(changes[place] for place in places)]
    drawn = tuple(levels[bisect_right(places, operation)] for operation in operations)
    return Band(owner, drawn, max(levels), _by_bytes(alive))


def _by_bytes(allocations: Iterable[Allocation]) -> tuple[Allocation, ...]:
    return tuple(sorted(allocations, key=lambda made: -made.bytes))


def changing_operations(timeline: Timeline, span: range) -> list[int]:
    """The operations of a span that allocate or free, and its first."""
    changed = {made.made_at for made in timeline.allocations} | {made.freed_at for made in timeline.allocations}
    return [operation for operation in span if operation in changed or operation == span.start]


def _columns(timeline: Timeline, span: range, limit: int) -> tuple[int, ...]:
    """The operations that change something; of more than `limit`, in each stretch the one with the most live bytes."""
    found = changing_operations(timeline, span)
    if len(found) <= limit:
        return tuple(found)
    edges = [index * len(found) // limit for index in range(limit + 1)]
    return tuple(
        max(found[start:end], key=lambda index: timeline.operations[index].live_bytes) for start, end in pairwise(edges)
    )


def largest(stack: Stack, count: int) -> Stack:
    """The stack with its largest owners by name, and the others together by part; small sums are one."""
    least = stack.peak_bytes // _SMALL

    def rank(band: Band) -> tuple[int, int]:
        return (band.peak_bytes if band.peak_bytes >= least else 0), band.most_bytes

    named = {band.owner for band in sorted(stack.bands, key=rank, reverse=True)[:count]}
    rest: Counter[ModelComponent] = Counter()
    for band in stack.bands:
        rest[band.owner.part] += 0 if band.owner in named else band.most_bytes
    drawn: dict[Owner | ModelComponent, list[Band]] = defaultdict(list)
    for band in stack.bands:
        part = band.owner.part if rest[band.owner.part] >= least else ModelComponent.OTHER
        drawn[band.owner if band.owner in named else part].append(band)
    return replace(stack, bands=tuple(_together(key, bands) for key, bands in drawn.items()))


def _together(key: Owner | ModelComponent, bands: list[Band]) -> Band:
    """Several owners as one."""
    if len(bands) == 1 or isinstance(key, Owner):
        return bands[0]
    bytes_by_column = tuple(sum(column) for column in zip(*(band.bytes for band in bands), strict=True))
    name = f"{len(bands)} others" if key is ModelComponent.OTHER else f"{key}, {len(bands)} others"
    alive = _by_bytes(made for band in bands for made in band.at_peak)
    return Band(Owner(name, key), bytes_by_column, max(bytes_by_column), alive)


def layer_at_the_peak(timeline: Timeline) -> range:
    """The operations of the layer that runs at the peak; outside the layers, those between its neighbours.

    A module that layers share has a path outside them: an operation there belongs to the layer around it.
    """
    peak = timeline.peak_at
    layers = [layer_of(operation.module) for operation in timeline.operations]
    other = {"", layers[peak]} if layers[peak] else {""}
    start = peak
    while start > 0 and layers[start - 1] in other:
        start -= 1
    end = peak + 1
    while end < len(layers) and layers[end] in other:
        end += 1
    if layers[peak]:
        start = next(index for index in range(start, peak + 1) if layers[index])
        end = next(index for index in range(end, peak, -1) if layers[index - 1])
    return range(start, end)
