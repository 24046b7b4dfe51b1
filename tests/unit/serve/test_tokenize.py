"""The endpoints of the tokenizer, around one of bytes and no engine."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("transformers")
from starlette.requests import Request

from brim.errors import InvalidRequest
from brim.model.packaged import packaged_folder
from brim.serve.http.keys import ANYBODY
from brim.serve.http.tokens import TokenEndpoints
from brim.serve.prepare import worker
from brim.serve.prepare.jobs import TokenizerSource
from brim.serve.prepare.worker import Tokenising
from brim.serve.problems import Problem
from brim.serve.settings import ServeSettings

LONGEST, VOCAB = 100, 2048
BYTES = TokenizerSource(None, bytes_only=True)
TINY = TokenizerSource(packaged_folder("brim-tiny"))


def endpoints(tokenising: Any) -> TokenEndpoints:
    engine = SimpleNamespace(
        longest_request=LONGEST, loaded=SimpleNamespace(vocab=VOCAB), image_limits=None, audio_limits=None
    )
    running = SimpleNamespace(engine=engine, tokenising=tokenising)
    lifecycle: Any = SimpleNamespace(admit_any=lambda: running)
    return TokenEndpoints(lifecycle, ServeSettings("tiny"))


def request(body: Any) -> Request:
    written = json.dumps(body).encode()

    async def receive() -> Any:
        return {"type": "http.request", "body": written}

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "headers": headers, "state": {"tenant": ANYBODY}}
    return Request(scope, receive)


def answered(question: str, body: Any = None, source: TokenizerSource = BYTES) -> Any:
    async def asked() -> Any:
        tokenising = Tokenising(source, partial(ThreadPoolExecutor, 1))
        try:
            return json.loads((await getattr(endpoints(tokenising), question)(request(body))).body)
        finally:
            tokenising.close()

    return asyncio.run(asked())


tokenized = partial(answered, "tokenize")


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
            counting = endpoints(tokenising)
            return await asyncio.gather(*(counting.tokenize(request({"prompt": "abc"})) for _ in range(40)))
        finally:
            tokenising.close()

    monkeypatch.setattr(worker, "_texts", texts)
    answers = asyncio.run(asked())
    assert [one.status_code for one in answers] == [200] * 40
    assert max(at_once) == 1


def test_tokens_become_the_text_that_they_were_made_of() -> None:
    text = "grün, 3 + 4"
    for source in (BYTES, TINY):
        tokens = tokenized({"prompt": text, "add_special_tokens": True}, source)["tokens"]
        assert answered("detokenize", {"tokens": tokens, "model": "tiny"}, source) == {"prompt": text}
    assert answered("detokenize", {"tokens": []}) == {"prompt": ""}


@pytest.mark.parametrize(
    ("tokens", "param", "said"),
    [
        (None, "tokens", "it is missing"),
        ("1, 2", "tokens", "a list"),
        ([1, "2"], "tokens[1]", "an integer"),
        ([VOCAB], "tokens[0]", "vocabulary"),
        ([-1], "tokens[0]", "vocabulary"),
        ([5] * (LONGEST + 1), "tokens", f"at most {LONGEST}"),
    ],
)
def test_what_is_no_token_is_refused(tokens: Any, param: str, said: str) -> None:
    with pytest.raises(Problem, match=said) as refused:
        answered("detokenize", {"tokens": tokens})
    assert refused.value.param == param


def test_each_token_as_the_vocabulary_writes_it() -> None:
    assert tokenized({"prompt": "hi"})["token_strs"] is None
    assert tokenized({"prompt": "hi", "return_token_strs": True})["token_strs"] == ["", "h", "i"]
    found = tokenized({"prompt": "red blue", "return_token_strs": True}, TINY)
    assert len(found["token_strs"]) == found["count"]
    chat = {"messages": [{"role": "user", "content": "red"}], "return_token_strs": True}
    assert tokenized(chat, TINY)["token_strs"][0] == "<|user|>"


def test_special_tokens_may_be_put_around_what_a_template_has_written(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    known = AutoTokenizer.from_pretrained(str(TINY.folder))
    (mark,) = known("red", add_special_tokens=False)["input_ids"][:1]
    known.backend_tokenizer.post_processor = TemplateProcessing("M $A M", special_tokens=[("M", mark)])
    known.save_pretrained(tmp_path)
    chat = {"messages": [{"role": "user", "content": "red"}]}
    plain = tokenized(chat, TINY)["tokens"]
    source = TokenizerSource(tmp_path)
    assert tokenized(chat, source)["tokens"] == plain
    assert tokenized({**chat, "add_special_tokens": True}, source)["tokens"] == [mark, *plain, mark]


def test_the_tokenizer_says_what_it_is_and_no_path() -> None:
    found = answered("tokenizer_info", source=TINY)
    assert found["tokenizer_class"]
    assert "<|user|>" in found["added_tokens_decoder"].values()
    assert "messages" in found["chat_template"]
    assert str(TINY.folder) not in json.dumps(found)
    assert answered("tokenizer_info") == {"tokenizer_class": "ByteTokenizer"}
    with pytest.raises(InvalidRequest, match="no tokenizer"):
        answered("tokenizer_info", source=TokenizerSource(None))
