"""`check_rescuable` passes an honest engine, and catches each way in which one can be dishonest."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from brim.errors import OutOfMemory
from brim.ports import LaunchBounds, RequestKey, RequestProgress, Work
from brim.testing import NotConforming
from tests.unit.testing.adapters import Adapter, check_rescue_of, made


@pytest.mark.parametrize("audited", [True, False])
@pytest.mark.parametrize("settings", [{}, {"max_batch": 2, "max_batch_tokens": 8}, {"block_tokens": 1}])
def test_an_honest_engine_passes(audited: bool, settings: dict[str, int]) -> None:
    check_rescue_of(made(Adapter, **settings), audited=audited)


class Forgetful(Adapter):
    """It does not say what failed."""

    def undo(self) -> tuple[Work, ...]:
        super().undo()
        return ()


class Counting(Adapter):
    """A step counts before it has run: what failed is never computed."""

    def launch(self, bounds: LaunchBounds) -> None:
        try:
            super().launch(bounds)
        except OutOfMemory:
            for request, tokens in self.batch:
                request.computed += tokens
            raise


class Twice(Adapter):
    def undo(self) -> tuple[Work, ...]:
        return 2 * super().undo()


class Losing(Adapter):
    """The requests of a failed step are lost."""

    def undo(self) -> tuple[Work, ...]:
        batch = list(self.batch)
        failed = super().undo()
        for request, _ in batch:
            self.engine.finish(request, "lost")
        return failed


class Hoarding(Adapter):
    """A failed step leaves what it allocated."""

    def undo(self) -> tuple[Work, ...]:
        self.kept = self.engine.device.allocate(512, "results")
        return super().undo()


class Leaking(Adapter):
    """The blocks of a failed step are not given back."""

    def undo(self) -> tuple[Work, ...]:
        for request, _ in self.batch:
            request.blocks = []
        return super().undo()


class Unbounded(Adapter):
    """Other requests are in the step of one."""

    def launch(self, bounds: LaunchBounds) -> None:
        super().launch(LaunchBounds(32))


class Generous(Adapter):
    """More tokens than allowed."""

    def launch(self, bounds: LaunchBounds) -> None:
        super().launch(LaunchBounds(32, bounds.only))


class Uncounted(Adapter):
    def launch(self, bounds: LaunchBounds) -> None:
        super().launch(bounds)
        self.steps = 0


class Translating(Adapter):
    def launch(self, bounds: LaunchBounds) -> None:
        try:
            super().launch(bounds)
        except OutOfMemory as error:
            raise RuntimeError("CUDA error") from error


class Swallowing(Adapter):
    def launch(self, bounds: LaunchBounds) -> None:
        try:
            super().launch(bounds)
        except OutOfMemory:
            super().undo()


class Immortal(Adapter):
    """A request that is ended goes on."""

    def end(self, request: RequestKey, error: str) -> None:
        pass


class KeepingBlocks(Adapter):
    """A request that is ended keeps its blocks."""

    def end(self, request: RequestKey, error: str) -> None:
        self.engine.find(request).blocks = []
        super().end(request, error)


class Overwriting(Adapter):
    """A failed step has overwritten what a request had computed before: its answer changes."""

    def undo(self) -> tuple[Work, ...]:
        for request, _ in self.batch:
            if request.computed:
                self.engine._kv[self.engine._place(request, 0)] = 1
        return super().undo()


class Stalled(Adapter):
    """After a failure nothing runs any more."""

    failed = False

    def launch(self, bounds: LaunchBounds) -> None:
        if not (self.failed and self.steps > 3):
            super().launch(bounds)

    def undo(self) -> tuple[Work, ...]:
        self.failed = True
        return super().undo()


class Hiding(Adapter):
    """Requests that wait are not shown."""

    def progress(self, requests: Collection[RequestKey]) -> tuple[RequestProgress, ...]:
        return tuple(one for one in super().progress(requests) if one.computed)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (Forgetful, "undo: it does not say what the failed step was to compute"),
        (Counting, "undo: 'a' stands at 15 tokens, and stood at 0 before the step that failed"),
        (Twice, "undo: it names a request twice"),
        (Losing, "undo: 'a' is gone after a step that failed"),
        (Hoarding, "undo: 512 B were left behind"),
        (Leaking, "undo: the engine's own audit fails afterwards: blocks are lost"),
        (Unbounded, "launch: a step of 'a' only has computed tokens of 'b'"),
        (Generous, "launch: a step of 1 token has computed 15"),
        (Uncounted, "launch: one step was launched, and steps went from 0 to 0"),
        (Translating, "launch: RuntimeError was raised where OutOfMemory is expected (CUDA error)"),
        (Swallowing, "launch: the first allocation of a step was refused, and nothing was raised"),
        (Immortal, "end: 'a' was ended, and still waits or runs"),
        (KeepingBlocks, "end: the engine's own audit fails afterwards: blocks are lost"),
        (Overwriting, "was refused once, and answers are not as before"),
        (Stalled, "launch: requests are left after 10000 steps"),
        (Hiding, "progress: 'a' was submitted, and neither waits nor runs"),
    ],
)
def test_a_broken_engine_is_caught(broken: Any, words: str) -> None:
    with pytest.raises(NotConforming) as caught:
        check_rescue_of(made(broken))
    assert words in str(caught.value)
