"""An engine in a thread: many streams at once, streams that are left, requests that are refused."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.engine.engine import Engine
from brim.engine.requests.params import SamplingParams
from brim.engine.settings import EngineSettings
from brim.engine.streaming import StreamingEngine
from brim.errors import DeviceError, InvalidRequest

PROMPTS = ["Once upon a time", "there was", "a cache", "that was full", "to the brim"]
GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)


def engine() -> Engine:
    return Engine("brim-tiny", kv_tokens=1024, device="cpu", settings=EngineSettings(max_batch=4, max_batch_tokens=32))


def test_streams_give_what_generate_gives() -> None:
    wanted = [one.text for one in engine().generate(PROMPTS, GREEDY)]

    async def text_of(serving: StreamingEngine, prompt: str) -> str:
        return "".join([update.text async for update in serving.stream(prompt, GREEDY)])

    async def all_of_them() -> list[str]:
        async with StreamingEngine(engine()) as serving:
            return await asyncio.gather(*(text_of(serving, prompt) for prompt in PROMPTS))

    assert asyncio.run(all_of_them()) == wanted


def test_a_stream_that_is_left_frees_everything() -> None:
    async def leave_early(serving: StreamingEngine) -> None:
        async for update in serving.stream("Once upon a time", SamplingParams(max_tokens=500, ignore_eos=True)):
            if update.token is not None:
                break

    async def scenario() -> Engine:
        async with StreamingEngine(engine()) as serving:
            await leave_early(serving)
            (answer,) = await serving.generate("there was", GREEDY)  # behind the cancellation in the queue
            assert len(answer.tokens) == 12
            return serving.engine

    left = asyncio.run(scenario())
    assert left.figures.blocks_held == 0
    assert left.figures.running == 0


def test_a_refused_request_raises_and_others_go_on() -> None:
    async def scenario() -> int:
        async with StreamingEngine(engine()) as serving:
            with pytest.raises(InvalidRequest, match="prompt"):
                await serving.generate([])
            (answer,) = await serving.generate("a cache", GREEDY)
            return len(answer.tokens)

    assert asyncio.run(scenario()) == 12


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
