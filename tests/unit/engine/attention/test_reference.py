"""The backend in plain torch: decodes computed together are those computed one by one, whatever lies beside them."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from brim.engine.attention.protocol import AttentionRule  # noqa: E402
from brim.engine.attention.reference import ReferenceAttention  # noqa: E402
from brim.engine.device.layout import ChunkPlace, StepLayout  # noqa: E402
from brim.engine.kv.tensors import LayerCache  # noqa: E402

BLOCK, KV_HEADS, HEADS, DIM = 4, 2, 6, 8
LENGTHS = [1, 17, 5, 40, 4, 23]
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 7},
    "softcap": {"softcap": 5.0},
    "sinks": {"sinks": torch.linspace(-1, 1, HEADS)},
    "all": {"window": 9, "softcap": 3.0, "sinks": torch.linspace(-1, 1, HEADS)},
}


class Pool:
    """Random keys and values, in blocks that lie anywhere; what no request holds is not a number."""

    def __init__(self, lengths: list[int], *, value_in_key: bool = False) -> None:
        torch.manual_seed(0)
        columns = -(-max(lengths) // BLOCK) + 1
        count = len(lengths) * columns
        keys = torch.full((count * BLOCK, KV_HEADS, DIM), math.nan)
        values = keys[..., :6] if value_in_key else torch.full((count * BLOCK, KV_HEADS, DIM), math.nan)
        self.cache = LayerCache(keys, values, value_in_key)
        self.table = torch.randperm(count).view(len(lengths), columns).int()
        for row, length in enumerate(lengths):
            slots = self.slots(row, length)
            for tensor in self.cache.stored:
                tensor[slots] = torch.randn(length, KV_HEADS, DIM)

    def slots(self, row: int, length: int) -> torch.Tensor:
        places = torch.arange(length)
        return self.table[row, places // BLOCK].long() * BLOCK + places % BLOCK


def rule_of(**changes: Any) -> AttentionRule:
    return AttentionRule(
        **{"scale": 0.3, "window": None, "softcap": None, "sinks": None, "block_size": BLOCK, **changes}
    )


def layout_of(lengths: list[int], chunks: tuple[ChunkPlace, ...] = ()) -> StepLayout:
    nothing = torch.empty(0, dtype=torch.int64)
    slots, sizes = torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.int32)
    return StepLayout(len(lengths), chunks, slots, sizes, nothing, nothing, nothing, (nothing,), 0, None)


def by_hand(query: torch.Tensor, pool: Pool, row: int, length: int, rule: AttentionRule) -> torch.Tensor:
    """One query at the end of a request: [heads, dim], head by head."""
    slots = pool.slots(row, length)[0 if rule.window is None else max(0, length - rule.window) :]
    parts = []
    for head in range(HEADS):
        keys = pool.cache.keys[slots, head // (HEADS // KV_HEADS)].double()
        values = pool.cache.values[slots, head // (HEADS // KV_HEADS)].double()
        scores = keys @ query[head].double() * rule.scale
        if rule.softcap is not None:
            scores = rule.softcap * torch.tanh(scores / rule.softcap)
        if rule.sinks is not None:
            scores = torch.cat([scores, rule.sinks[head : head + 1].double()])
        parts.append(scores.softmax(0)[: len(values)] @ values)
    return torch.stack(parts).float()


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("at_once", [1, 60, 4096])
@pytest.mark.parametrize("value_in_key", [False, True])
def test_decodes_of_any_lengths_attend_to_their_own_tokens(name: str, at_once: int, value_in_key: bool) -> None:
    """`at_once`: one by one, some at a time, or all together. Padding reads nothing that another request left."""
    pool, rule = Pool(LENGTHS, value_in_key=value_in_key), rule_of(**RULES[name])
    query, layout = torch.randn(len(LENGTHS), HEADS, DIM), layout_of(LENGTHS)
    backend = ReferenceAttention(at_once)
    backend.prepare(layout)
    for _ in range(2):  # as two layers do
        found = backend.attend(query, pool.cache, pool.table, layout, rule)
        wanted = torch.stack([by_hand(query[row], pool, row, length, rule) for row, length in enumerate(LENGTHS)])
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", RULES)
def test_decodes_beside_a_chunk(name: str) -> None:
    pool, rule = Pool([9, 3, 12]), rule_of(**RULES[name])
    query = torch.randn(2 + 5, HEADS, DIM)
    layout = layout_of([9, 3], (ChunkPlace(2, 5, 2, 7),))
    backend = ReferenceAttention()
    backend.prepare(layout)
    found = backend.attend(query, pool.cache, pool.table, layout, rule)
    ends = [(0, 9), (1, 3), *((2, 7 + token + 1) for token in range(5))]
    wanted = torch.stack([by_hand(query[number], pool, *end, rule) for number, end in enumerate(ends)])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_no_more_tokens_are_gathered_at_once_than_the_longest_request_has() -> None:
    gathered = []

    class Counted(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = function(*args, **(kwargs or {}))
            if function is torch.ops.aten.index_select.default:
                gathered.append(found.shape[0])
            return found

    lengths = [40, 3, 20, 21, 19, 2]
    pool, layout, backend = Pool(lengths), layout_of(lengths), ReferenceAttention(40)
    backend.prepare(layout)
    with Counted():
        backend.attend(torch.randn(len(lengths), HEADS, DIM), pool.cache, pool.table, layout, rule_of())
    assert gathered == [40, 40, 21, 21, 40, 40, 6, 6]  # keys and values of 40; of 21; of 20 and 19; of 3 and 2


def test_nothing_stays_when_a_step_has_ended() -> None:
    """What layers share goes with the layout: between steps, memory is what was built."""
    import gc
    import weakref

    pool, layout, backend = Pool(LENGTHS), layout_of(LENGTHS), ReferenceAttention()
    backend.prepare(layout)
    backend.attend(torch.randn(len(LENGTHS), HEADS, DIM), pool.cache, pool.table, layout, rule_of())
    shared = [weakref.ref(one.slots) for one in layout.shared.values() if hasattr(one, "slots")]
    assert len(shared) == 1
    del layout
    gc.collect()
    assert [one() for one in shared] == [None]
