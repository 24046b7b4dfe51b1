"""The weight of a batch with drafts, by the laws of a fit."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf

from brim.engine.drafts.weighing import FittedLimit, batch_load
from brim.engine.kv.geometry import LayerGroup
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.plan import StepLimits
from brim.guard.speculation import GateCause, SpeculationSettings
from brim.guard.weight import BatchLoad
from brim.records.scaling import Coefficients, Law, Scaling
from tests.unit.engine.schedule.world import WORST, Guesses, World, request

ROWS = Scaling(prefill=Law(Coefficients(bytes_per_unit=10)), next_token=Law(Coefficients(bytes_per_unit=100)))


def text(name: str, prompt: int, computed: int, answer: int = 0) -> Sequence:
    asked = request(name, prompt, 20)
    return Sequence(asked, [*asked.prompt, *[0] * answer], computed=computed)


def test_a_load_is_the_sum_of_the_running_requests() -> None:
    running = [text("a", 10, computed=12, answer=3), text("b", 30, computed=8)]
    assert batch_load(running, 100, drafted_tokens=7, step_tokens=64, block_size=8) == BatchLoad(
        requests=2,
        prompt_tokens=22,
        held_tokens=16 + 32,
        final_tokens=100,
        longest=50,
        step_tokens=64,
        block_size=8,
        drafted_tokens=7,
    )
    assert batch_load(running, 40, 7, 64, 8).held_tokens == 40
    assert batch_load([], 0, 7, 64, 8).longest == 0


def test_every_drafted_token_weighs_a_row_of_logits_and_its_blocks() -> None:
    fitted = FittedLimit(ROWS, limit_bytes=10_000, price=lambda tokens: 3 * tokens, step_tokens=64)
    load = batch_load([text("a", 10, computed=12, answer=3)], 40, 7, 64, 8)
    assert fitted.share(load) == (3 * (40 + 8) + 100 * 8) / 10_000
    assert fitted.share(replace(load, drafted_tokens=0)) == (3 * 40 + 100) / 10_000


def test_a_limit_that_leaves_nothing_is_passed_by_every_batch() -> None:
    fitted = FittedLimit(ROWS, limit_bytes=0, price=lambda tokens: 3 * tokens, step_tokens=64)
    assert fitted.share(batch_load([], 0, 0, 64, 8)) == inf


def test_the_gate_closes_for_bytes_where_blocks_would_do() -> None:
    world = World(
        (LayerGroup(None, (0,), 1),),
        400,
        StepLimits(4, 32, max_drafted=4),
        admission=WORST,
        proposer=Guesses(random.Random(1), 1.0),
        speculation=SpeculationSettings(4, 0.75, depth=4),
    )
    assert world.speculator is not None
    world.speculator.weigh_by(FittedLimit(ROWS, limit_bytes=1000, price=lambda tokens: tokens, step_tokens=32))
    world.submit(request("a", 5, 40))  # five rows of 100 bytes, and 48 tokens
    for _ in range(3):
        world.step()
    assert world.speculator.gate.open
    assert 0.5 < world.speculator.gate.weight < 0.6
    world.submit(request("b", 5, 40))
    for _ in range(3):
        world.step()
    assert world.speculator.gate.cause is GateCause.WEIGHT
    world.run([], most_steps=200)
    world.check_end()
