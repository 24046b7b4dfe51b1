"""Prompts made in real processes: no text waits for an image, and no short text for a long one."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import time
from io import BytesIO
from statistics import median
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("transformers")
from brim.engine.media.allowed import AllowedMedia
from brim.engine.media.limits import ImageLimits
from brim.model.packaged import packaged_folder
from brim.serve.prepare.jobs import ChatJob, TokenizerSource
from brim.serve.prepare.worker import Tokenising
from brim.serve.requests.chat import read_chat
from brim.serve.requests.types import ServedModel
from brim.serve.settings import RequestLimits

pillow = pytest.importorskip("PIL.Image")

LONGEST = 300_000
SOURCE = TokenizerSource(
    packaged_folder("brim-tiny-vl"), media=AllowedMedia(ImageLimits(1024, "the model's processor", 256, 4))
)
IMAGES = 8


def job(content: Any) -> ChatJob:
    body = {"messages": [{"role": "user", "content": content}]}
    return ChatJob(read_chat(body, ServedModel(longest=LONGEST)).dialogue, RequestLimits(), LONGEST, None)


def image(number: int, side: int = 4096) -> dict[str, Any]:
    """Sixteen megapixels, none like the other."""
    written = BytesIO()
    pillow.effect_noise((side // 16, side // 16), 40 + number).resize((side, side)).save(written, "JPEG")
    url = f"data:image/jpeg;base64,{base64.b64encode(written.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


async def timed(tokenising: Tokenising) -> float:
    began = time.perf_counter()
    await tokenising.chat(job("What is 3 plus 4?"))
    return time.perf_counter() - began


async def beside(tokenising: Tokenising, others: list[ChatJob]) -> tuple[list[float], float]:
    """Seconds of each short text while the others are prepared, and of all of those."""
    began = time.perf_counter()
    busy = asyncio.gather(*(tokenising.chat(one) for one in others))
    texts = []
    while not busy.done():
        texts.append(await timed(tokenising))
        await asyncio.sleep(0.02)
    await busy
    return texts, time.perf_counter() - began


def test_text_waits_neither_for_images_nor_for_long_texts() -> None:
    async def prepared() -> None:
        tokenising = Tokenising(SOURCE)
        try:
            await tokenising.ready()
            alone = median([await timed(tokenising) for _ in range(20)])
            images = [job([image(number), {"type": "text", "text": "What is it?"}]) for number in range(IMAGES)]
            texts, seconds = await beside(tokenising, images)
            assert median(texts) < max(5 * alone, 0.1)
            assert max(texts) < seconds / 2
            await tokenising.texts(["word " * 20_000])  # its process has been started
            texts, seconds = await beside(tokenising, [job("word and " * 100_000) for _ in range(2)])
            assert median(texts) < max(5 * alone, 0.1)
            assert max(texts) < seconds / 2
        finally:
            tokenising.close()

    asyncio.run(prepared())


def test_a_killed_process_of_the_images_is_replaced_and_its_request_answered() -> None:
    async def prepared() -> None:
        tokenising = Tokenising(SOURCE)
        try:
            await tokenising.ready()
            wanted = await tokenising.chat(job([image(1), {"type": "text", "text": "What is it?"}]))
            asked = asyncio.create_task(tokenising.chat(job([image(2), {"type": "text", "text": "What is it?"}])))
            await asyncio.sleep(0.01)
            for pool in list(tokenising._media._started):
                for process in list(pool._processes):  # type: ignore[attr-defined]
                    os.kill(process, signal.SIGKILL)
            found = await asked
            assert found.tokens == wanted.tokens
            assert found.media is not None
        finally:
            tokenising.close()

    asyncio.run(prepared())
