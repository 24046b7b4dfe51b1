"""A memory budget on the CPU that counts allocations and refuses those beyond it, like a device.

In: a budget. Out: readings, and `torch.OutOfMemoryError` for what does not fit, so that every code path for CUDA memory
runs without a GPU. While `with probe:` is active, every storage that an operation allocates is counted once, with the
CUDA allocator's rounding, until it is freed; views and in-place results cost nothing. Frees count at any time.

What it does not see: temporaries inside a kernel, fragments (`hold_unused` says how large they are),
`UntypedStorage.resize_`, and tensors made while it is not active (`hold` counts those). An operation runs before its
result is refused, so the budget must be below what the machine has. Dispatch modes belong to a thread: each thread
whose operations count enters the probe. Under it, `torch.compile` runs eagerly.

Looking at every operation takes several times as long as the operations of a small model. A server that was fitted does
without (`counts_serving`): `brim.probes.proven` says what is checked instead.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from brim.errors import OutOfMemory
from brim.probes.holders import largest_tensors
from brim.probes.translate import translated
from brim.records.memory import MemoryReading
from brim.units import round_up

if TYPE_CHECKING:
    from types import TracebackType

    import torch

ROUNDING = 512  # as the CUDA caching allocator rounds
_COLLECTIVES = "_c10d_functional"  # torch's namespace of those that return before they are done
_MACHINE_IS_FULL = re.compile(r"DefaultCPUAllocator: .*?tried to allocate (\d+) bytes", re.DOTALL)


class CpuProbe:
    """Counts live tensors against a budget. `fail_at` refuses the n-th allocation, whatever its size.

    `counts_serving` of False: an engine that was fitted under this budget serves within what the fit has proven, and
    counts operations only while it recovers from an out-of-memory.
    """

    def __init__(self, budget_bytes: int, *, fail_at: int | None = None, counts_serving: bool = True) -> None:
        self.budget_bytes = budget_bytes
        self.fail_at = fail_at
        self.counts_serving = counts_serving
        self.allocations = 0  # storages that were asked for, refused ones too
        self._live: dict[int, _CountedStorage] = {}
        self._live_bytes = 0
        self._unused_bytes = 0  # reserved, and nothing lives there
        self._peak_bytes = 0
        self._peak_reserved_bytes = 0
        self._lock = threading.RLock()  # storages die in any thread, and inside our own counting
        self._entered = _Entered()
        self._canary: torch.Tensor | None = None
        self._lent_bytes = 0  # of the canary

    def __enter__(self) -> CpuProbe:
        if self._entered.mode is None:
            self._entered.mode = _counting(self)
        if self._entered.depth == 0:
            self._entered.mode.__enter__()
        self._entered.depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.depth -= 1
        if self._entered.depth == 0:
            self._entered.mode.__exit__(kind, error, trace)

    def reading(self) -> MemoryReading:
        with self._lock:
            return MemoryReading(
                total_bytes=self.budget_bytes,
                free_bytes=max(0, self.budget_bytes - self._reserved_bytes),
                allocated_bytes=self._live_bytes,
                reserved_bytes=self._reserved_bytes,
                peak_allocated_bytes=self._peak_bytes,
                peak_reserved_bytes=self._peak_reserved_bytes,
                other_bytes=0,
            )

    @property
    def _reserved_bytes(self) -> int:
        return self._live_bytes + self._unused_bytes

    def reset_peak(self) -> None:
        with self._lock:
            self._peak_bytes, self._peak_reserved_bytes = self._live_bytes, self._reserved_bytes

    def hold_unused(self, unused_bytes: int) -> None:
        """Reserve this much unused, like an allocator's fragments, instead of an earlier such reservation."""
        with self._lock:
            self._unused_bytes = unused_bytes
            self._note_peak(0)

    def _note_peak(self, more_bytes: int) -> None:
        self._peak_bytes = max(self._peak_bytes, self._live_bytes + more_bytes)
        self._peak_reserved_bytes = max(self._peak_reserved_bytes, self._reserved_bytes + more_bytes)

    def hold_canary(self, canary_bytes: int) -> None:
        import torch

        self._canary, self._lent_bytes = None, 0
        if canary_bytes:
            with translated(), self:
                self._canary = torch.empty(canary_bytes, dtype=torch.uint8)

    def lend_canary(self) -> int:
        if self._canary is not None:
            self._lent_bytes, self._canary = self._canary.numel(), None
        return self._lent_bytes

    def take_canary_back(self) -> None:
        if self._lent_bytes:
            lent = self._lent_bytes
            try:
                self.hold_canary(lent)
            except OutOfMemory:
                self._lent_bytes = lent
                raise

    def largest_held(self, count: int) -> tuple[str, ...]:
        def counted(tensor: torch.Tensor) -> bool:
            return _in_memory(tensor) and tensor.untyped_storage()._cdata in self._live

        return largest_tensors(count, counted)

    def hold(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count tensors that were allocated elsewhere (weights), all of them or none."""
        with self._lock:
            new = self._uncounted(tensors)
            asked = sum(_rounded(storage) for storage in new)
            if self._reserved_bytes + asked > self.budget_bytes:
                raise self.refusal(asked)
            for storage in new:
                self._count(storage)

    def note(self, tensors: Iterable[torch.Tensor]) -> int:
        """Count tensors that are there already, beyond the budget too; by how much it is passed."""
        with self._lock:
            for storage in self._uncounted(tensors):
                self._count(storage)
            return max(0, self._reserved_bytes - self.budget_bytes)

    def _uncounted(self, tensors: Iterable[torch.Tensor]) -> list[torch.UntypedStorage]:
        storages = (tensor.untyped_storage() for tensor in tensors if _in_memory(tensor))
        return list({storage._cdata: storage for storage in storages if storage._cdata not in self._live}.values())

    def made(self, results: Any, arguments: Any) -> None:
        """Count what an operation allocated, or refuse it and leave the count as it was."""
        with self._lock:
            new = self._new_storages(results, arguments)
            asked = 0
            for storage in new:
                size = _rounded(storage)
                asked += size
                self.allocations += size > 0
                if (size and self.allocations == self.fail_at) or self._reserved_bytes + asked > self.budget_bytes:
                    self._recount_grown(new)
                    raise self.refusal(size)
            self._note_peak(asked)  # a resized one: old beside new
            for storage in new:
                self._count(storage)

    def refusal(self, asked: int) -> torch.OutOfMemoryError:
        """The error, worded like CUDA's, with every figure to the byte."""
        import torch

        free = max(0, self.budget_bytes - self._reserved_bytes)
        return torch.OutOfMemoryError(
            f"CPU budget out of memory. Tried to allocate {asked} bytes. The budget has a total capacity of "
            f"{self.budget_bytes} bytes of which {free} bytes is free. Of the allocated memory {self._live_bytes} "
            f"bytes is allocated by PyTorch, and {self._unused_bytes} bytes is reserved by PyTorch but unallocated."
        )

    def _new_storages(self, results: Any, arguments: Any) -> list[torch.UntypedStorage]:
        """Storages of results that are not counted, or not with the size they have now."""
        new: dict[int, torch.UntypedStorage] = {}
        for tensor in _tensors(results):
            if not _in_memory(tensor):
                continue
            storage = tensor.untyped_storage()
            counted = self._live.get(storage._cdata)
            if counted is None or counted.bytes != _rounded(storage):
                new[storage._cdata] = storage
        if new:  # a view of what was made outside is not new
            for tensor in _tensors(arguments):
                if _in_memory(tensor) and tensor.untyped_storage()._cdata not in self._live:
                    new.pop(tensor.untyped_storage()._cdata, None)
        return list(new.values())

    def _recount_grown(self, storages: list[torch.UntypedStorage]) -> None:
        """What grew in place has grown, refused or not: it cannot be dropped like a new tensor."""
        for storage in storages:
            if storage._cdata in self._live:
                self._count(storage)

    def _count(self, storage: torch.UntypedStorage) -> None:
        before = self._live.get(storage._cdata)
        counted = _CountedStorage(storage, self._died) if before is None else before
        self._live_bytes += _rounded(storage) - (0 if before is None else before.bytes)
        counted.key, counted.bytes = storage._cdata, _rounded(storage)
        self._live[counted.key] = counted
        self._note_peak(0)

    def _died(self, counted: Any) -> None:
        with self._lock:
            del self._live[counted.key]
            self._live_bytes -= counted.bytes


class _CountedStorage(weakref.ref[Any]):
    """A counted storage: gone when the storage is."""

    __slots__ = ("bytes", "key")
    bytes: int
    key: int


class _Entered(threading.local):
    """How often a thread has entered a probe, and its mode."""

    depth = 0
    mode: Any = None


def _rounded(storage: torch.UntypedStorage) -> int:
    return round_up(storage.nbytes(), ROUNDING)


def _in_memory(tensor: torch.Tensor) -> bool:
    import torch

    return tensor.is_cpu and tensor.layout is torch.strided


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors among an operation's arguments or results."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _counting(probe: CpuProbe) -> Any:
    """A mode that shows every operation to a probe while it is active."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    wraps_fresh_data = {torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default}  # torch.tensor and its like
    composite: dict[Any, bool] = {}

    def is_composite(function: Any) -> bool:
        if function not in composite:
            key = torch._C.DispatchKey.CompositeImplicitAutograd
            composite[function] = bool(torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), key))
        return composite[function]

    class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if torch.is_inference_mode_enabled() and is_composite(function):
                with self:  # inference mode shows compound operations whole, and hides what they make on the way
                    return function.decompose(*args, **kwargs)
            try:
                result = function(*args, **kwargs)
            except RuntimeError as error:
                found = _MACHINE_IS_FULL.search(str(error))
                if found is None:
                    raise
                raise probe.refusal(int(found[1])) from None
            try:
                probe.made(result, () if function in wraps_fresh_data else (args, kwargs))
            except torch.OutOfMemoryError:
                if function.namespace == _COLLECTIVES:  # torch holds it until it is done
                    torch.ops._c10d_functional.wait_tensor(result)
                del result
                raise
            return result

    return Counting()  # type: ignore[no-untyped-call]
