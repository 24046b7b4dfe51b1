"""Events of blocks: a reader that applies them knows what can be found in the pool, at every moment."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")

from brim.engine.engine import Engine
from brim.engine.kv.events import BlockEvents, BlocksCleared, BlocksRemoved, BlocksStored
from brim.engine.requests.params import SamplingParams
from brim.engine.settings import EngineSettings


def test_stored_blocks_have_their_tokens_and_parent() -> None:
    events = BlockEvents(block_size=2)
    digests = [b"a", b"b", b"c"]
    for digest in digests[1:]:
        events.published(digest)
    events.described(digests, [1, 2, 3, 4, 5, 6, 7])
    assert events.taken() == [BlocksStored((b"b", b"c"), b"a", (3, 4, 5, 6))]
    assert events.taken() == []


def test_removals_in_a_row_are_one_event() -> None:
    events = BlockEvents(block_size=2)
    events.removed(b"a")
    events.removed(b"b")
    assert events.taken() == [BlocksRemoved((b"a", b"b"))]


def test_what_nobody_reads_is_bounded() -> None:
    events = BlockEvents(block_size=2, kept=10)
    for number in range(35):
        events.removed(bytes([number]))
    first, *rest = events.taken()
    assert first == BlocksCleared()
    assert sum(len(one.digests) for one in rest) <= 10


def test_a_reader_knows_what_the_pool_has() -> None:
    """Answers of a small pool, so that blocks are evicted; each stored block's parent is known already."""
    settings = EngineSettings(max_batch=4, max_batch_tokens=32)
    draw, known = random.Random(3), set()
    with Engine("brim-random", kv_tokens=512, device="cpu", settings=settings) as engine:
        seen_removed = False
        for _ in range(12):
            prompts = [[draw.randrange(3, 200) for _ in range(draw.randrange(20, 90))] for _ in range(3)]
            for event in engine.block_events():
                if isinstance(event, BlocksCleared):
                    known.clear()
                elif isinstance(event, BlocksRemoved):
                    seen_removed = True
                    known -= set(event.digests)
                else:
                    assert event.parent is None or event.parent in known
                    assert len(event.tokens) == len(event.digests) * settings.block_size
                    known |= set(event.digests)
            pool = engine.loop.scheduler.ledger.pools[0]
            assert known == set(pool.contents())
            engine.generate(prompts, SamplingParams(max_tokens=12, temperature=0, ignore_eos=True))
    assert seen_removed
