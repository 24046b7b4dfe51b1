"""The endpoint `/tokenize`, around a tokenizer of bytes and no engine."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("transformers")
from starlette.requests import Request

from brim.errors import InvalidRequest
from brim.serve.http.app import _About
from brim.serve.prepare import worker
from brim.serve.prepare.jobs import TokenizerSource
from brim.serve.prepare.worker import Tokenising
from brim.serve.problems import Problem
from brim.serve.settings import ServeSettings

LONGEST = 100


def about(tokenising: Any) -> _About:
    engine = SimpleNamespace(
        longest_request=LONGEST, loaded=SimpleNamespace(vocab=300), image_limits=None, audio_limits=None
    )
    running = SimpleNamespace(engine=engine, tokenising=tokenising)
    lifecycle: Any = SimpleNamespace(admit_any=lambda: running)
    nobody: Any = None
    return _About(lifecycle, ServeSettings("tiny"), nobody, nobody)


def request(body: Any) -> Request:
    written = json.dumps(body).encode()

    async def receive() -> Any:
        return {"type": "http.request", "body": written}

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}
    return Request(scope, receive)


def tokenized(body: Any) -> Any:
    async def asked() -> Any:
        tokenising = Tokenising(TokenizerSource(None, bytes_only=True), partial(ThreadPoolExecutor, 1))
        try:
            return json.loads((await about(tokenising).tokenize(request(body))).body)
        finally:
            tokenising.close()

    return asyncio.run(asked())


def test_a_prompt_is_counted_unless_it_is_too_long_to_be_one() -> None:
    assert tokenized({"prompt": "abc"})["max_model_len"] == LONGEST
    with pytest.raises(InvalidRequest, match=f"at most {LONGEST} characters"):
        tokenized({"prompt": "a" * (LONGEST + 1)})


@pytest.mark.parametrize(
    ("field", "value", "status"), [("add_special_tokens", "no", 400), ("model", "other", 404), ("model", 5, 400)]
)
def test_a_wrong_field_is_refused(field: str, value: Any, status: int) -> None:
    assert tokenized({"prompt": "abc", "model": "tiny", "add_special_tokens": True})["count"] >= 3
    with pytest.raises(Problem) as refused:
        tokenized({"prompt": "abc", field: value})
    assert (refused.value.param, refused.value.status) == (field, status)


def test_those_who_only_count_leave_the_workers_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way: list[int] = []
    at_once: list[int] = []

    def texts(_: Any, found: list[str], *__: Any) -> list[tuple[int, ...]]:
        under_way.append(1)
        at_once.append(len(under_way))
        time.sleep(0.001)
        under_way.pop()
        return [(1,)] * len(found)

    async def asked() -> list[Any]:
        tokenising = Tokenising(TokenizerSource(None, bytes_only=True), partial(ThreadPoolExecutor, 8))
        try:
            counting = about(tokenising)
            return await asyncio.gather(*(counting.tokenize(request({"prompt": "abc"})) for _ in range(40)))
        finally:
            tokenising.close()

    monkeypatch.setattr(worker, "_texts", texts)
    answers = asyncio.run(asked())
    assert [one.status_code for one in answers] == [200] * 40
    assert max(at_once) == 1
