"""An engine in a thread: many streams at once, requests that are refused, streams that are left."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.engine.engine import Engine
from brim.engine.front.answers import Update
from brim.engine.front.validation import GenerationRequest
from brim.engine.requests.params import SamplingParams
from brim.engine.streaming import StreamingEngine
from brim.errors import InvalidRequest
from tests.integration.streaming_clients import (
    GREEDY,
    LONG,
    SECONDS,
    Held,
    begun,
    engine,
    nothing_is_held,
    run,
    settled,
)

PROMPTS = ["Once upon a time", "there was", "a cache", "that was full", "to the brim"]
MORE = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)


async def read_to_the_end(updates: AsyncGenerator[Update, None]) -> int:
    return len([update async for update in updates])


# -- answers ---------------------------------------------------------------------------------------------------------


def test_streams_give_what_generate_gives() -> None:
    wanted = [one.text for one in engine().generate(PROMPTS, GREEDY)]

    async def text_of(serving: StreamingEngine, prompt: str) -> str:
        return "".join([update.text async for update in serving.stream(prompt, GREEDY)])

    async def all_of_them() -> list[str]:
        async with StreamingEngine(engine()) as serving:
            return await asyncio.gather(*(text_of(serving, prompt) for prompt in PROMPTS))

    assert run(all_of_them()) == wanted


def test_prefixes_are_found_by_requests_of_the_same_salt_only() -> None:
    async def reused() -> list[int]:
        async with StreamingEngine(engine()) as serving:
            prompt = "Once upon a time there was a cache that was full to the brim."
            salts = (b"one", b"one", b"two", b"", b"two")
            answers = [await serving.generate(prompt, GREEDY, salt=salt) for salt in salts]
            return [answer.reused_tokens for (answer,) in answers]

    assert [found > 0 for found in run(reused())] == [False, True, False, False, True]


def test_streams_of_several_event_loops_share_an_engine() -> None:
    wanted = [one.text for one in engine().generate(PROMPTS, GREEDY)]
    serving = StreamingEngine(engine())
    serving.start()
    found: dict[str, str | None] = {}

    def client(prompt: str) -> None:
        found[prompt] = run(serving.generate(prompt, GREEDY))[0].text

    threads = [threading.Thread(target=client, args=(prompt,)) for prompt in PROMPTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    serving.close()
    assert [found[prompt] for prompt in PROMPTS] == wanted
    assert nothing_is_held(serving.engine)


def test_all_answers_of_a_request_come_through_one_stream() -> None:
    drawn = SamplingParams(max_tokens=6, n=3, seed=1, ignore_eos=True)
    wanted = [one.tokens for one in engine().generate(["a cache"], drawn)]

    async def scenario() -> None:
        async with StreamingEngine(engine()) as serving:
            updates = [update async for update in serving.stream("a cache", drawn)]
            for index, tokens in enumerate(wanted):
                mine = [update for update in updates if update.index == index]
                assert tuple(update.token for update in mine) == tokens
                assert [update.completion is not None for update in mine] == [False] * 5 + [True]

    run(scenario())


def test_an_event_loop_is_woken_once_a_step() -> None:
    async def scenario() -> None:
        async with StreamingEngine(engine()) as serving:
            loop = asyncio.get_running_loop()
            original, wakers = loop.call_soon_threadsafe, []

            def counted(callback: Callable[..., object], *arguments: Any, **options: Any) -> asyncio.Handle:
                wakers.append(threading.current_thread().name)
                return original(callback, *arguments, **options)

            loop.call_soon_threadsafe = counted  # type: ignore[method-assign, assignment]
            answers = await asyncio.gather(*(serving.generate(prompt, GREEDY) for prompt in PROMPTS[:4]))
            assert sum(len(one.tokens) for (one,) in answers) == 48
            assert 12 <= wakers.count("brim-engine") <= serving.engine.figures.steps

    run(scenario())


# -- requests that are refused ---------------------------------------------------------------------------------------


def test_a_refused_request_raises_and_others_go_on() -> None:
    async def scenario() -> int:
        async with StreamingEngine(engine()) as serving:
            with pytest.raises(InvalidRequest, match="prompt"):
                await serving.generate([])
            with pytest.raises(AttributeError):
                await serving.generate("a cache", "not parameters")  # type: ignore[arg-type]
            (answer,) = await serving.generate("a cache", GREEDY)
            return len(answer.tokens)

    assert run(scenario()) == 12


def test_any_error_of_a_submit_reaches_its_client_only() -> None:
    async def scenario() -> None:
        served = engine()
        submit = served.submit_request

        def failing(given: GenerationRequest) -> str:
            if given.prompt == "a cache":
                raise ZeroDivisionError("a tokenizer that fails")
            return submit(given)

        served.submit_request = failing  # type: ignore[method-assign]
        async with StreamingEngine(served) as serving:
            (other,) = await begun(serving)
            with pytest.raises(ZeroDivisionError, match="a tokenizer that fails"):
                await serving.generate("a cache", GREEDY)
            assert len((await serving.generate("there was", GREEDY))[0].tokens) == 12
            assert not other.done()
            other.cancel()

    run(scenario())


def test_an_engine_that_is_not_built_refuses_and_can_be_built_later() -> None:
    async def scenario() -> None:
        async with StreamingEngine(Engine("brim-random", kv_tokens=0, device="cpu")) as serving:
            for _ in range(2):
                with pytest.raises(InvalidRequest, match="not built"):
                    await serving.generate("a cache", GREEDY)
            serving.engine.build(1024)
            assert len((await serving.generate("a cache", GREEDY))[0].tokens) == 12

    run(scenario())


# -- streams that are left -------------------------------------------------------------------------------------------


def test_a_stream_that_is_left_frees_everything() -> None:
    async def leave_early(serving: StreamingEngine) -> None:
        async for update in serving.stream("Once upon a time", LONG):
            if update.token is not None:
                break

    async def scenario() -> Engine:
        async with StreamingEngine(engine()) as serving:
            await leave_early(serving)
            (answer,) = await serving.generate("there was", GREEDY)  # behind the cancellation in the queue
            assert len(answer.tokens) == 12
            return serving.engine

    left = run(scenario())
    assert left.figures.blocks_held == 0
    assert left.figures.running == 0


def test_a_client_cancelled_before_its_submit_ran_hurts_no_other() -> None:
    async def scenario() -> None:
        async with StreamingEngine(engine()) as serving:
            gate = Held(serving.engine, "submit_request")
            first = asyncio.create_task(serving.generate("Once upon a time", GREEDY))
            await gate.reached()
            cancelled = asyncio.create_task(serving.generate("there was", LONG))
            await asyncio.sleep(0)  # its submit is queued behind the one that is held
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            gate.let_go()
            assert len((await first)[0].tokens) == 12
            assert len((await serving.generate("a cache", GREEDY))[0].tokens) == 12
            await settled(serving)
            assert nothing_is_held(serving.engine)
            assert serving.engine.figures.drawn == 24  # the cancelled one has not run at all

    run(scenario())


def test_a_submit_that_succeeds_after_its_client_was_cancelled_leaves_no_request_behind() -> None:
    async def scenario() -> None:
        async with StreamingEngine(engine()) as serving:
            gate = Held(serving.engine, "submit_request")
            cancelled = asyncio.create_task(serving.generate("there was", LONG))
            await gate.reached()
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            gate.let_go()
            assert len((await serving.generate("a cache", GREEDY))[0].tokens) == 12
            await settled(serving)
            assert nothing_is_held(serving.engine)
            assert serving.engine.figures.drawn < 30

    run(scenario())


def test_a_client_that_leaves_late_cancels_nobody_who_has_its_id_by_now() -> None:
    async def both() -> Update:
        async with StreamingEngine(engine()) as serving:
            first = serving.stream("Once upon a time", GREEDY, request_id="same")
            async for update in first:
                if update.completion is not None:
                    break
            second = serving.stream("there was", MORE, request_id="same")
            await anext(second)
            await first.aclose()
            return [update async for update in second][-1]

    assert run(both()).completion is not None


def test_a_cancelled_request_gets_no_more_updates() -> None:
    """Not even those of the step that ran when it was cancelled."""

    async def scenario() -> None:
        async with StreamingEngine(engine()) as serving:
            async with aclosing(serving.stream("Once upon a time", LONG)) as updates:
                await anext(updates)
                gate = Held(serving.engine, "step")
                await gate.reached()
            gate.let_go()
            with pytest.raises(StopAsyncIteration):
                await anext(updates)
            await settled(serving)
            assert nothing_is_held(serving.engine)

    run(scenario())


def test_a_time_out_between_two_updates_cancels_the_request() -> None:
    async def scenario() -> None:
        async with StreamingEngine(engine()) as serving:
            updates = serving.stream("Once upon a time", LONG)
            await anext(updates)
            gate = Held(serving.engine, "step")
            await gate.reached()
            with pytest.raises(TimeoutError):  # what was delivered before may still be read
                await asyncio.wait_for(read_to_the_end(updates), 0.05)
            gate.let_go()
            await settled(serving)
            assert nothing_is_held(serving.engine)
            assert serving.engine.figures.drawn < 100

    run(scenario())


def test_a_generator_that_is_dropped_without_being_closed_cancels_its_request() -> None:
    async def scenario() -> None:
        async with StreamingEngine(engine()) as serving:
            updates = serving.stream("Once upon a time", LONG)
            await anext(updates)
            cycle: list[Any] = [updates]
            cycle.append(cycle)  # only the garbage collector finds it
            del updates, cycle
            gc.collect()
            await settled(serving)
            assert nothing_is_held(serving.engine)
            assert serving.engine.figures.drawn < 400

    run(scenario())


def test_a_slow_client_delays_no_other_and_loses_nothing() -> None:
    async def scenario() -> None:
        async with StreamingEngine(engine()) as serving:
            slow = serving.stream("Once upon a time", GREEDY)
            read = [await anext(slow)]
            assert len((await serving.generate("a cache", MORE))[0].tokens) == 60
            assert serving.in_flight == 0  # complete, though not read to its end
            read += [update async for update in slow]
            assert len(read) == 12
            assert read[-1].completion is not None

    run(scenario())


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_client_whose_event_loop_is_closed_loses_only_its_request() -> None:
    serving = StreamingEngine(engine())
    serving.start()
    loop = asyncio.new_event_loop()
    updates = serving.stream("Once upon a time", LONG)
    loop.run_until_complete(asyncio.wait_for(anext(updates), SECONDS))
    loop.close()  # without closing its generators, as `asyncio.run` would

    async def another() -> None:
        assert len((await serving.generate("a cache", GREEDY))[0].tokens) == 12
        await settled(serving)
        assert nothing_is_held(serving.engine)
        assert serving.engine.figures.drawn < 500

    run(another())
    serving.close()
