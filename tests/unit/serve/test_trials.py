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

from brim.engine.front.grammars import Grammars
from brim.engine.requests.grammar import Grammar, GrammarKind
from brim.engine.weights.builtin import ByteTokenizer
from brim.errors import InvalidRequest
from brim.serve.prepare.trials import Trials

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
