"""Images that come again: found by what was sent, by the same tenant, within bounded memory."""

from __future__ import annotations

import asyncio
import base64
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("transformers")
import torch

from brim.engine.media.allowed import AllowedMedia
from brim.engine.media.limits import ImageLimits
from brim.engine.media.processed import part_digest
from brim.errors import InvalidRequest
from brim.model.packaged import packaged_folder
from brim.serve.prepare import images as decoding
from brim.serve.prepare.jobs import ChatJob, Prepared, TokenizerSource
from brim.serve.prepare.media import processor_of
from brim.serve.prepare.worker import Tokenising
from brim.serve.requests.chat import read_chat
from brim.serve.requests.types import ServedModel
from brim.serve.settings import DEFAULT_MEDIA_CACHE, RequestLimits

pillow = pytest.importorskip("PIL.Image")

LONGEST = 2048
LIMITS = RequestLimits()
FOLDER = packaged_folder("brim-tiny-vl")
SOURCE = TokenizerSource(FOLDER, media=AllowedMedia(ImageLimits(1024, "the model's processor", 256, 4)))


def image(colour: str, width: int = 64) -> dict[str, Any]:
    written = BytesIO()
    pillow.new("RGB", (width, 96), colour).save(written, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(written.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


RED, BLUE, WIDE = image("red"), image("blue"), image("green", 128)


def job(*parts: Any, salt: bytes = b"", rolls: bool = False, limits: RequestLimits = LIMITS) -> ChatJob:
    turns = [{"role": "user", "content": [part, {"type": "text", "text": "What is it?"}]} for part in parts]
    said = {"role": "assistant", "content": "A colour."}
    messages = [one for turn in turns for one in (turn, said)][:-1]
    model = ServedModel(longest=LONGEST, limits=limits)
    dialogue = read_chat({"messages": messages, "truncation": "auto" if rolls else "disabled"}, model).dialogue
    return ChatJob(dialogue, limits, LONGEST, 16 if rolls else None, salt=salt)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where each image that is decoded was sent."""
    paths: list[str] = []

    def noted(image: Any, *rest: Any) -> Any:
        paths.append(image.path)
        return real(image, *rest)

    real = decoding._decode
    monkeypatch.setattr(decoding, "_decode", noted)
    return paths


def prepared(*jobs: ChatJob, cache_bytes: int = DEFAULT_MEDIA_CACHE) -> list[Prepared]:
    async def one_after_the_other() -> list[Prepared]:
        tokenising = Tokenising(SOURCE, partial(ThreadPoolExecutor, 1), media_cache_bytes=cache_bytes)
        try:
            return [await tokenising.chat(one) for one in jobs]
        finally:
            tokenising.close()

    return asyncio.run(one_after_the_other())


def media(found: Prepared) -> dict[str, np.ndarray]:
    assert found.media is not None
    return found.media


def same(one: Prepared, other: Prepared) -> bool:
    mine, others = media(one), media(other)
    equal = mine.keys() == others.keys() and all(np.array_equal(mine[name], others[name]) for name in mine)
    return equal and (one.tokens, one.image_digests) == (other.tokens, other.image_digests)


def test_an_image_that_comes_again_is_not_decoded_again(decoded: list[str]) -> None:
    first, again = prepared(job(RED), job(RED))
    assert same(first, again)
    assert len(decoded) == 1


@pytest.mark.parametrize("rolls", [False, True])
def test_a_conversation_that_grows_has_only_its_new_images_decoded(rolls: bool, decoded: list[str]) -> None:
    *_, grown = prepared(job(RED), job(RED, WIDE), job(RED, WIDE, BLUE, RED, rolls=rolls))
    assert decoded == [
        "messages[0].content[0].image_url.url",
        *(f"messages[{n}].content[0].image_url.url" for n in (2, 4)),
    ]
    (fresh,) = prepared(job(RED, WIDE, BLUE, RED, rolls=rolls))
    assert same(grown, fresh)


def test_the_digests_are_those_that_the_engine_would_find() -> None:
    (found,) = prepared(job(RED, WIDE))
    own = processor_of(FOLDER)
    parts = own.family.split({name: torch.from_numpy(one) for name, one in media(found).items()}, own.config)
    assert found.image_digests == tuple(map(part_digest, parts))


def test_another_tenant_cannot_tell_what_was_seen(decoded: list[str]) -> None:
    prepared(job(RED, salt=b"mine"), job(RED, salt=b"yours"), job(RED, salt=b"mine"))
    assert len(decoded) == 2


def test_what_was_not_used_for_longest_gives_way(decoded: list[str]) -> None:
    size = media(prepared(job(RED))[0])["pixel_values"].nbytes
    decoded.clear()
    prepared(job(RED), job(BLUE), job(RED), job(WIDE), job(RED), job(BLUE), cache_bytes=3 * size)
    assert len(decoded) == 4  # wide took the place of blue
    decoded.clear()
    prepared(job(RED), job(RED), cache_bytes=size - 1)
    assert len(decoded) == 2


def test_pixels_of_an_image_that_is_known_count_too() -> None:
    few = RequestLimits(image_pixels=64 * 96 + 1)
    with pytest.raises(InvalidRequest, match=r"the image has 6144 pixels, more than the 1 that are left"):
        prepared(job(RED), job(BLUE), job(RED, BLUE, limits=few))
