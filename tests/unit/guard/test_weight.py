"""The weight of a batch: its peak over its life."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from brim.guard.weight import BatchLoad, weight_bytes
from brim.records.scaling import Coefficients, Law, Scaling

LAWS = Scaling(Law(Coefficients(1000.0, 100.0)), Law(Coefficients(500.0, 2000.0, bytes_per_carried_token=1.0)))
LOAD = BatchLoad(
    requests=4, prompt_tokens=96, held_tokens=128, final_tokens=256, longest=64, step_tokens=64, block_size=16
)


def price(tokens: int) -> int:
    return 10 * tokens


def test_growth_decides_where_answers_are_long() -> None:
    assert weight_bytes(LOAD, LAWS, price) == 10 * 256 + (500 + 4 * 2000 + 4)


def test_prefill_decides_where_answers_are_short() -> None:
    many_tokens = replace(LOAD, final_tokens=128, step_tokens=2048)
    assert weight_bytes(many_tokens, LAWS, price) == 10 * 128 + (1000 + 100 * (96 + 4))


def test_a_step_takes_no_more_tokens_than_it_may() -> None:
    assert weight_bytes(replace(LOAD, final_tokens=128, prompt_tokens=10_000), LAWS, price) == 10 * 128 + max(
        1000 + 100 * 64, 500 + 4 * 2000 + 64
    )


def test_drafted_tokens_hold_blocks_and_draw_rows() -> None:
    drafting = replace(LOAD, prompt_tokens=0, drafted_tokens=3)
    assert weight_bytes(drafting, LAWS, price) == 10 * (256 + 4 * 16) + (500 + 16 * 2000 + 16)


def test_without_laws_a_batch_weighs_its_blocks() -> None:
    assert weight_bytes(LOAD, None, price) == 10 * 256


@given(st.data())
def test_more_of_anything_never_weighs_less(data: st.DataObject) -> None:
    names = ("requests", "prompt_tokens", "held_tokens", "final_tokens", "longest", "step_tokens", "drafted_tokens")
    load = replace(LOAD, **{name: data.draw(st.integers(0, 5000)) for name in names})
    name = data.draw(st.sampled_from(names))
    more = replace(load, **{name: getattr(load, name) + data.draw(st.integers(1, 100))})
    assert weight_bytes(load, LAWS, price) <= weight_bytes(more, LAWS, price)
