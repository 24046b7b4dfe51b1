"""Large bodies: parsed beside the event loop, to the same object."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

pytest.importorskip("starlette")

from brim.serve.http import parsing
from brim.serve.http.parsing import LARGE_BYTES, MOST, READ_BESIDE_BYTES, checked, parsed
from brim.serve.problems import Problem


@pytest.mark.parametrize("padding", [0, LARGE_BYTES])
def test_a_body_means_the_same_wherever_it_is_parsed(padding: int, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []

    def loads(body: bytes, **options: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return real(body, **options)

    real = json.loads
    monkeypatch.setattr(parsing.json, "loads", loads)
    wanted = {"a": [1, -2, 3.5, 1e3, None, True, {"b": "é"}], "long": "x" * padding}
    assert asyncio.run(parsed(json.dumps(wanted).encode())) == wanted
    assert threads == [padding == 0]


def test_other_threads_run_while_numbers_and_objects_are_parsed() -> None:
    """The parser calls a function of Python's for each: there a thread gives way."""
    called = dict.fromkeys(parsing._TURNS, 0)

    def noted(name: str) -> Any:
        def call(found: Any) -> Any:
            called[name] += 1
            return parsing._TURNS[name](found)

        return call

    json.loads('{"a": [1, 2, 3.5], "b": {}}', **{name: noted(name) for name in called})
    assert called == {"parse_int": 2, "parse_float": 1, "object_hook": 2}
    assert all(hasattr(one, "__code__") for one in parsing._TURNS.values())


@pytest.mark.parametrize("mark", list(MOST))
def test_a_body_of_too_many_parts_is_refused_before_it_is_parsed(mark: bytes) -> None:
    with pytest.raises(Problem, match="the body has more than") as refused:
        asyncio.run(parsed(mark * (max(MOST[mark], LARGE_BYTES) + 1)))
    assert refused.value.status == 400


def test_a_large_body_that_is_no_json_is_refused() -> None:
    with pytest.raises(Problem, match="not JSON"):
        asyncio.run(parsed(b'{"a": "' + b"x" * LARGE_BYTES))


@pytest.mark.parametrize(("size", "in_loop"), [(READ_BESIDE_BYTES - 1, True), (READ_BESIDE_BYTES, False)])
def test_a_large_body_is_checked_beside_the_event_loop(size: int, in_loop: bool) -> None:
    thread = asyncio.run(checked(threading.current_thread, size))
    assert (thread is threading.main_thread()) == in_loop
