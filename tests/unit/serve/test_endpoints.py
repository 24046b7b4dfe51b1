"""Who is let in: addresses, keys, and how many at once."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from brim.engine.front.answers import Completion
from brim.engine.requests.request import FinishReason
from brim.errors import DeviceError, InvalidRequest, MediaUnavailable, PromptTooLong
from brim.guard.shares import ClientShare
from brim.serve.gate import RequestGate
from brim.serve.key_file import read_key_file
from brim.serve.problems import Problem, problem_of
from brim.serve.responses.answers import finish_reason
from brim.serve.settings import ServeSettings

pytest.importorskip("starlette")
from brim.serve.http.keys import ANYBODY, Keys, Tenant, share_of


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
        ({"max_per_key": 0}, "max-per-key"),
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
    gate = RequestGate(batch=2, queue=2, clock=lambda: now[0])
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
    gate = RequestGate(batch=1, queue=0, clock=lambda: now[0])

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
    long = problem_of(PromptTooLong("prompt: 9 tokens leave no room in the context of 8; shorten the prompt"))
    assert (long.status, long.param, long.code) == (400, "prompt", "context_length_exceeded")
    field = problem_of(InvalidRequest("top_p is 7; it must be a number in (0, 1]"))
    assert (field.param, field.code) == ("top_p", "invalid_value")
    media = problem_of(MediaUnavailable("images are temporarily unavailable"))
    assert (media.status, media.code, media.headers) == (503, "media_unavailable", {"Retry-After": "10"})
    ended = problem_of(DeviceError("the engine was closed"))
    assert (ended.status, ended.kind) == (503, "server_error")


@pytest.mark.parametrize(("passing", "status", "headers"), [(True, 503, {"Retry-After": "10"}), (False, 500, {})])
def test_an_answer_that_failed_for_now_may_be_asked_for_again(
    passing: bool, status: int, headers: dict[str, str]
) -> None:
    failed = Completion("a", 0, 4, 0, (), "", FinishReason.ERROR, error="images: no encoder runs", passing=passing)
    with pytest.raises(Problem, match="no encoder runs") as refused:
        finish_reason(failed)
    assert (refused.value.status, refused.value.headers) == (status, headers)


async def _answer(gate: RequestGate, share: ClientShare, answers: int, begins: bool = False) -> str:
    """A request that is inside until it is cancelled, and what became of it."""
    try:
        with gate.entered(answers, share, asyncio.current_task()) as place:
            place.begun = begins
            await asyncio.Event().wait()
    except Problem as problem:
        return f"{problem.status} {problem.code}, {problem.retry_after} s"
    except asyncio.CancelledError:
        return "left"
    return "answered"


def test_a_full_gate_makes_room_for_a_client_that_has_less_than_its_part() -> None:
    """The newest that waits gives way, and is told so; what has begun stays, and who left is not told anything."""

    async def run() -> list[str]:
        gate = RequestGate(batch=8, queue=16)
        many, few = ClientShare("many"), ClientShare("few")
        inside = [asyncio.create_task(_answer(gate, many, 8, begins=number != 1)) for number in range(3)]
        await asyncio.sleep(0)
        assert gate.inside == 24
        inside.append(asyncio.create_task(_answer(gate, few, 1)))
        await asyncio.sleep(0)
        assert (gate.inside, dict(gate.by_share)) == (17, {"many": 16, "few": 1})
        assert (gate.refused, gate.displaced) == (0, 1)
        inside.append(asyncio.create_task(_answer(gate, many, 8)))  # all that wait are within their parts
        await asyncio.sleep(0.01)
        for task in inside:
            task.cancel()
        ends = await asyncio.gather(*inside)
        assert (gate.inside, gate.refused, gate.displaced) == (0, 1, 1)
        return ends

    assert asyncio.run(run()) == ["left", "429 displaced, 1 s", "left", "left", "429 queue_full, 1 s"]


def test_a_client_that_leaves_while_it_gives_way_is_not_answered() -> None:
    async def run() -> str:
        gate = RequestGate(batch=1, queue=1)
        waiting = asyncio.create_task(_answer(gate, ClientShare("many"), 2))
        await asyncio.sleep(0)
        with gate.entered(1, ClientShare("few")):
            waiting.cancel()
            return await waiting

    assert asyncio.run(run()) == "left"


def test_a_client_has_no_more_inside_than_it_may() -> None:
    gate = RequestGate(batch=8, queue=8, most_per_share=3)
    one, other = ClientShare("one"), ClientShare("other")
    with gate.entered(2, one):
        with pytest.raises(Problem, match=r"2 answers of this client .* may have 3 \(--max-per-key\)") as refused:
            gate.entered(2, one).__enter__()
        assert (refused.value.status, refused.value.code, refused.value.retry_after) == (429, "client_limit", 1)
        with gate.entered(3, other), gate.entered(1, one):
            assert gate.report(one) == {
                "share": "one",
                "weight": 1.0,
                "inside": 3,
                "fair_places": 8,
                "most_places": 3,
                "clients": 2,
            }
    assert (gate.refused, gate.refused_by_share) == (0, 1)
    with pytest.raises(Problem, match="n: 4 answers"):
        gate.entered(4, one).__enter__()


def test_a_client_at_its_bound_waits_for_its_own_answers() -> None:
    now = [0.0]
    gate = RequestGate(batch=8, queue=8, clock=lambda: now[0], most_per_share=1)
    for name in ("many",) * 9 + ("one",):
        with gate.entered(1, ClientShare(name)):
            now[0] += 1.0
    with gate.entered(1, ClientShare("one")), pytest.raises(Problem) as refused:
        gate.entered(1, ClientShare("one")).__enter__()
    assert refused.value.retry_after == 10, "one of its answers ended in ten seconds"
    assert gate.wait_seconds(1) == 1


def test_the_share_is_the_keys_or_the_address_or_a_network_of_addresses() -> None:
    assert share_of(Tenant("digest", b"salt", 4.0), "10.0.0.1") == ClientShare("digest", 4.0)
    assert share_of(ANYBODY, "10.0.0.1") == ClientShare("10.0.0.1")
    assert share_of(ANYBODY, "::ffff:10.0.0.1") == ClientShare("10.0.0.1")
    assert share_of(ANYBODY, "2001:db8::1") == share_of(ANYBODY, "2001:db8::2") == ClientShare("2001:db8::/64")
    assert share_of(ANYBODY, "2001:db8:0:1::1") != share_of(ANYBODY, "2001:db8::1")
    assert share_of(ANYBODY, None) == ClientShare("")
    assert share_of(ANYBODY, "a socket") == ClientShare("a socket")


def test_keys_of_a_file_have_weights(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# jobs\nsk-jobs\n\n  sk-app   weight=4\n")
    weights = read_key_file(file)
    assert weights == {"sk-jobs": 1.0, "sk-app": 4.0}
    tenant = Keys(list(weights), weights).tenant("sk-app")
    assert tenant is not None
    assert tenant.weight == 4.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no key"),
        ("# only words", "no key"),
        ("sk-secret\nsk-secret", "line 2: this key is there already"),
        ("sk-secret wait=4", "line 1: write KEY, or KEY weight=N"),
        ("sk-secret weight=4 more", "line 1: write KEY"),
        ("sk-secret weight=nan", "line 1: weight must be a number"),
        ("sk-secret weight=0", "line 1: weight must be a number"),
        ("sk-secret weight=many", "line 1: weight must be a number"),
    ],
)
def test_a_wrong_key_file_is_refused_without_telling_the_key(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=said) as refused:
        read_key_file(file)
    assert "sk-secret" not in str(refused.value)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_key_file(tmp_path / "nothing")
