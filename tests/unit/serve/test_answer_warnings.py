"""What is ignored of a request is said: in its answer, and in a header of any response."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brim.serve.problems import Problem
from brim.serve.requests.answer_warnings import MOST_WARNINGS, AnswerWarnings, collected_warnings, warn
from brim.serve.requests.chat import ChatBody, read_chat
from brim.serve.requests.types import ServedModel

pytest.importorskip("starlette")
from brim.serve.api.answering import warned
from brim.serve.http.warning_header import WarningHeaderApp

LENIENT = ServedModel("m", 300, longest=1000, lenient=True)
BODY = {
    "messages": [{"role": "user", "content": "Hi.", "mood": "calm"}],
    "wings": 2,
    "stream": True,
    "stream_options": {"include_usage": True, "colour": "red"},
}


def test_a_lenient_server_reads_on_and_names_what_it_ignored_in_nested_objects_too() -> None:
    with collected_warnings() as found:
        asked = read_chat(BODY, LENIENT)
    assert asked.wanted.include_usage
    assert [said.partition(":")[0] for said in found.texts] == [
        "messages[0].mood",
        "stream_options.colour",
        "wings",
    ]
    with pytest.raises(Problem, match="wings: there is no such field"):
        read_chat(BODY | {"messages": [{"role": "user", "content": "Hi."}], "stream_options": None}, ServedModel("m"))


def test_a_lenient_server_still_refuses_what_is_known_and_not_supported() -> None:
    with pytest.raises(Problem, match="suffix: it is not supported"):
        read_chat({"messages": [{"role": "user", "content": "Hi."}], "suffix": "."}, LENIENT)


def test_the_schema_says_whether_other_fields_are_taken() -> None:
    assert "additionalProperties" not in ChatBody.openapi(LENIENT)
    assert ChatBody.openapi(ServedModel("m"))["additionalProperties"] is False


def test_warnings_are_said_once_and_are_bounded() -> None:
    found = AnswerWarnings()
    for number in range(MOST_WARNINGS + 5):
        found.add(f"field {number}")
        found.add("field 0")
    assert found.texts == [f"field {number}" for number in range(MOST_WARNINGS)] + ["and 5 more"]


def test_a_header_is_one_line_of_ascii() -> None:
    found = AnswerWarnings()
    found.add("a\r\nset-cookie: é\x00" + "x" * 5000)
    assert found.header.startswith(b"a\\r\\nset-cookie: \\xe9\\x00xx")
    assert len(found.header) == 1024


def test_an_answer_and_the_first_response_of_a_stream_have_the_warnings_beside_what_brim_says_already() -> None:
    with collected_warnings():
        assert warned({"id": "a"}) == {"id": "a"}
        warn("wings", "ignored")
        assert warned({"id": "a", "brim": {"evicted_turns": 1}})["brim"] == {
            "evicted_turns": 1,
            "warnings": ["wings: ignored"],
        }
        assert warned({"type": "response.created", "response": {"id": "a"}})["response"]["brim"] == {
            "warnings": ["wings: ignored"]
        }


@pytest.mark.parametrize("warns", [True, False])
def test_any_response_has_the_header_also_where_a_thread_or_a_task_warned(warns: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if warns:
            await asyncio.to_thread(warn, "wings", "ignored")
            await asyncio.create_task(_warn_in_task())
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})

    async def sent() -> list[Any]:
        messages: list[Any] = []

        async def send(message: Any) -> None:
            messages.append(message)

        await WarningHeaderApp(app)({"type": "http"}, None, send)  # type: ignore[arg-type]
        return messages

    (start,) = asyncio.run(sent())
    added = [(b"x-brim-warning", b"wings: ignored; tail: ignored")] if warns else []
    assert start["headers"] == [(b"a", b"b"), *added]


async def _warn_in_task() -> None:
    warn("tail", "ignored")
