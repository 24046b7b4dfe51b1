"""Collectives as records: what a step asks of the other ranks, in which order, and how to take part without a result.

In: collectives as torch's dispatcher shows them (`noted`), while a rank runs a few small steps without the others. Out:
`StepCollectives`, which names those of any step beforehand (`of`), because their kinds and their order are the same in
every step of a model and their sizes follow the rows. A rank that cannot finish a step takes part in the rest of them
with zeros (`take_part`), in memory that is held for that.

Does not know: collectives that depend on values (an exchange of tokens between experts), several groups, and what a
tower does. A model with any of these is refused here (`learned` gives None).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from brim.units import round_up

_ALIGNMENT = 512  # of a second tensor in the reserve


class CollectiveKind(StrEnum):
    """What is done with the tensors of all ranks. Sums and other reductions take part alike."""

    REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    GATHER = "all_gather"
    GATHER_INTO = "all_gather_into_tensor"
    SCATTER = "reduce_scatter_tensor"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective, as this rank issues it."""

    kind: CollectiveKind
    elements: int = 0  # of this rank's tensor: what it sends, or what it keeps of a reduction that is scattered
    dtype: torch.dtype = torch.float32
    group: str = ""
    root: int = 0

    def bytes(self, ranks: int) -> int:
        """What taking part needs: this tensor, and where the kind has another one, that of all ranks."""
        mine = self.elements * self.dtype.itemsize
        alone = self.kind in (CollectiveKind.REDUCE, CollectiveKind.BROADCAST)
        return mine if alone else round_up(mine, _ALIGNMENT) + ranks * mine


# -- from the dispatcher -----------------------------------------------------------------------------------------------


def _tensor(kind: CollectiveKind, tensor: torch.Tensor, group: Any, root: int = 0) -> Collective:
    name = group if isinstance(group, str) else _unboxed(group).group_name
    return Collective(kind, tensor.numel(), tensor.dtype, name, root)


def _unboxed(group: Any) -> Any:
    return group if isinstance(group, dist.ProcessGroup) else dist.ProcessGroup.unbox(group)


