"""Texts of custom tools: read out of JSON as it comes, however it is cut."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.serve.parse.custom import CustomCalls
from brim.serve.parse.pieces import Argued, Called, Piece, Said, Thought, ToolCall, whole


def read(pieces: list[Piece], whole_of: str = "") -> list[Piece]:
    custom = CustomCalls(["run"], whole_of)
    return [made for piece in pieces for made in custom.read([piece])] + custom.close()


@given(st.text(), st.booleans(), st.lists(st.integers(0, 200)))
def test_a_text_is_read_however_it_is_written_and_cut(text: str, ascii_only: bool, cuts: list[int]) -> None:
    written = json.dumps({"input": text}, ensure_ascii=ascii_only)
    places = sorted({0, len(written), *(cut for cut in cuts if cut < len(written))})
    parts = [written[begin:end] for begin, end in pairwise(places)]
    found = read([Called(0, "run"), *(Argued(0, part) for part in parts)])
    assert whole(found).calls == (ToolCall("run", text, custom=True),)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ('{"input": "a\\x b"}', "a\\x b"),
        ('{"input": "\\ud83d alone"}', "\ud83d alone"),
        ('{"input": "cut \\u12', "cut \\u12"),
        ('{"input": {"a": 1}}', '{"a": 1}'),
        ('{"code": "a"}', '{"code": "a"}'),
        ("no JSON", "no JSON"),
        ("", ""),
    ],
)
def test_what_is_no_such_json_is_given_as_it_is(written: str, text: str) -> None:
    assert whole(read([Called(0, "run"), Argued(0, written)])).calls == (ToolCall("run", text, custom=True),)


def test_functions_beside_them_keep_their_json() -> None:
    pieces: list[Piece] = [Said("a"), Called(0, "add"), Argued(0, '{"input": "b"}'), Called(1, "run")]
    found = read([*pieces, Argued(1, '{"input": "c"}')])
    assert found[:3] == pieces[:3]
    assert whole(found).calls == (ToolCall("add", '{"input": "b"}'), ToolCall("run", "c", custom=True))


def test_all_that_is_said_is_the_input_of_one_tool() -> None:
    found = read([Thought("Hm."), Said("a"), Said("b")], whole_of="run")
    assert found == [Thought("Hm."), Called(0, "run", True), Argued(0, "a", True), Argued(0, "b", True)]
