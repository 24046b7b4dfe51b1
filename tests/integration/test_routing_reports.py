"""A server's reports for routers, read while its engine serves."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.engine.kv.digests import extend_digests
from brim.engine.requests.params import SamplingParams
from brim.engine.statistics import PoolState
from brim.engine.streaming import StreamingEngine
from brim.guard.routing.summary import Holders, summarise
from brim.records.routing import short_digests
from tests.integration.streaming_clients import engine, run

LONG_ANSWER = SamplingParams(max_tokens=120, temperature=0, ignore_eos=True)


async def state(serving: StreamingEngine) -> PoolState:
    return await asyncio.wrap_future(serving.call(serving.engine.pool_state))


def test_what_runs_is_foreseen_to_end_and_what_it_computed_is_found() -> None:
    async def seen() -> tuple[PoolState, PoolState, tuple[int, ...]]:
        async with StreamingEngine(engine()) as serving:
            tokens = list(range(3, 3 + 4 * serving.engine.settings.block_size))
            async with aclosing(serving.stream(tokens, LONG_ANSWER)) as updates:
                for _ in range(3):
                    await anext(updates)
                during = await state(serving)
            while serving.in_flight or not serving.engine.idle:
                await asyncio.sleep(0.01)
            after = await state(serving)
            digests: list[bytes] = []
            extend_digests(digests, tokens, after.block_size, b"")
            return during, after, short_digests(digests)

    during, after, digests = run(seen())
    assert during.running == 1
    assert during.free_blocks < during.blocks
    assert len(during.ends) == 1
    assert 0 < during.ends[0].steps <= 121
    assert during.ends[0].blocks >= during.blocks - during.free_blocks
    assert (after.running, after.free_blocks, after.ends) == (0, after.blocks, ())
    assert after.unused_blocks < after.free_blocks  # its blocks are cached
    holders = Holders(1)
    holders.put(0, summarise(after.digests))
    assert holders.prefixes(digests).tolist() == [4]


def test_reports_and_streams_do_not_disturb_each_other() -> None:
    async def reports() -> int:
        async with StreamingEngine(engine()) as serving:

            async def one(number: int) -> None:
                async for _ in serving.stream([5 + number] * 40, LONG_ANSWER):
                    pass

            streams = asyncio.gather(*(one(number) for number in range(8)))
            taken = 0
            while not streams.done():
                found = await state(serving)
                assert 0 <= found.unused_blocks <= found.free_blocks <= found.blocks
                assert found.running >= len(found.ends)
                taken += 1
                await asyncio.sleep(0)
            await streams
            return taken

    assert run(reports()) > 10


def test_a_call_after_the_end_is_answered_too() -> None:
    async def late() -> int:
        serving = StreamingEngine(engine())
        serving.start()
        await asyncio.to_thread(serving.close)
        assert not serving.alive
        return await asyncio.wrap_future(serving.call(lambda: 7))

    assert run(late()) == 7


def test_errors_are_raised_where_the_result_is_awaited() -> None:
    async def broken() -> None:
        async with StreamingEngine(engine()) as serving:
            with pytest.raises(ZeroDivisionError):
                await asyncio.wrap_future(serving.call(lambda: 1 // 0))
            assert (await state(serving)).running == 0

    run(broken())
