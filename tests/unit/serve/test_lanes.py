"""Lanes of processes: bounded, replaced when they die, and nobody waits for a job of another kind."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from brim.errors import DeviceError, InvalidRequest
from brim.serve.prepare.lanes import Lane
from brim.serve.prepare.processes import processes
from brim.serve.problems import Problem


def nothing() -> None:
    """What these processes load."""


def process_id() -> int:
    return os.getpid()


def die_once(mark: Path) -> int:
    """The first process that comes here does not come back."""
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def spin() -> None:
    while True:
        pass


def in_lane(
    use: Callable[[Lane], Awaitable[Any]],
    *,
    threads: bool = False,
    most: int = 1,
    queue: int = 8,
    seconds: float = 20.0,
) -> Any:
    async def used() -> Any:
        new = partial(ThreadPoolExecutor, 1) if threads else processes
        lane = Lane("images", new, nothing, most=most, queue=queue, seconds=seconds)
        try:
            return await use(lane)
        finally:
            lane.close()

    return asyncio.run(used())


def test_a_job_whose_process_is_killed_is_done_by_another(tmp_path: Path) -> None:
    async def use(lane: Lane) -> list[int]:
        before = await lane.run(process_id)
        return [before, await lane.run(die_once, tmp_path / "mark"), await lane.run(process_id)]

    before, retried, after = in_lane(use)
    assert before != retried == after != os.getpid()


def test_a_process_that_died_while_it_was_idle_costs_no_try(tmp_path: Path) -> None:
    async def use(lane: Lane) -> int:
        os.kill(await lane.run(process_id), signal.SIGKILL)
        await asyncio.sleep(0.2)
        return await lane.run(die_once, tmp_path / "mark")

    assert in_lane(use) != os.getpid()


def test_a_job_that_kills_its_process_twice_is_refused_and_others_go_on() -> None:
    async def use(lane: Lane) -> tuple[Problem, int]:
        with pytest.raises(Problem, match="has died twice on this request") as refused:
            await lane.run(die)
        return refused.value, await lane.run(process_id)

    refused, after = in_lane(use)
    assert (refused.status, refused.retry_after) == (503, 1)
    assert after != os.getpid()


def test_a_job_that_takes_too_much_time_is_ended() -> None:
    async def use(lane: Lane) -> int:
        with pytest.raises(InvalidRequest, match=r"images of this request take more than the 0\.3 s of CPU time"):
            await lane.run(spin)
        return await lane.run(process_id)

    assert in_lane(use, seconds=0.3) != os.getpid()


def test_who_finds_the_queue_full_is_told_when_to_come_again() -> None:
    go_on = threading.Event()

    async def use(lane: Lane) -> Problem:
        await lane.ready()
        inside = [asyncio.create_task(lane.run(go_on.wait)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Problem, match="2 requests wait for their images") as refused:
            await lane.run(nothing)
        go_on.set()
        assert await asyncio.gather(*inside) == [True] * 3
        await lane.run(nothing)
        return refused.value

    refused = in_lane(use, threads=True, queue=2)
    assert (refused.status, refused.code, refused.headers) == (503, "preparation_busy", {"Retry-After": "1"})


def test_processes_are_added_while_jobs_wait_up_to_a_number() -> None:
    both = threading.Barrier(2)

    async def use(lane: Lane) -> int:
        await asyncio.gather(*(lane.run(both.wait, 30) for _ in range(6)))  # two of them meet, again and again
        return len(lane._started)

    assert in_lane(use, threads=True, most=2) == 2


def test_a_client_that_leaves_gives_its_turn_to_the_next() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def long() -> None:
        begun.set()
        go_on.wait(30)

    async def use(lane: Lane) -> None:
        await lane.ready()
        running = asyncio.create_task(lane.run(long))
        await asyncio.to_thread(begun.wait, 30)
        waiting = [asyncio.create_task(lane.run(nothing)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        running.cancel()  # its job goes on, and nobody is given its process before it ends
        await asyncio.sleep(0.05)
        assert not waiting[1].done()
        go_on.set()
        await asyncio.gather(*waiting[1:])

    in_lane(use, threads=True)


def test_a_job_does_not_wait_for_a_process_that_is_still_loading() -> None:
    """The second one loads for long, and the first is free before."""
    loaded, calls = threading.Event(), []

    def load() -> None:
        calls.append(1)
        if len(calls) > 1:
            loaded.wait(30)

    async def use() -> float:
        lane = Lane("images", partial(ThreadPoolExecutor, 1), load, most=2, queue=8, seconds=20.0)
        try:
            await lane.run(nothing)
            first, second = (asyncio.create_task(lane.run(time.sleep, 0.01)) for _ in range(2))
            await asyncio.wait_for(asyncio.gather(first, second), 20)
            return len(lane._started)
        finally:
            loaded.set()
            lane.close()

    assert asyncio.run(use()) == 2


def test_who_waits_when_the_server_ends_is_told() -> None:
    go_on = threading.Event()

    async def use(lane: Lane) -> None:
        await lane.ready()
        running, waiting = (asyncio.create_task(lane.run(go_on.wait, 30)) for _ in range(2))
        await asyncio.sleep(0)
        lane.close()
        go_on.set()
        with pytest.raises(DeviceError, match="the server has ended"):
            await waiting
        with pytest.raises(DeviceError, match="the server has ended"):
            await lane.run(nothing)
        await asyncio.gather(running, return_exceptions=True)  # it may have begun

    in_lane(use, threads=True)
