"""`check_sizable` passes an honest engine, and catches each way in which one can be dishonest."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from brim.errors import OutOfMemory
from brim.ports import StressShape
from brim.testing import NotConforming
from tests.unit.testing.adapters import Adapter, check_size_of, made


def test_an_honest_engine_passes_and_is_left_as_it_was() -> None:
    adapter = made(Adapter)
    before = adapter.engine.device.reading().allocated_bytes
    check_size_of(adapter)
    assert adapter.engine.device.reading().allocated_bytes == before


class Leaking(Adapter):
    """Every teardown leaves a tensor."""

    left: list[Any] = []  # noqa: RUF012

    def teardown(self) -> None:
        if self.engine.blocks:
            self.left.append(self.engine.device.allocate(512, "forgotten"))
        super().teardown()


class TearingDownOnlyWhatIsBuilt(Adapter):
    """A fit tears down after a build that failed."""

    def teardown(self) -> None:
        assert self.engine.blocks, "not built"
        super().teardown()


class Pretending(Adapter):
    """It takes no more memory from some size on."""

    def build(self, kv_tokens: int) -> None:
        super().build(min(kv_tokens, 100))


class Cheap(Adapter):
    """Its pool is smaller than it says."""

    def build(self, kv_tokens: int) -> None:
        super().build(kv_tokens // 2)


class Discounted(Adapter):
    """A larger pool has a lower price."""

    def price(self, kv_tokens: int) -> int:
        return max(0, 8192 - kv_tokens)


class Shapeless(Adapter):
    """Nothing would be measured."""

    def stress_shapes(self) -> tuple[StressShape, ...]:
        return ()


class Changing(Adapter):
    """Other steps are validated than were measured."""

    asked = 0

    def stress_shapes(self) -> tuple[StressShape, ...]:
        self.asked += 1
        return (StressShape("prefill", self.asked, 1),)


class Hoarding(Adapter):
    """A step leaves what it allocated."""

    def stress(self, shape: StressShape) -> None:
        super().stress(shape)
        self.kept = self.engine.device.allocate(512, "results")


class Translating(Adapter):
    """Another error for an allocation that is refused."""

    def build(self, kv_tokens: int) -> None:
        try:
            super().build(kv_tokens)
        except OutOfMemory as error:
            raise RuntimeError("CUDA error") from error


class TranslatingSteps(Adapter):
    def stress(self, shape: StressShape) -> None:
        try:
            super().stress(shape)
        except OutOfMemory as error:
            raise RuntimeError("CUDA error") from error


class Optimistic(Adapter):
    """A build that does not fit is not noticed."""

    def build(self, kv_tokens: int) -> None:
        with suppress(OutOfMemory):
            super().build(kv_tokens)


class HalfBuilt(Adapter):
    """A build that was refused leaves what it had allocated, also after the teardown."""

    def build(self, kv_tokens: int) -> None:
        buffers = self.engine.device.allocate(1024, "buffers")
        try:
            super().build(kv_tokens)
        except OutOfMemory:
            self.forgotten = buffers
            raise


class Broken(Adapter):
    """It runs no more after a step that was refused."""

    refused = False

    def stress(self, shape: StressShape) -> None:
        if self.refused:
            raise ValueError("no state")
        try:
            super().stress(shape)
        except OutOfMemory:
            self.refused = True
            raise


class Swallowing(Adapter):
    """A small step that is refused is counted as one that ran: only a refusal of each allocation shows it."""

    def stress(self, shape: StressShape) -> None:
        free = self.engine.device.reading().free_bytes
        try:
            super().stress(shape)
        except OutOfMemory:
            if free < 64 * 1024:
                raise


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (Leaking, "teardown: 512 B were left behind (the largest held: weights"),
        (TearingDownOnlyWhatIsBuilt, "not built"),
        (Pretending, "size: from 64 to 512 tokens the price grows by 224.0 KiB, and 18.0 KiB more are allocated"),
        (Cheap, "build: less was allocated than the price of its KV cache"),
        (Discounted, "price: it falls as the KV cache grows"),
        (Shapeless, "stress_shapes: there are none"),
        (Changing, "stress_shapes: they are not the same"),
        (Hoarding, "stress (prefill, 32 tokens): 512 B were left behind"),
        (Translating, "build: RuntimeError was raised where OutOfMemory is expected (CUDA error)"),
        (TranslatingSteps, "prefill, 32 tokens: RuntimeError was raised where OutOfMemory is expected"),
        (Optimistic, "build: it succeeded with 128.0 KiB free"),
        (HalfBuilt, "a build that was refused: 1.0 KiB were left behind"),
        (Broken, "stress: prefill, 32 tokens was refused once, and does not run with enough memory (no state)"),
        (Swallowing, "prefill, 32 tokens: allocation 1 was refused, and nothing was raised"),
    ],
)
def test_a_broken_engine_is_caught(broken: Any, words: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_size_of(made(broken))
    assert words in str(caught.value)
    assert broken is TearingDownOnlyWhatIsBuilt or isinstance(caught.value, NotConforming)
