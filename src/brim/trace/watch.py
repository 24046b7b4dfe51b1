"""Storages from allocation to free: the accounting behind a trace.

Every operation passes through `StorageWatch`. A storage is counted once, with the allocator's rounding, from the
operation that allocated it until nothing refers to it: views, in-place results and `out=` reuse a storage and cost
nothing. Tensors that a model's code allocates on the CPU (grids, lengths) are counted too: on a GPU they would be
device tensors. They keep their values, so that shapes that depend on them are right.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from brim.records.trace import Allocation, LiveTensor, Operation, Timeline
from brim.trace.allocator import ROUNDING
from brim.trace.scratch import kernel_scratch
from brim.trace.unknown_values import SCALAR, TRUTH, KnownMasks, every_place, places, to_meta
from brim.units import round_up

if TYPE_CHECKING:
    import torch


class StorageWatch:
    """Counts live bytes, and remembers what was alive at the peak; records every operation when asked to."""

    def __init__(self, held: Iterable[torch.Tensor], *, records_operations: bool = False) -> None:
        self._held = {tensor.untyped_storage()._cdata for tensor in held}
        self._live: dict[int, int] = {}  # storage -> allocation
        self._about: list[tuple[int, str, str, tuple[int, ...]]] = []  # by allocation: bytes, op, module, shape
        self.live_bytes = 0
        self.peak_bytes = 0
        self.peak_event = 0
        self.peak_op = ""
        self.peak_module = ""
        self.peak_shapes: tuple[tuple[int, ...], ...] = ()
        self.events: list[int] = []  # an allocation's number + 1, negative when it is freed
        self.modules: list[str] = [""]
        self._records_operations = records_operations
        self._operations: list[tuple[Operation, int]] = []  # and the number of events until its end

    def made(self, tensor: torch.Tensor, op: str) -> None:
        """Count a tensor's storage, unless it is known."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live or key in self._held:
            return
        size = round_up(storage.nbytes(), ROUNDING)
        if not size:
            return
        number = len(self._about)
        self._about.append((size, op, self.modules[-1], tuple(tensor.shape)))
        self._live[key] = number
        self.events.append(number + 1)
        self.live_bytes += size
        weakref.finalize(storage, self._died, key)

    def _died(self, key: int) -> None:
        number = self._live.pop(key, None)
        if number is None:
            return
        self.live_bytes -= self._about[number][0]
        self.events.append(-(number + 1))

    def after_operation(self, op: str, shapes: tuple[tuple[int, ...], ...]) -> None:
        """Remember the peak, and the operation if asked to."""
        if self._records_operations:
            self._operations.append((Operation(op, self.modules[-1], self.live_bytes), len(self.events)))
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes = self.live_bytes
            self.peak_event = len(self.events)
            self.peak_op, self.peak_module, self.peak_shapes = op, self.modules[-1], shapes

    def forget_peak(self) -> int:
        """Measure the peak from here on; returns the live bytes."""
        self.peak_bytes = self.live_bytes
        return self.live_bytes

    def finish(self) -> None:
        """End of the call: later frees are not recorded."""
        for number in self._live.values():
            self.events.append(-(number + 1))
        self._live.clear()

    def alive_at_peak(self) -> tuple[LiveTensor, ...]:
        """The tensors of the peak, largest first."""
        alive: set[int] = set()
        for event in self.events[: self.peak_event]:
            alive.add(event) if event > 0 else alive.discard(-event)
        found = [LiveTensor(*self._about[number - 1]) for number in alive]
        return tuple(sorted(found, key=lambda one: -one.bytes))

    def sizes(self) -> list[int]:
        """Bytes of each allocation, by its number."""
        return [about[0] for about in self._about]

    def timeline(self) -> Timeline | None:
        """The recorded operations and the life of every allocation; None where they were not recorded."""
        if not self._records_operations:
            return None
        ends = [end for _, end in self._operations]
        made: dict[int, int] = {}
        freed: dict[int, int] = {}
        for place, event in enumerate(self.events):
            operation = bisect_right(ends, place)
            if event > 0:
                made[event - 1] = operation
            else:
                freed[-event - 1] = operation
        allocations = (
            Allocation(*about, made_at=made[number], freed_at=freed.get(number, len(ends)))
            for number, about in enumerate(self._about)
        )
        return Timeline(tuple(operation for operation, _ in self._operations), tuple(allocations))


def watching(watch: StorageWatch) -> Any:
    """A mode that shows every operation to a watch while it is active."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map

    aten = torch.ops.aten
    answers = {aten._local_scalar_dense.default: SCALAR, aten.is_nonzero.default: TRUTH}
    masks = KnownMasks()

    class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            scratch = 0
            if any(tensor.is_meta for tensor in tensors):
                if function in answers:
                    known = masks.truth(tensors[0])
                    return answers[function] if known is None else known
                result = self._without_values(function, args, kwargs)
                if function is aten.all.default:
                    masks.all_of(args[0], result)
                scratch = kernel_scratch(function, args, result)
            else:
                result = function(*args, **kwargs)
                if function is aten._to_copy.default and result.is_meta:
                    masks.copied(args[0], result)
            self._show(str(function), result, scratch)
            return result

        @staticmethod
        def _without_values(function: Any, args: Any, kwargs: Any) -> Any:
            if function is aten.nonzero.default:
                return every_place(args[0])
            if function is aten.index.Tensor:
                args = (args[0], [place for index in args[1] for place in places(index)])
            args, kwargs = tree_map(to_meta, (args, kwargs))
            return function(*args, **kwargs)

        @staticmethod
        def _show(name: str, result: Any, scratch: int) -> None:
            made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            inside = torch.empty(scratch, dtype=torch.uint8, device="meta")  # freed at the end of this function
            for tensor in (*made, inside):
                watch.made(tensor, name)
            watch.after_operation(name, tuple(tuple(tensor.shape) for tensor in made))

    return Watching()  # type: ignore[no-untyped-call]
