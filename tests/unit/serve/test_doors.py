"""Who is let in: addresses, keys, and how many at once."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from brim.errors import DeviceError, InvalidRequest
from brim.serve.gate import Gate
from brim.serve.problems import Problem, problem_of
from brim.serve.settings import ServeSettings

pytest.importorskip("starlette")
from brim.serve.http.keys import ANYBODY, Keys


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.0.1"])
def test_loopback_needs_no_key(host: str) -> None:
    assert ServeSettings("m", host=host).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_other_machines_need_a_key(host: str) -> None:
    with pytest.raises(InvalidRequest, match="no api-key"):
        ServeSettings("m", host=host)
    assert ServeSettings("m", host=host, api_keys=("secret",))
    assert ServeSettings("m", host=host, insecure=True)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"port": 70000}, "port"),
        ({"max_queue": -1}, "max-queue"),
        ({"drain_seconds": float("nan")}, "drain-seconds"),
        ({"drain_seconds": -1.0}, "drain-seconds"),
        ({"api_keys": ("schlüssel",)}, "api-key"),
        ({"api_keys": (" key",)}, "api-key"),
    ],
)
def test_settings_out_of_range_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        ServeSettings("m", **options)
    with pytest.raises(InvalidRequest, match="api-key is empty"):
        ServeSettings("m", api_keys=("",))


def test_each_key_has_a_salt_of_its_own() -> None:
    keys = Keys(["one", "two"])
    one, two = keys.tenant("one"), keys.tenant("two")
    assert one is not None
    assert two is not None
    assert one.salt != two.salt
    assert "one" not in one.name
    assert [keys.tenant(wrong) for wrong in ("", "On", "one ", "onetwo")] == [None] * 4
    again = Keys(["one"]).tenant("one")
    assert again is not None
    assert again.salt != one.salt, "salts of another server cannot be foreseen"
    assert Keys([]).tenant("anything") == ANYBODY


def test_the_gate_counts_answers_and_forecasts() -> None:
    now = [0.0]
    gate = Gate(batch=2, queue=2, clock=lambda: now[0])
    with ExitStack() as inside:
        inside.enter_context(gate.entered(3))
        with pytest.raises(Problem) as refused, gate.entered(2):
            pass
        assert (refused.value.status, refused.value.retry_after) == (429, 1)
        inside.enter_context(gate.entered(1))
        assert gate.inside == 4
        now[0] = 10.0
    assert (gate.inside, gate.refused) == (0, 1)
    now[0] = 30.0
    assert gate.wait_seconds(1) == 3  # four answers in 10 s; since then nobody asked
    assert gate.wait_seconds(10_000) == 120
    with pytest.raises(Problem) as never, gate.entered(5):
        pass
    assert never.value.status == 400
    with pytest.raises(RuntimeError), gate.entered(1):
        raise RuntimeError
    assert gate.inside == 0


def test_a_forecast_is_of_answers_over_busy_time() -> None:
    now = [0.0]
    gate = Gate(batch=1, queue=0, clock=lambda: now[0])

    def answer(seconds: float) -> None:
        with gate.entered(1):
            now[0] += seconds

    for _ in range(200):
        answer(4.0)
        now[0] += 1000.0  # nobody is inside
    assert gate.wait_seconds(2) == 8
    for _ in range(200):
        with pytest.raises(Problem), gate.entered(1):
            raise Problem(400, "it is too long")
    assert gate.wait_seconds(2) == 8


def test_errors_of_the_engine_keep_their_field() -> None:
    long = problem_of(InvalidRequest("prompt: 9 tokens leave no room in the context of 8; shorten the prompt"))
    assert (long.status, long.param, long.code) == (400, "prompt", "context_length_exceeded")
    field = problem_of(InvalidRequest("top_p is 7; it must be a number in (0, 1]"))
    assert (field.param, field.code) == ("top_p", "invalid_value")
    ended = problem_of(DeviceError("the engine was closed"))
    assert (ended.status, ended.kind) == (503, "server_error")
