"""How an engine in a thread ends: it is closed, or a step fails. No stream hangs, and every block is freed."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.engine.injection import failing_launches
from brim.engine.requests.request import FinishReason
from brim.engine.schedule.plan import StepPlan
from brim.engine.streaming import StreamingEngine
from brim.errors import DeviceError, InvalidRequest
from brim.records.health import Status
from tests.integration.faults import out_of_memory
from tests.integration.streaming_clients import (
    GREEDY,
    Held,
    begun,
    engine,
    fail_at_a_step,
    nothing_is_held,
    run,
    settled,
)

# -- starting and closing --------------------------------------------------------------------------------------------


def test_closing_ends_the_streams_in_flight_and_frees_their_blocks() -> None:
    async def scenario() -> None:
        serving = StreamingEngine(engine())
        serving.start()
        reading = await begun(serving, 3)
        await asyncio.to_thread(serving.close)
        assert nothing_is_held(serving.engine)
        for task in reading:
            with pytest.raises(DeviceError, match="the engine was closed"):
                await task
        assert serving.in_flight == 0
        (after,) = serving.engine.generate(["a cache"], GREEDY)  # the engine itself is as good as before
        assert after.text == engine().generate(["a cache"], GREEDY)[0].text

    run(scenario())


def test_leaving_the_context_ends_the_streams_in_flight() -> None:
    async def scenario() -> None:
        async with StreamingEngine(engine()) as serving:
            (reading,) = await begun(serving)
        with pytest.raises(DeviceError, match="the engine was closed"):
            await reading

    run(scenario())


def test_requests_queued_behind_the_close_are_answered() -> None:
    async def scenario() -> None:
        serving = StreamingEngine(engine())
        serving.start()
        gate = Held(serving.engine, "submit_request")
        clients = [asyncio.create_task(serving.generate("there was", GREEDY))]
        await gate.reached()
        clients.append(asyncio.create_task(serving.generate("a cache", GREEDY)))  # queued before the close
        await asyncio.sleep(0)
        closing = asyncio.create_task(asyncio.to_thread(serving.close))
        while not serving._closing:
            await asyncio.sleep(0.001)
        clients.append(asyncio.create_task(serving.generate("that was full", GREEDY)))  # and behind it
        await asyncio.sleep(0)
        gate.let_go()
        await closing
        for error in await asyncio.gather(*clients, return_exceptions=True):
            assert isinstance(error, DeviceError)
            assert str(error) == "the engine was closed"
        assert nothing_is_held(serving.engine)

    run(scenario())


def test_a_stream_after_the_close_raises() -> None:
    async def scenario() -> None:
        async with StreamingEngine(engine()) as serving:
            await serving.generate("a cache", GREEDY)
        for _ in range(3):
            with pytest.raises(DeviceError, match="the engine was closed"):
                await serving.generate("a cache", GREEDY)
        assert serving._commands.empty()  # a late command does not stay in the queue

    run(scenario())


def test_a_stream_before_the_start_raises() -> None:
    async def scenario() -> None:
        serving = StreamingEngine(engine())
        with pytest.raises(InvalidRequest, match=r"not started: call start\(\) first, or use `async with`"):
            await serving.generate("a cache", GREEDY)
        async with serving:
            assert len((await serving.generate("a cache", GREEDY))[0].tokens) == 12

    run(scenario())


def test_starting_twice_and_starting_again_are_refused() -> None:
    serving = StreamingEngine(engine())
    serving.start()
    with pytest.raises(InvalidRequest, match="started already"):
        serving.start()
    serving.close()
    with pytest.raises(DeviceError, match="the engine was closed"):
        serving.start()


def test_closing_before_the_start() -> None:
    serving = StreamingEngine(engine())
    serving.close()
    serving.close()
    with pytest.raises(DeviceError, match="the engine was closed"):
        serving.start()
    with pytest.raises(DeviceError, match="the engine was closed"):
        run(serving.generate("a cache", GREEDY))


def test_closing_from_many_threads_at_once() -> None:
    async def scenario() -> None:
        serving = StreamingEngine(engine())
        serving.start()
        (reading,) = await begun(serving)
        await asyncio.gather(*(asyncio.to_thread(serving.close) for _ in range(8)))
        with pytest.raises(DeviceError, match="the engine was closed"):
            await reading
        serving.close()
        assert nothing_is_held(serving.engine)

    run(scenario())


@pytest.mark.parametrize("method", ["submit_request", "step", "cancel"])
def test_closing_from_the_engines_own_thread(method: str) -> None:
    async def scenario() -> None:
        served = engine()
        serving = StreamingEngine(served)
        original = getattr(served, method)

        def closing(*arguments: Any, **options: Any) -> Any:
            serving.close()
            return original(*arguments, **options)

        serving.start()
        reading = await begun(serving, 2)
        setattr(served, method, closing)
        if method == "submit_request":
            reading.append(asyncio.create_task(serving.generate("a cache", GREEDY)))
        if method == "cancel":
            reading.pop().cancel()
        for task in reading:
            with pytest.raises(DeviceError, match="the engine was closed"):
                await task
        await asyncio.to_thread(serving.close)
        assert nothing_is_held(served)

    run(scenario())


def test_a_close_that_cannot_clear_away_says_so() -> None:
    async def scenario() -> None:
        serving = StreamingEngine(engine())
        serving.start()
        reading = await begun(serving, 2)

        def broken(request_id: str) -> bool:
            raise RuntimeError(f"{request_id} cannot be cancelled")

        serving.engine.cancel = broken  # type: ignore[method-assign]
        for _ in range(2):
            with pytest.raises(DeviceError, match="request-0 cannot be cancelled") as raised:
                await asyncio.to_thread(serving.close)
        assert raised.value.__cause__ is not None
        assert "request-1 cannot be cancelled" in raised.value.__cause__.__notes__[0]
        for task in reading:
            with pytest.raises(DeviceError, match="the engine was closed"):
                await task

    run(scenario())


# -- steps that fail -------------------------------------------------------------------------------------------------


def test_an_engine_that_breaks_ends_its_streams() -> None:
    async def scenario() -> None:
        serving = StreamingEngine(engine())

        def broken() -> list[object]:
            raise DeviceError("the device is gone")

        serving.engine.step = broken  # type: ignore[method-assign, assignment]
        serving.start()
        with pytest.raises(DeviceError, match="the device is gone"):
            await serving.generate("a cache", GREEDY)
        with pytest.raises(DeviceError, match="has stopped"):
            await serving.generate("again", GREEDY)
        serving.close()

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))


@pytest.mark.parametrize("kind", [DeviceError, ValueError, KeyboardInterrupt, SystemExit, MemoryError])
def test_a_failed_step_ends_all_streams_and_frees_their_blocks(kind: type[BaseException]) -> None:
    async def scenario() -> None:
        serving = StreamingEngine(engine())
        serving.start()
        reading = await begun(serving, 3)
        failure = kind("the device is gone")
        fail_at_a_step(serving.engine, failure)
        errors = await asyncio.gather(*reading, return_exceptions=True)
        errors += await asyncio.gather(serving.generate("again", GREEDY), return_exceptions=True)
        for error in errors:
            assert isinstance(error, DeviceError)
            assert str(error) == "the engine has stopped: the device is gone"
            assert error.__cause__ is failure
        assert len({id(error) for error in errors}) == 4  # each has a traceback of its own
        await asyncio.to_thread(serving.close)
        assert nothing_is_held(serving.engine)
        assert serving.in_flight == 0
        assert not hasattr(failure, "__notes__")

    run(scenario())


def test_out_of_memory_ends_no_stream_that_can_run() -> None:
    """One launch in three fails; one request never fits. Its stream gets the reason, the others their answers."""

    async def scenario() -> None:
        wanted = engine().generate(["a cache", "there was"], GREEDY)
        served = engine()
        launches = [0]

        def failing(plan: StepPlan) -> None:
            launches[0] += 1
            if launches[0] % 3 == 0 or any(one.prompt_length > 20 for one in plan.sequences):
                out_of_memory()

        with failing_launches(served, failing):
            async with StreamingEngine(served) as serving:
                asked = ("a cache", "there was", "that was as full as a cache can be, and more")
                found = await asyncio.gather(*(serving.generate(prompt, GREEDY) for prompt in asked))
                assert [found[0][0].tokens, found[1][0].tokens] == [one.tokens for one in wanted]
                assert found[2][0].finish_reason is FinishReason.ERROR
                assert "do not fit in a step even alone" in (found[2][0].error or "")
                assert serving.health.status is Status.DEGRADED
                assert serving.health.ended_requests == 1
                await settled(serving)
                assert nothing_is_held(served)
            assert serving.health.status is Status.ENDED
            assert serving.health.reason == "the engine was closed"

    run(scenario())


def test_closing_in_the_middle_of_a_rescue_leaves_an_engine_that_can_be_used() -> None:
    async def scenario() -> None:
        served = engine()
        serving = StreamingEngine(served)
        serving.start()
        reading = await begun(serving, 3)
        with failing_launches(served, lambda plan: out_of_memory()):
            while not served.health.rescues and served.pool.rescue is not None and not served.pool.rescue.under_way:
                await asyncio.sleep(0)
            await asyncio.to_thread(serving.close)
            await asyncio.gather(*reading, return_exceptions=True)
            assert nothing_is_held(served)
        assert served.generate(["a cache"], GREEDY)[0].text == engine().generate(["a cache"], GREEDY)[0].text

    run(scenario())


def test_an_interrupt_without_words_is_named() -> None:
    async def scenario() -> None:
        serving = StreamingEngine(engine())
        fail_at_a_step(serving.engine, KeyboardInterrupt())
        serving.start()
        with pytest.raises(DeviceError, match="the engine has stopped: KeyboardInterrupt"):
            await serving.generate("a cache", GREEDY)
        serving.close()

    run(scenario())


def test_an_interrupt_inside_a_submit_ends_the_engine_as_in_a_step() -> None:
    async def scenario() -> None:
        serving = StreamingEngine(engine())
        serving.start()
        clients = await begun(serving, 2)
        submit = serving.engine.submit_request

        def interrupted(*_: Any, **__: Any) -> str:
            serving.engine.submit_request = submit  # type: ignore[method-assign]
            raise KeyboardInterrupt

        serving.engine.submit_request = interrupted  # type: ignore[method-assign]
        clients += [asyncio.create_task(serving.generate(prompt, GREEDY)) for prompt in ("a cache", "there was")]
        for task in clients:
            with pytest.raises(DeviceError, match="the engine has stopped: KeyboardInterrupt"):
                await task
        await asyncio.to_thread(serving.close)
        assert nothing_is_held(serving.engine)

    run(scenario())


def test_errors_of_clearing_away_do_not_hide_what_failed() -> None:
    async def scenario() -> None:
        serving = StreamingEngine(engine())
        serving.start()
        reading = await begun(serving, 2)

        def broken(request_id: str) -> bool:
            raise RuntimeError(f"{request_id} cannot be cancelled")

        serving.engine.cancel = broken  # type: ignore[method-assign]
        fail_at_a_step(serving.engine, ValueError("the first"))
        for task in reading:
            with pytest.raises(DeviceError, match="the first") as raised:
                await task
            cause = raised.value.__cause__
            assert isinstance(cause, ValueError)
            assert [note.rpartition(": ")[2] for note in cause.__notes__[:2]] == [
                "request-0 cannot be cancelled",
                "request-1 cannot be cancelled",
            ]
        serving.close()  # all clients have got the error

    run(scenario())


def test_what_failed_keeps_nothing_of_the_step_alive() -> None:
    class Tensor:
        """Stands for what a step holds."""

    async def scenario() -> None:
        serving = StreamingEngine(engine())
        held: list[weakref.ref[Tensor]] = []

        def failing() -> list[Any]:
            tensor = Tensor()
            held.append(weakref.ref(tensor))
            raise ValueError("the step failed")

        serving.engine.step = failing  # type: ignore[method-assign]
        serving.start()
        with pytest.raises(DeviceError, match="the step failed"):
            await serving.generate("a cache", GREEDY)
        assert held[0]() is None
        serving.close()

    run(scenario())


def test_a_policy_may_go_on_after_a_failed_step() -> None:
    """Only `_failed` decides: if it returns no ending, the streams continue."""

    class GoesOn(StreamingEngine):
        failures: int = 0

        def _failed(self, error: BaseException) -> None:
            self.failures += 1

    async def scenario() -> None:
        async with GoesOn(engine()) as serving:
            fail_at_a_step(serving.engine, ValueError("once"))
            (answer,) = await serving.generate("a cache", GREEDY)
            assert answer.text == engine().generate(["a cache"], GREEDY)[0].text
            assert isinstance(serving, GoesOn)
            assert serving.failures == 1

    run(scenario())
