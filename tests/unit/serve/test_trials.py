"""Grammars of strangers: whatever they take to compile, the server and everybody else go on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("llguidance")
pytest.importorskip("tokenizers")

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from brim.engine.front.grammars import Grammars
from brim.engine.requests.grammar import Grammar, GrammarKind
from brim.engine.weights.builtin import ByteTokenizer
from brim.errors import InvalidRequest
from brim.serve.prepare.trials import Trials
from brim.serve.problems import Problem

EOS = 2


@pytest.fixture
def grammars() -> Grammars:
    return Grammars(ByteTokenizer(), 259, [EOS])


@pytest.fixture
def trials(grammars: Grammars) -> Iterator[Trials]:
    found = Trials(grammars)
    yield found
    found.close()


def schema(**fields: Any) -> Grammar:
    return Grammar.json_schema(fields)


ENDLESS = schema(type="integer", multipleOf=999_983)  # half a minute in the library


def test_what_passes_is_compiled_and_what_makes_no_sense_is_refused(grammars: Grammars, trials: Trials) -> None:
    good = schema(type="object")
    asyncio.run(trials.check(good))
    assert grammars.knows(good)
    asyncio.run(trials.check(good))
    with pytest.raises(InvalidRequest, match="nonsense"):
        asyncio.run(trials.check(schema(type="nonsense")))


def test_a_grammar_that_takes_too_much_is_refused(grammars: Grammars, trials: Trials) -> None:
    with pytest.raises(InvalidRequest, match=r"more than 1 s or 64\.0 MiB to compile; make it smaller"):
        asyncio.run(trials.check(ENDLESS))
    assert not grammars.knows(ENDLESS)
    asyncio.run(trials.check(schema(type="boolean")))


def test_a_schema_that_is_too_deep_for_the_library_is_refused(trials: Trials) -> None:
    text = '{"items":' * 500 + "{}" + "}" * 500
    with pytest.raises(InvalidRequest, match="its schema cannot be read"):
        asyncio.run(trials.check(Grammar(GrammarKind.JSON_SCHEMA, text)))


def test_slow_ones_keep_nobody_waiting(trials: Trials) -> None:
    """Ordinary grammars pass while slow ones are still being tried."""

    async def crowd() -> list[str]:
        ended: list[str] = []

        async def one(name: str, grammar: Grammar) -> None:
            try:
                await trials.check(grammar)
                ended.append(name)
            except InvalidRequest:
                ended.append(f"{name} refused")

        slow = [one("slow", schema(type="integer", multipleOf=999_983 + 2 * n)) for n in range(2)]
        await asyncio.gather(*slow, *(one("quick", schema(type="boolean", title=str(n))) for n in range(3)))
        return ended

    assert asyncio.run(crowd()) == ["quick"] * 3 + ["slow refused"] * 2


def test_of_many_bad_ones_some_are_sent_away_and_a_good_one_has_its_turn(grammars: Grammars) -> None:
    """Each takes long alone. Some are tried to the end, the others are told to come again."""
    bad = [schema(type="integer", multipleOf=999_983 + 10 * number) for number in range(30)]
    trials = Trials(grammars, wait_seconds=120.0)  # the machine may be busy

    async def crowd() -> list[Any]:
        return await asyncio.gather(*map(trials.check, [*bad, schema(type="null")]), return_exceptions=True)

    try:
        *refused, good = asyncio.run(crowd())
    finally:
        trials.close()
    assert good is None
    assert {type(one) for one in refused} == {InvalidRequest, Problem}
    later = [one for one in refused if isinstance(one, Problem)]
    assert {(one.status, one.code) for one in later} == {(503, "grammars_busy")}
    assert all(int(one.headers["Retry-After"]) >= 1 for one in later)


def test_nobody_waits_for_others_without_end(grammars: Grammars) -> None:
    trials = Trials(grammars, wait_seconds=0.0)
    try:
        with pytest.raises(Problem, match=r"not tried within 0 s") as refused:
            asyncio.run(trials.check(schema(type="boolean")))
        assert refused.value.status == 503
    finally:
        trials.close()


def test_what_was_refused_is_not_tried_again(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in (ENDLESS, schema(type="nonsense")):
        with pytest.raises(InvalidRequest) as first:
            asyncio.run(trials.check(bad))
        with monkeypatch.context() as patch:
            patch.setattr(trials, "_lanes", ())
            with pytest.raises(InvalidRequest) as second:
                asyncio.run(trials.check(bad))
        assert str(first.value) == str(second.value)


def test_a_process_that_was_killed_is_replaced(trials: Trials) -> None:
    asyncio.run(trials.check(schema(type="boolean")))
    process = trials._lanes[0]._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    asyncio.run(trials.check(schema(type="null")))


def test_after_its_end_no_process_is_left(trials: Trials) -> None:
    asyncio.run(trials.check(schema(type="boolean")))
    process = trials._lanes[0]._process
    assert process is not None
    assert process.poll() is None
    trials.close()
    assert process.poll() is not None


def test_a_tokenizer_that_cannot_be_read_refuses_grammars_and_nothing_else() -> None:
    words = Tokenizer(WordLevel({"<unk>": 0, "yes": 1, "no": 2}, unk_token="<unk>"))  # it has no decoder
    grammars = Grammars(PreTrainedTokenizerFast(tokenizer_object=words), 3, (0,))
    grammars.prepare()  # a server starts nevertheless
    trials = Trials(grammars)
    trials.prepare()
    try:
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="llguidance cannot read its tokens"):
                asyncio.run(trials.check(schema(type="boolean")))
    finally:
        trials.close()
