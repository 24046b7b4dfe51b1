"""What is sent: lengths, times, traces, and texts of so many tokens."""

from __future__ import annotations

import asyncio
import json
import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.bench.lengths import Between, LongTailed, parse_lengths
from brim.bench.loops import Mix, poisson
from brim.bench.records import Ask
from brim.bench.trace import RequestTrace, parse_trace
from brim.bench.words import known_by_word, known_on_average
from brim.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("512", Between(512, 512)),
        ("1k", Between(1024, 1024)),
        ("128-1k", Between(128, 1024)),
        ("lognormal:512:0.7", LongTailed(512, 0.7)),
        ("lognormal:64", LongTailed(64, 1.0)),
    ],
)
def test_lengths_are_read(text: str, wanted: object) -> None:
    assert parse_lengths(text, "prompt-tokens") == wanted


@pytest.mark.parametrize(
    "text", ["", "0", "x", "9-3", "-5", "lognormal:", "lognormal:8:-1", "lognormal:8:x", "normal:3"]
)
def test_wrong_lengths_are_refused_by_their_option(text: str) -> None:
    with pytest.raises(InvalidRequest, match="prompt-tokens"):
        parse_lengths(text, "prompt-tokens")


@given(st.integers(1, 5000), st.integers(0, 5000), st.integers(0, 9))
def test_draws_stay_inside(least: int, more: int, seed: int) -> None:
    numbers = random.Random(seed)
    assert least <= Between(least, least + more).draw(numbers) <= least + more
    tailed = LongTailed(least, 1.5)
    assert 1 <= tailed.draw(numbers) <= tailed.longest


def test_the_same_seed_asks_the_same_at_the_same_times() -> None:
    mix = Mix(Between(1, 100), Between(1, 100), seed=3)
    first, again = (list(islice(poisson(mix.asks(), 10.0, 4), 2000)) for _ in range(2))
    assert first == again
    assert first != list(islice(poisson(mix.asks(), 10.0, 5), 2000))
    assert first[0].at == 0.0
    assert first[-1].at == pytest.approx(200, rel=0.1)


def test_a_trace_begins_at_zero_and_may_be_replayed_faster() -> None:
    lines = [
        "",
        '{"at": 12, "prompt_tokens": 30, "completion_tokens": 5, "images": 2}',
        '{"at": 10, "prompt_tokens": 7, "completion_tokens": 0, "leaves_after": 3}',
    ]
    found = parse_trace(lines, "t")
    assert found == RequestTrace((Ask(7, 22, 0.0, leaves_after=3), Ask(30, 5, 2.0, images=2)), 0)
    assert [ask.at for ask in found.faster(4).asks] == [0.0, 0.5]


def test_the_log_of_a_server_is_a_trace() -> None:
    def logged(second: float, ms: float, status: int, prompt: int, answer: int) -> str:
        entry = {"time": f"2026-01-01T00:00:0{second:.3f}+00:00", "ms": ms, "status": status}
        return json.dumps(entry | {"prompt_tokens": prompt, "completion_tokens": answer})

    log = [
        "brim: ready: brim-tiny",
        logged(2.5, 500.0, 200, 9, 4),
        logged(2.0, 1000.0, 499, 9, 4),
        logged(3.0, 1.0, 429, 0, 0),
    ]
    assert parse_trace(log, "log") == RequestTrace((Ask(9, 24, 0.0, leaves_after=4), Ask(9, 4, 1.0)), 2)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "no request in it"),
        ("{", "line 1: it is not JSON"),
        ('{"at": "soon", "prompt_tokens": 1, "completion_tokens": 1}', "line 1: at is 'soon'"),
        ('{"at": 1, "prompt_tokens": -1, "completion_tokens": 1}', "line 1: prompt_tokens is -1"),
        ('{"at": 1, "prompt_tokens": 1}', "line 1: completion_tokens is None"),
        ('{"time": "noon", "ms": 1, "prompt_tokens": 1, "completion_tokens": 1}', "line 1: time is 'noon'"),
    ],
)
def test_a_bad_trace_is_refused_by_its_line(line: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match="replay t.*" + said):
        parse_trace([line], "t")


OVERHEAD = 6


async def by_letters(text: str) -> int:
    """A tokenizer whose tokens are words of at most four letters, and parts of longer ones."""
    return OVERHEAD + sum(-(-len(word) // 4) for word in text.split())


@given(st.integers(1, 300), st.integers(0, 99))
def test_a_text_has_the_tokens_that_were_asked_for(tokens: int, seed: int) -> None:
    words = asyncio.run(known_by_word(by_letters))
    text = words.text(tokens, random.Random(seed))
    assert words.exact
    assert asyncio.run(by_letters(text)) == max(tokens, OVERHEAD + 1), "at least a word"


@given(st.integers(100, 300), st.integers(0, 9))
def test_without_a_tokenizer_it_has_about_as_many(tokens: int, seed: int) -> None:
    words = asyncio.run(known_on_average(by_letters))
    counted = asyncio.run(by_letters(words.text(tokens, random.Random(seed))))
    assert not words.exact
    assert counted == pytest.approx(tokens, rel=0.2)
