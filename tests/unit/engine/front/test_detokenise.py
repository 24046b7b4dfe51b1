"""`TextStream` with a tokenizer whose tokens are pieces of bytes, cut anywhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brim.engine.front.detokenise import TextStream
from brim.engine.requests.params import MAX_STOP_LENGTH, MAX_STOPS

SPECIAL = -1


class BytePieces:
    """A byte-level tokenizer: a token is a piece of bytes, and one is special. Broken characters become U+FFFD."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return b"".join(self.pieces[token] for token in tokens if token != SPECIAL).decode("utf-8", errors="replace")


def cut_at_first_stop(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Read a character at a time, and stop as soon as a stop string is complete."""
    for end in range(len(text) + 1):
        ended = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if ended:
            return text[: min(ended)], True
    return text, False


def stream(pieces: Sequence[bytes], stops: Sequence[str], specials: frozenset[int] = frozenset()) -> TextStream:
    """Push all pieces, or as many as it takes to stop; what was handed out must be the text."""
    tokens = [SPECIAL if number in specials else number for number in range(len(pieces))]
    found = TextStream(BytePieces(pieces), stops)
    handed_out = ""
    for token in tokens:
        handed_out += found.push(token)
        assert found.text.startswith(handed_out)
        if found.stopped:
            break
    handed_out += found.close()
    assert handed_out == found.text
    return found


def cut(content: bytes, places: Sequence[int]) -> list[bytes]:
    borders = [0, *sorted({place for place in places if 0 < place < len(content)}), len(content)]
    return [content[start:end] for start, end in pairwise(borders)]


texts = st.text(alphabet="abc né€😀\N{REPLACEMENT CHARACTER}", max_size=24)
periodic = st.text(alphabet="ab", min_size=1, max_size=12)  # much of what they begin with comes again in them
stop_strings = st.lists(st.text(alphabet="abcé€", min_size=1, max_size=4), max_size=3)
borders = st.lists(st.integers(0, 80), max_size=40)


@given(text=texts, stops=stop_strings, places=borders)
@example(text="abc", stops=["abc", "b"], places=[])  # whole, and ...
@example(text="abc", stops=["abc", "b"], places=[1, 2])  # ... in pieces: the one that ends first counts
@example(text="aab", stops=["ab"], places=[1, 2])
@example(text="a€", stops=["€"], places=[2, 3])
@settings(max_examples=400, deadline=None)
def test_the_text_is_what_all_tokens_spell_up_to_the_first_stop(text: str, stops: list[str], places: list[int]) -> None:
    found = stream(cut(text.encode(), places), stops)
    assert (found.text, found.stopped) == cut_at_first_stop(text, stops)


@given(text=st.text(alphabet="ab", max_size=60), stops=st.lists(periodic, min_size=1, max_size=4), places=borders)
@example(text="aabaabaaab", stops=["aabaaab"], places=list(range(10)))
@example(text="abaabab", stops=["abab", "bab"], places=list(range(7)))  # both end together: the longer one counts
@settings(max_examples=400, deadline=None)
def test_stop_strings_that_repeat_themselves(text: str, stops: list[str], places: list[int]) -> None:
    found = stream(cut(text.encode(), places), stops)
    assert (found.text, found.stopped) == cut_at_first_stop(text, stops)


@given(text=st.text(alphabet="ab", max_size=40), stops=st.lists(periodic, min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_just_what_a_stop_string_may_begin_with_is_held_back(text: str, stops: list[str]) -> None:
    found = TextStream(BytePieces([letter.encode() for letter in text]), stops)
    given = ""
    for count in range(1, len(text) + 1):
        given += found.push(count - 1)
        if found.stopped:
            break
        beginnings = (stop[:length] for stop in stops for length in range(len(stop)))
        held = max((len(each) for each in beginnings if text[:count].endswith(each)), default=0)
        assert given == text[: count - held]


@given(content=st.binary(max_size=80), places=borders)
@settings(max_examples=300, deadline=None)
def test_bytes_that_are_no_text_come_out_as_the_tokenizer_shows_them(content: bytes, places: list[int]) -> None:
    assert stream(cut(content, places), ()).text == content.decode("utf-8", errors="replace")


@given(text=texts, places=borders, specials=st.frozensets(st.integers(0, 10)))
@settings(max_examples=100, deadline=None)
def test_special_tokens_are_not_text(text: str, places: list[int], specials: frozenset[int]) -> None:
    pieces = cut(text.encode(), places)
    left = b"".join(piece for number, piece in enumerate(pieces) if number not in specials)
    assert stream(pieces, (), specials).text == left.decode("utf-8", errors="replace")


@pytest.mark.parametrize("pieces", [[b"a"], [b"a", b"c"]], ids=["always-begun", "begun-and-left"])
def test_long_stop_strings_cost_no_more_than_short_ones(pieces: list[bytes]) -> None:
    """As long and as many as may be, in a text that ends with much of each of them, or with little."""
    stops = [f"{'a' * (MAX_STOP_LENGTH - 1 - number)}b" for number in range(MAX_STOPS)]
    found = TextStream(BytePieces(pieces), stops)
    began = time.process_time()
    for number in range(5000):
        found.push(number % len(pieces))
    took = time.process_time() - began
    assert (found.stopped, len(found.text)) == (False, 5000)
    assert took < 2  # 0.05 s; where all beginnings of all stop strings are tried at each token, 8 s


def test_an_error_of_the_tokenizer_leaves_the_text_as_it_was() -> None:
    class Failing(BytePieces):
        def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
            if 1 in tokens:
                raise KeyError(1)
            return super().decode(tokens, skip_special_tokens=skip_special_tokens)

    found = TextStream(Failing([b"one <", b"?", b"/"]), ("</s>",))
    assert found.push(0) == "one "
    with pytest.raises(KeyError):
        found.push(1)
    assert (found.text, found.stopped, found.push(2), found.close()) == ("one <", False, "", "</")


def test_no_half_character_is_handed_out() -> None:
    found = TextStream(BytePieces([b"a\xf0\x9f", b"\x98", b"\x80b"]), ())
    assert [found.push(token) for token in range(3)] == ["", "", "a😀b"]
    assert found.close() == ""


def test_the_beginning_of_a_stop_string_is_held_back_until_it_is_known_to_be_none() -> None:
    found = TextStream(BytePieces([b"one <", b"/", b"b>", b" </", b"s>", b"never"]), ("</s>",))
    assert [found.push(token) for token in range(5)] == ["one ", "", "</b>", " ", ""]
    assert (found.text, found.stopped, found.close()) == ("one </b> ", True, "")


def test_what_was_held_back_is_handed_out_at_the_end() -> None:
    found = TextStream(BytePieces([b"is </", b"\xe2\x82"]), ("</s>",))
    assert [found.push(token) for token in range(2)] == ["is ", ""]
    assert found.close() == "</\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(("stops", "text"), [(("b",), "a"), (("ab", "b"), ""), (("bc", "cd"), "a"), (("x",), "abcd")])
def test_overlapping_stop_strings(stops: tuple[str, ...], text: str) -> None:
    assert stream([b"ab", b"cd"], stops).text == text
    assert stream([b"abcd"], stops).text == text
    assert stream([b"a", b"b", b"c", b"d"], stops).text == text


def test_a_stop_string_is_part_of_the_text_where_it_was_asked_for() -> None:
    found = TextStream(BytePieces([b"one <", b"/", b"s> never"]), ("</s>",), include_stop=True)
    assert [found.push(0), found.push(1), found.push(2), found.close()] == ["one ", "", "</s>", ""]
    assert (found.stop, found.text) == ("</s>", "one </s>")


def test_no_stop_string_ends_or_begins_in_text_that_is_not_searched() -> None:
    found = TextStream(BytePieces([b"one.", b" two", b".", b" three."]), (".",))
    assert [found.push(0, searched=False), found.push(1)] == ["one.", " two"]
    assert not found.stopped
    assert found.push(2) == ""
    assert (found.stop, found.text) == (".", "one. two")
    split = TextStream(BytePieces([b"a<", b"/b", b"</"]), ("</",))
    assert split.push(0, searched=False) + split.push(1) == "a</b"
    assert split.push(2) == ""
    assert split.stopped
