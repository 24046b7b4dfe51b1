"""Other ranks: they do what the first one does, in its order, and end when it does."""

from __future__ import annotations

import os
import pickle
import sys
import time
from io import BytesIO
from typing import Any

import pytest

pytest.importorskip("torch")

from brim.engine.front.validation import GenerationRequest
from brim.engine.requests.params import SamplingParams
from brim.errors import DeviceError, InvalidRequest
from brim.serve.ranks import Followers, LeadingEngine, follow, rank_environment


class Noted:
    """An engine that notes what it is asked."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[Any] = []
        self.longest_request = 7
        self._error = error

    def submit(self, *arguments: Any, **options: Any) -> str:
        self.asked.append(("submit", arguments, options))
        if self._error is not None:
            raise self._error
        return "request-0"

    def submit_request(self, given: GenerationRequest) -> str:
        self.asked.append(("submit_request", (given,), {}))
        return "request-1"

    def cancel(self, name: str) -> bool:
        self.asked.append(("cancel", (name,), {}))
        return True

    def step(self) -> list[Any]:
        self.asked.append(("step", (), {}))
        if self._error is not None:
            raise self._error
        return []


class Recorded(Followers):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def tell(self, name: str, *arguments: Any, **options: Any) -> None:
        self.written += pickle.dumps((name, arguments, options))


def test_a_follower_does_what_the_first_rank_does() -> None:
    first, told = Noted(), Recorded()
    leading: Any = LeadingEngine(first, told)  # type: ignore[arg-type]
    assert leading.submit([1, 2], None, salt=b"s", priority=3) == "request-0"
    given = GenerationRequest([1, 2], SamplingParams(max_tokens=3), salt=b"s", priority=3)
    assert leading.submit_request(given) == "request-1"
    assert leading.step() == []
    assert leading.cancel("request-0")
    assert leading.longest_request == 7
    other: Any = Noted()
    follow(other, BytesIO(told.written))
    assert other.asked == first.asked
    assert len(first.asked) == 4


def test_what_one_refuses_all_refuse_and_a_failed_step_ends_a_follower() -> None:
    refusing: Any = Noted(InvalidRequest("prompt: it is empty"))
    orders = pickle.dumps(("submit", ((),), {}))
    follow(refusing, BytesIO(orders))
    with pytest.raises(InvalidRequest):
        follow(refusing, BytesIO(orders + pickle.dumps(("step", (), {}))))


def test_followers_end_with_the_server_and_are_missed_before() -> None:
    lost: list[str] = []
    environments = [os.environ | rank_environment(rank, 3, 1) for rank in (1, 2)]
    calm, dying = Followers(), Followers()
    calm.start([sys.executable, "-c", "import sys; sys.stdin.buffer.read()"], environments, lost.append)
    calm.tell("step")
    calm.close()
    assert lost == []
    dying.start([sys.executable, "-c", "import os; os._exit(int(os.environ['RANK']))"], environments[1:], lost.append)
    until = time.monotonic() + 60
    while not lost and time.monotonic() < until:
        time.sleep(0.01)
    assert lost == ["rank 1 has ended (exit code 2)"]
    with pytest.raises(DeviceError):
        dying.tell("submit", "x" * (1 << 20))  # more than a pipe holds
    dying.close()
