"""Whether an engine can be sized: what a fit relies on, checked on a probe of its device.

In: a loaded engine that is not built, its probe, the price of its KV cache, and two sizes. Out: nothing, or
`NotConforming` for the first thing that is wrong. On a `RefusingProbe` every allocation of builds and steps is refused
in turn (or as many as `refusals`); on any probe, memory is taken away by a large canary.

Checked is what is left behind by tensors that the probe counts. What it does not know: whether the stress shapes are
really the worst steps of serving.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

from brim.errors import OutOfMemory
from brim.fit.target import KvPrice
from brim.ports import MemoryProbe, SizableEngine
from brim.records.memory import StressShape
from brim.testing.conformance import NotConforming, RefusingProbe, only_out_of_memory, spread
from brim.units import format_bytes


def check_sizable(
    engine: SizableEngine,
    probe: MemoryProbe,
    *,
    price: KvPrice,
    small_tokens: int,
    large_tokens: int,
    tolerance_bytes: int = 0,
    refusals: int = 64,
) -> None:
    """Build, stress and tear down, with enough memory and with too little.

    `small_tokens` is a size that holds every stress shape. `tolerance_bytes` are what libraries may keep
    (`CUDA_WORKSPACE_BYTES` on a CUDA device).
    """
    checks = _SizableChecks(engine, probe, price, small_tokens, large_tokens, tolerance_bytes, refusals)
    probe.hold_canary(0)
    try:
        checks.teardown_leaves_nothing()
        checks.larger_is_larger()
        checks.shapes_are_steady()
        checks.steps_leave_nothing()
        checks.refused_build_leaves_nothing()
        checks.refused_steps_leave_nothing()
        if isinstance(probe, RefusingProbe):
            checks.every_allocation_may_be_refused(probe)
    finally:
        probe.hold_canary(0)
        engine.teardown()


@dataclass(frozen=True, slots=True)
class _SizableChecks:
    engine: SizableEngine
    probe: MemoryProbe
    price: KvPrice
    small_tokens: int
    large_tokens: int
    tolerance_bytes: int
    refusals: int

    def teardown_leaves_nothing(self) -> None:
        """A teardown frees all that a build took; one of an engine that is not built does no harm."""
        self.engine.teardown()
        before = self._allocated()
        for _ in range(2):
            self.engine.build(self.small_tokens)
            if self._allocated() - before < self.price(self.small_tokens):
                raise NotConforming("build", "less was allocated than the price of its KV cache")
            self.engine.teardown()
            self._check_left(before, "teardown")

    def larger_is_larger(self) -> None:
        """A larger size never has a smaller pool, and grows by its price."""
        taken = []
        for tokens in (self.small_tokens, self.large_tokens):
            before = self._allocated()
            self.engine.build(tokens)
            taken.append(self._allocated() - before)
            self.engine.teardown()
        wanted = self.price(self.large_tokens) - self.price(self.small_tokens)
        if wanted < 0:
            raise NotConforming("price", "it falls as the KV cache grows")
        grown = taken[1] - taken[0]
        if grown < wanted - self.tolerance_bytes:
            raise NotConforming(
                "size",
                f"from {self.small_tokens:,} to {self.large_tokens:,} tokens the price grows by "
                f"{format_bytes(wanted)}, and {format_bytes(max(0, grown))} more are allocated: "
                "the pool holds fewer tokens than it says",
            )

    def shapes_are_steady(self) -> None:
        """There are worst steps, and they are the same each time they are asked for."""
        shapes = self.engine.stress_shapes()
        if not shapes:
            raise NotConforming("stress_shapes", "there are none: nothing would be measured")
        if shapes != self.engine.stress_shapes():
            raise NotConforming("stress_shapes", "they are not the same when they are asked for again")

    def steps_leave_nothing(self) -> None:
        """Every worst step runs to its end on a small pool."""
        self.engine.build(self.small_tokens)
        built = self._allocated()
        for shape in self.engine.stress_shapes():
            self.engine.stress(shape)
            self._check_left(built, f"stress ({shape.title})")
        self.engine.teardown()

    def refused_build_leaves_nothing(self) -> None:
        """A build that does not fit raises `OutOfMemory`, and a teardown frees what it had taken."""
        before = self._allocated()
        kept = max(1, self.price(self.large_tokens) // 2)
        self.probe.hold_canary(self.probe.reading().free_bytes - kept)
        try:
            with only_out_of_memory("build"):
                self.engine.build(self.large_tokens)
        except OutOfMemory:
            pass
        else:
            raise NotConforming("build", f"it succeeded with {format_bytes(kept)} free, half the price of its KV cache")
        finally:
            self.engine.teardown()
            self.probe.hold_canary(0)
        self._check_left(before, "a build that was refused")

    def refused_steps_leave_nothing(self) -> None:
        """A step that does not fit raises `OutOfMemory` and leaves nothing; it runs when there is memory again."""
        self.engine.build(self.small_tokens)
        built = self._allocated()
        for shape in self.engine.stress_shapes():
            self.probe.hold_canary(self.probe.reading().free_bytes)
            self._refused(lambda shape=shape: self.engine.stress(shape), shape.title)  # type: ignore[misc]
            self.probe.hold_canary(0)
            self._check_left(built, f"stress ({shape.title}) that was refused")
            self._runs_again(shape)
        self.engine.teardown()

    def every_allocation_may_be_refused(self, probe: RefusingProbe) -> None:
        """Whichever allocation of a build or of a step is refused, once."""
        before = self._allocated()
        for number in spread(self._counted(probe, lambda: self.engine.build(self.small_tokens)), self.refusals):
            self.engine.teardown()
            self._refuse(probe, number, lambda: self.engine.build(self.small_tokens), "build")
            self.engine.teardown()
            self._check_left(before, f"a build whose allocation {number} was refused")
        self.engine.teardown()
        self.engine.build(self.small_tokens)
        built = self._allocated()
        for shape in self.engine.stress_shapes():
            self._refuse_in(probe, shape, built)
        self.engine.teardown()

    def _refuse_in(self, probe: RefusingProbe, shape: StressShape, built: int) -> None:
        for number in spread(self._counted(probe, lambda: self.engine.stress(shape)), self.refusals):
            self._refuse(probe, number, lambda: self.engine.stress(shape), shape.title)
            self._check_left(built, f"stress ({shape.title}) whose allocation {number} was refused")
        self._runs_again(shape)

    def _runs_again(self, shape: StressShape) -> None:
        try:
            self.engine.stress(shape)
        except Exception as error:
            raise NotConforming(
                "stress", f"{shape.title} was refused once, and does not run with enough memory ({error})"
            ) from error

    def _refuse(self, probe: RefusingProbe, number: int, action: Callable[[], None], what: str) -> None:
        probe.allocations, probe.fail_at = 0, number
        try:
            if not self._refused(action, what) and probe.allocations >= number:
                raise NotConforming(what, f"allocation {number} was refused, and nothing was raised")
        finally:
            probe.fail_at = None

    @staticmethod
    def _refused(action: Callable[[], None], what: str) -> bool:
        try:
            with only_out_of_memory(what):
                action()
        except OutOfMemory:
            return True
        return False

    @staticmethod
    def _counted(probe: RefusingProbe, action: Callable[[], None]) -> int:
        """The allocations of what is done."""
        probe.allocations = 0
        action()
        return probe.allocations

    def _allocated(self) -> int:
        return self.probe.reading().allocated_bytes

    def _check_left(self, before: int, what: str) -> None:
        if self._allocated() - before > self.tolerance_bytes:
            gc.collect()  # garbage that is not collected yet is no leak
        left = self._allocated() - before
        if left > self.tolerance_bytes:
            held = "; ".join(self.probe.largest_held(3))
            raise NotConforming(what, f"{format_bytes(left)} were left behind (the largest held: {held})")
        if left < -self.tolerance_bytes:
            raise NotConforming(what, f"{format_bytes(-left)} more were freed than it had taken")