def _only(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    (tensor,) = tensors
    return tensor


def _scattered(mine: torch.Tensor, _: str, ranks: int, group: Any) -> Collective:
    return _tensor(CollectiveKind.SCATTER, mine.flatten()[: mine.numel() // ranks], group)


_NOTES: dict[str, Callable[..., Collective]] = {
    "c10d::allreduce_": lambda tensors, group, *_, **__: _tensor(CollectiveKind.REDUCE, _only(tensors), group),
    "c10d::broadcast_": lambda tensors, group, root, *_, **__: _tensor(
        CollectiveKind.BROADCAST, _only(tensors), group, root
    ),
    "c10d::allgather_": lambda _, inputs, group, *__, **___: _tensor(CollectiveKind.GATHER, _only(inputs), group),
    "c10d::_allgather_base_": lambda _, mine, group, *__, **___: _tensor(CollectiveKind.GATHER_INTO, mine, group),
    "c10d::_reduce_scatter_base_": lambda mine, _, group, *__, **___: _tensor(CollectiveKind.SCATTER, mine, group),
    "_c10d_functional::all_reduce": lambda mine, _, group: _tensor(CollectiveKind.REDUCE, mine, group),
    "_c10d_functional::all_reduce_": lambda mine, _, group: _tensor(CollectiveKind.REDUCE, mine, group),
    "_c10d_functional::broadcast": lambda mine, root, group: _tensor(CollectiveKind.BROADCAST, mine, group, root),
    "_c10d_functional::broadcast_": lambda mine, root, group: _tensor(CollectiveKind.BROADCAST, mine, group, root),
    "_c10d_functional::reduce_scatter_tensor": _scattered,
    "_c10d_functional::all_gather_into_tensor": lambda mine, _, group: _tensor(CollectiveKind.GATHER_INTO, mine, group),
    "_c10d_functional::all_gather_into_tensor_out": lambda mine, _, group, **__: _tensor(
        CollectiveKind.GATHER_INTO, mine, group
    ),
}
_NONE = {"_c10d_functional::wait_tensor"}  # waits for one that was noted


def noted(name: str, args: Any, kwargs: Any) -> tuple[Collective, ...]:
    """The collective of a call; nothing where the call is none."""
    if name in _NONE:
        return ()
    return (_NOTES[name](*args, **kwargs) if name in _NOTES else Collective(CollectiveKind.OTHER),)


# -- those of any step -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepWork:
    """How many rows the parts of a step have."""

    tokens: int  # of the forward pass
    heads: tuple[int, ...]  # rows of each call of the head, in order
    drawn: int  # tokens that rank 0 sends to the others; 0: none


@dataclass(frozen=True, slots=True)
class _RowCollective:
    """A collective whose size follows the rows."""

    sample: Collective
    fixed: int  # elements of no row
    per_row: int

    def at(self, rows: int) -> Collective:
        sample = self.sample
        return Collective(sample.kind, self.fixed + rows * self.per_row, sample.dtype, sample.group, sample.root)


@dataclass(frozen=True, slots=True)
class StepCollectives:
    """The collectives of every step of a model."""

    forward: tuple[_RowCollective, ...]
    head: tuple[_RowCollective, ...]
    tokens: tuple[_RowCollective, ...]

    def of(self, work: StepWork) -> list[Collective]:
        """Those of one step, in order."""
        found = self.in_passes(work)
        return found + ([one.at(work.drawn) for one in self.tokens] if work.drawn else [])

    def in_passes(self, work: StepWork) -> list[Collective]:
        """Those of the model's own passes, which a CUDA graph may replay."""
        found = [one.at(work.tokens) for one in self.forward]
        for rows in work.heads:
            found += [one.at(rows) for one in self.head]
        return found

    def reserve_bytes(self, most: StepWork, ranks: int) -> int:
        """What taking part in any of a step of at most this size needs."""
        return max((one.bytes(ranks) for one in self.of(most)), default=0)


Notes = Mapping[int, Sequence[Collective]]  # by rows of the step that they were noted in


def learned(forward: Notes, head: Notes, tokens: Notes, group: str) -> StepCollectives | None:
    """What a few steps of different sizes say of all; None where some collective cannot be foretold."""
    parts = [_growing(notes, group) for notes in (forward, head, tokens)]
    if any(part is None for part in parts):
        return None
    return StepCollectives(*(part for part in parts if part is not None))


def _growing(notes: Notes, group: str) -> tuple[_RowCollective, ...] | None:
    """The law of each, from the two largest steps, if it holds for all."""
    sizes = sorted(notes)
    small, large = sizes[-2:] if len(sizes) > 1 else (sizes[0], sizes[0])
    found = tuple(_through(small, few, large, many) for few, many in zip(notes[small], notes[large], strict=False))
    known = all(one.kind is not CollectiveKind.OTHER and one.group == group for one in notes[large])
    holds = all([law.at(size) for law in found] == list(notes[size]) for size in sizes)
    return found if known and holds else None


def _through(small: int, few: Collective, large: int, many: Collective) -> _RowCollective:
    per_row = (many.elements - few.elements) // max(1, large - small)
    return _RowCollective(many, many.elements - large * per_row, per_row)


# -- without a result --------------------------------------------------------------------------------------------------


def take_part(collectives: Iterable[Collective], group: Any, reserve: torch.Tensor) -> None:
    """Issue these with zeros, so that the others do not wait and what they compute stays finite. Allocates nothing.

    `reserve`: uint8, as large as `StepCollectives.reserve_bytes` says.
    """
    for one in collectives:
        size = one.elements * one.dtype.itemsize
        mine = reserve[:size].view(one.dtype).zero_()
        start = round_up(size, _ALIGNMENT)
        _ISSUED[one.kind](one, mine, group, partial(_others, reserve[start:], one, dist.get_world_size(group)))


def _others(reserve: torch.Tensor, one: Collective, ranks: int) -> torch.Tensor:
    """Room for the tensors of all ranks, behind this rank's."""
    return reserve[: ranks * one.elements * one.dtype.itemsize].view(one.dtype).zero_()


_Room = Callable[[], torch.Tensor]


def _gather_lists(one: Collective, mine: torch.Tensor, group: Any, room: _Room) -> None:
    dist.all_gather(list(room().chunk(dist.get_world_size(group))), mine, group=group)


_ISSUED: dict[CollectiveKind, Callable[[Collective, torch.Tensor, Any, _Room], Any]] = {
    CollectiveKind.REDUCE: lambda one, mine, group, room: dist.all_reduce(mine, group=group),
    CollectiveKind.BROADCAST: lambda one, mine, group, room: dist.broadcast(mine, group=group, group_src=one.root),
    CollectiveKind.GATHER: _gather_lists,
    CollectiveKind.GATHER_INTO: lambda one, mine, group, room: dist.all_gather_into_tensor(room(), mine, group=group),
    CollectiveKind.SCATTER: lambda one, mine, group, room: dist.reduce_scatter_tensor(mine, room(), group=group),
}
