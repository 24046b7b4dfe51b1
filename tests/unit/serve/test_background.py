"""The events of background answers are bounded in memory, for all of them together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brim.serve.background import BackgroundAnswer, BackgroundAnswers
from brim.serve.http.reply import event_line
from brim.serve.problems import Problem
from brim.serve.responses.answers import ResponseHeader
from brim.serve.responses.responses_api import ResponseOutline


def answer(among: BackgroundAnswers, name: str, kept: list[Any], replays: bool = True) -> BackgroundAnswer:
    outline = ResponseOutline(ResponseHeader(name, 0, "m"), {}, stored=True)
    return BackgroundAnswer(("key", name), outline, (), kept.append, among, replays=replays)


async def lines(one: BackgroundAnswer, after: int = -1) -> list[bytes]:
    found = b"".join([some async for some in one.followed(after)])
    return [line + b"\n\n" for line in found.split(b"\n\n") if line]


EVENT = {"type": "a", "text": "b" * 80}  # a hundred bytes and some


def test_the_oldest_events_give_way_and_then_its_own() -> None:
    async def run() -> None:
        among, kept = BackgroundAnswers(most_bytes=1000), []
        old, new = answer(among, "old", kept), answer(among, "new", kept)
        for one in (old, new):
            one.enter()
        await old.events([EVENT] * 4)
        old.close()
        assert len(await lines(old)) == 4
        await new.events([EVENT] * 5)
        assert among.replayed("key", "old") is None, "it has ended, and gave way"
        assert among.replayed("key", "new") is new
        assert among.event_bytes == new.event_bytes <= 1000
        await new.events([EVENT] * 5)
        assert among.replayed("key", "new") is None
        assert among.event_bytes == 0
        assert b"events_dropped" in (await lines(new))[0]
        assert among.running("key", "new") is new
        new.close()
        assert among.running("key", "new") is None

    asyncio.run(run())


def test_a_follower_gets_what_comes_later() -> None:
    async def run() -> list[bytes]:
        among: BackgroundAnswers = BackgroundAnswers()
        one = answer(among, "a", [])
        one.enter()
        await one.events([{"type": "a"}])
        following = asyncio.create_task(lines(one, after=0))
        await asyncio.sleep(0)
        await one.events([{"type": "b"}])
        await asyncio.sleep(0)
        await one.events([{"type": "c"}])
        one.close()
        return await following

    assert asyncio.run(run()) == [b'event: b\ndata: {"type":"b"}\n\n', b'event: c\ndata: {"type":"c"}\n\n']


def test_a_long_replay_keeps_nobody_waiting_and_large_events_are_the_same() -> None:
    async def run() -> None:
        one = answer(BackgroundAnswers(), "a", [])
        one.enter()
        events = [{"type": "a", "number": number} for number in range(1000)]
        await one.events(events[:500])
        await one.events(events[500:], large=True)
        one.close()
        following, turns = asyncio.create_task(lines(one, after=3)), 0
        while not following.done():
            await asyncio.sleep(0)
            turns += 1
        assert following.result() == [event_line(event) for event in events[4:]]
        assert turns >= 10

    asyncio.run(run())


def test_one_that_fails_says_so_where_it_is_looked_for() -> None:
    async def run() -> None:
        among, kept = BackgroundAnswers(), []
        refused = answer(among, "refused", kept)
        await refused.fail(Problem(429, "full", code="queue_full"))
        with pytest.raises(Problem, match="full"):
            await refused.entered()
        assert (among.running("key", "refused"), kept) == (None, [])
        failed = answer(among, "failed", kept)
        failed.enter()
        await failed.fail(Problem(400, "too long", code="context_length_exceeded"))
        failed.close()
        assert [one["status"] for one in kept] == ["failed"]
        assert kept[0]["error"] == {"code": "context_length_exceeded", "message": "too long"}
        assert b"response.failed" in (await lines(failed))[-1]

    asyncio.run(run())
