"""Answers that follow a grammar: whatever a random model would say, however steps overlap and whatever runs beside."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("llguidance")

from brim import Grammar, SamplingParams
from brim.engine.engine import Engine
from brim.engine.front.answers import Completion
from brim.engine.requests.request import FinishReason
from brim.engine.settings import EngineSettings
from brim.engine.stress.text import DECODE
from brim.errors import InvalidRequest
from brim.guard.admission import Cause, Decision
from brim.probes.cpu import CpuProbe
from tests.integration.test_chat import engine_of, tokenizer
from tests.integration.test_engine import nothing_is_held

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green", "blue"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "yes": {"type": "boolean"},
    },
    "required": ["colour", "count", "yes"],
    "additionalProperties": False,
}
PROMPT = tokenizer()("What colour is it, and how many?", add_special_tokens=False)["input_ids"]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with engine_of(copy=31) as made:
        yield made
        assert nothing_is_held(made)


def follows_schema(text: str | None) -> bool:
    found = json.loads(text or "")
    return (
        set(found) == {"colour", "count", "yes"}
        and found["colour"] in ("red", "green", "blue")
        and isinstance(found["count"], int)
        and 0 <= found["count"] <= 99
        and isinstance(found["yes"], bool)
    )


def asked(grammar: Grammar | None, seed: int = 0, **others: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 200, "temperature": 1.0, "seed": seed, "grammar": grammar, **others})


@pytest.mark.parametrize(
    "options",
    [
        {"speculate": "lookup"},
        pytest.param({}, marks=pytest.mark.soak),
        pytest.param({"overlap": False}, marks=pytest.mark.soak),
        pytest.param({"admission": "worst"}, marks=pytest.mark.soak),
    ],
)
def test_every_answer_follows_its_grammar_and_others_are_as_without(engine: Engine, options: dict[str, Any]) -> None:
    schema, words = Grammar.json_schema(SCHEMA), Grammar.regex(r"(yes|no)( (red|blue)){3}")
    free = SamplingParams(max_tokens=30, temperature=1.0, seed=5, ignore_eos=True)
    (wanted,) = engine.generate([PROMPT], free)
    with engine_of(copy=32, **options) as other:
        params = [asked(schema, 1), free, asked(words, 2), asked(schema, 3), asked(words, 4, temperature=0), free]
        found = other.generate([PROMPT] * len(params), params)
        assert nothing_is_held(other)
    assert [one.finish_reason for one in found if one.tokens != wanted.tokens] == [FinishReason.STOP] * 4
    assert found[1].tokens == found[5].tokens == wanted.tokens
    assert all(follows_schema(found[number].text) for number in (0, 3))
    assert all(re.fullmatch(r"(yes|no)( (red|blue)){3}", found[number].text or "") for number in (2, 4))


def test_an_answer_is_the_same_in_any_batch_and_after_preemption(engine: Engine) -> None:
    schema = Grammar.json_schema(SCHEMA)
    together = engine.generate([PROMPT] * 4, [asked(schema, seed) for seed in range(4)])
    alone = engine.generate([PROMPT], asked(schema, 2))
    assert alone[0].tokens == together[2].tokens
    with engine_of(copy=32, kv_tokens=128, max_length=96) as tight:
        tight.loop.scheduler.prefill.policy = lambda view: Decision(True, Cause.FITS)
        found = _pressed(tight, schema)
    assert [one.tokens for one in found] == [one.tokens for one in together]
    assert sum(one.preemptions for one in found) > 0


def _pressed(engine: Engine, schema: Grammar) -> list[Completion]:
    """Four of them in a pool that cannot hold a batch to its end; long answers beside them."""
    long = SamplingParams(max_tokens=60, temperature=1.0, seed=1, ignore_eos=True)
    params = [part for seed in range(4) for part in (long, asked(schema, seed, max_tokens=60))]
    return engine.generate([PROMPT] * len(params), params)[1::2]


def test_several_answers_follow_it_each_in_its_own_way(engine: Engine) -> None:
    found = engine.generate([PROMPT], asked(Grammar.json_schema(SCHEMA), n=4, logprobs=3))
    assert all(follows_schema(one.text) for one in found)
    assert len({one.text for one in found}) > 1
    assert all(score.logprob <= 0 for one in found for score in one.logprobs)


def test_a_grammar_that_is_cut_off_ends_by_its_length(engine: Engine) -> None:
    (found,) = engine.generate([PROMPT], asked(Grammar.regex("[ab]{40}"), max_tokens=5))
    assert found.finish_reason is FinishReason.LENGTH
    assert re.fullmatch("[ab]+", found.text or "")


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (Grammar.json_schema({"type": "nonsense"}), "nonsense"),
        (Grammar.json_schema({"$ref": "#/nowhere"}), "nowhere"),
        (Grammar.regex("(a"), "grammar"),
        (Grammar.lark("start: missing"), "missing"),
    ],
)
def test_a_grammar_that_makes_no_sense_is_refused_with_its_reason(engine: Engine, grammar: Grammar, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        engine.generate([PROMPT], asked(grammar))
    assert nothing_is_held(engine)


@pytest.mark.parametrize("others", [{"ignore_eos": True}, {"min_tokens": 3}, {"grammar": "a*"}])
def test_what_contradicts_a_grammar_is_refused(others: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(others))):
        asked(**{"grammar": Grammar.regex("a"), **others})


def test_bytes_are_tokens_too() -> None:
    with Engine("brim-random", kv_tokens=512, settings=EngineSettings(max_batch=2), device="cpu") as engine:
        found = engine.generate(["x"] * 2, [asked(Grammar.regex("(ab|ac){4}é"), seed) for seed in (1, 2)])
    assert all(re.fullmatch("(ab|ac){4}é", one.text or "") for one in found)


def test_worst_steps_hold_the_masks_of_a_full_batch() -> None:
    """A batch in which every request has a grammar takes no more than the stress has shown."""
    probe = CpuProbe(1 << 30)
    with engine_of(copy=33) as plain:
        model = plain.loaded
    settings = EngineSettings(max_batch=4, max_batch_tokens=128, max_length=512, block_size=8)
    with Engine(model, kv_tokens=1024, settings=settings, device="cpu", tokenizer=tokenizer(), probe=probe) as engine:
        shapes = {shape.name: shape for shape in engine.stress_shapes()}
        before = probe.reading().allocated_bytes
        probe.reset_peak()
        engine.stress(shapes[DECODE])
        stressed = probe.reading().peak_allocated_bytes - before
        grammar = Grammar.json_schema(SCHEMA)
        engine.generate([PROMPT] * 4, [asked(grammar, seed, max_tokens=2) for seed in range(4)])
        probe.reset_peak()
        rng = random.Random(3)
        engine.generate([[rng.randrange(9, 99)] for _ in range(4)], [asked(grammar, seed) for seed in range(4)])
        assert 0 < probe.reading().peak_allocated_bytes - before <= stressed
