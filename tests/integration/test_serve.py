"""The server with the official client and without: answers, refusals, keys, disconnects, the queue."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("openai")

import httpx
import openai

from brim import SamplingParams, __version__
from brim.engine.front.chat_template import chat_tokens
from brim.serve.settings import RequestLimits
from tests.integration.served import Served, events, served, wait
from tests.integration.test_chat import engine_of, tokenizer

KEYS = ("first-key", "second-key")
PLACES = 8
ADA = [{"role": "user", "content": "My name is Ada. What is my name?"}]
LONG = {"max_tokens": 400, "ignore_eos": True}


@pytest.fixture(scope="module")
def tiny() -> Iterator[Served]:
    """A tiny model with random weights; places for as many answers again as it runs; two keys."""
    engine = engine_of(copy=7, kv_tokens=2048)
    limits = RequestLimits(body_bytes=200_000)
    with served(engine, threads=True, api_keys=KEYS, max_queue=PLACES - 4, limits=limits) as found:
        yield found
        assert found.is_empty()


@pytest.fixture
def client(tiny: Served) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{tiny.url}/v1", api_key=KEYS[0], max_retries=0) as made:
        yield made


def chat(client: Any, **options: Any) -> Any:
    return client.chat.completions.create(
        **{"model": "tiny", "messages": ADA, "temperature": 0, "max_tokens": 8, **options}
    )


# -- the official client -------------------------------------------------------------------------------------------


def test_a_chat_is_answered(client: Any) -> None:
    with engine_of() as other:
        (wanted,) = other.generate([chat_tokens(tokenizer(), ADA)], SamplingParams(max_tokens=8, temperature=0, seed=0))
    answer = chat(client)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == wanted.text
    assert answer.choices[0].finish_reason == str(wanted.finish_reason)
    assert answer.usage.prompt_tokens == wanted.prompt_tokens
    assert answer.usage.completion_tokens == len(wanted.tokens)
    assert answer.usage.total_tokens == wanted.prompt_tokens + len(wanted.tokens)


def test_a_streamed_chat_is_the_same_in_pieces(client: Any) -> None:
    options = {"n": 3, "seed": 5, "temperature": 1, "logprobs": True, "top_logprobs": 2, "ignore_eos": True}
    extra = {"extra_body": {"ignore_eos": options.pop("ignore_eos")}}
    whole = chat(client, **options, **extra)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}, **options, **extra))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 24
    assert len({chunk.id for chunk in chunks}) == 1
    for choice in whole.choices:
        own = [one for chunk in chunks for one in chunk.choices if one.index == choice.index]
        assert own[0].delta.role == "assistant"
        assert "".join(one.delta.content or "" for one in own) == choice.message.content
        assert [one.finish_reason for one in own if one.finish_reason] == ["length"]
        scores = [score for one in own if one.logprobs for score in one.logprobs.content]
        assert [score.token for score in scores] == [score.token for score in choice.logprobs.content]
        assert len(scores) == 8
        assert all(len(score.top_logprobs) == 2 and score.logprob <= 0 for score in scores)


def test_sampling_is_as_asked(client: Any) -> None:
    seeded = {"temperature": 1, "seed": 11, "max_tokens": 12}
    assert chat(client, **seeded).choices[0].message.content == chat(client, **seeded).choices[0].message.content
    biased = chat(client, logit_bias={"500": 100}, max_tokens=4)
    assert biased.choices[0].message.content == tokenizer().decode([500] * 4)
    varied = chat(client, logit_bias={"500": 3}, max_tokens=4, presence_penalty=2, frequency_penalty=2)
    assert varied.choices[0].finish_reason == "length"
    text = tokenizer().decode([500, 500, 500])
    stopped = chat(client, logit_bias={"500": 100}, max_tokens=9, stop=[text])
    assert stopped.choices[0].message.content == ""
    assert stopped.choices[0].finish_reason == "stop"


def test_cached_tokens_are_counted_and_not_shared_between_keys(tiny: Served, client: Any) -> None:
    long = [{"role": "user", "content": "one two three red green blue " * 12}]
    first = chat(client, messages=long).usage
    again = chat(client, messages=long).usage
    assert first.prompt_tokens_details.cached_tokens == 0
    assert again.prompt_tokens_details.cached_tokens > again.prompt_tokens // 2
    with openai.OpenAI(base_url=f"{tiny.url}/v1", api_key=KEYS[1]) as other:
        assert chat(other, messages=long).usage.prompt_tokens_details.cached_tokens == 0


def test_tools_and_their_results_reach_the_template(tiny: Served) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "time", "arguments": "{}"}}
    tools = [{"type": "function", "function": {"name": "time", "description": "", "parameters": {}}}]
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "What is the time?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "noon"},
    ]
    found = tiny.post("/tokenize", {"messages": messages, "tools": tools}).json()
    entries = [dict(message, content=message["content"] or "") for message in messages]
    assert found["tokens"] == chat_tokens(tokenizer(), entries, tools)
    assert (found["count"], found["max_model_len"]) == (len(found["tokens"]), 512)
    assert "time" in tokenizer().decode(found["tokens"])
    answer = tiny.post("/v1/chat/completions", {"messages": messages, "tools": tools, "max_tokens": 3})
    assert answer.json()["usage"]["prompt_tokens"] == found["count"]


def test_a_conversation_rolls_where_that_was_asked_for(tiny: Served, client: Any) -> None:
    exchange = [{"role": "user", "content": "one two three " * 5}, {"role": "assistant", "content": "red."}]
    messages = [{"role": "system", "content": "You are Ada."}, *exchange * 40, {"role": "user", "content": "Hi."}]
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, messages=messages)
    assert refused.value.code == "context_length_exceeded"
    assert "512" in str(refused.value)
    answer = chat(client, messages=messages, extra_body={"truncation": "auto"})
    dropped = answer.brim
    assert dropped["evicted_turns"] % 2 == 0
    assert dropped["evicted_turns"] > 40
    assert answer.usage.prompt_tokens + 8 <= 256
    every = tiny.post("/tokenize", {"messages": messages}).json()["count"]
    assert every == answer.usage.prompt_tokens + dropped["evicted_tokens"]
    first, *_ = list(chat(client, messages=messages, stream=True, extra_body={"truncation": "auto"}))
    assert first.brim == dropped
    assert chat(client, extra_body={"truncation": "auto"}).brim == {"evicted_turns": 0, "evicted_tokens": 0}


def test_completions_of_texts_and_tokens(client: Any) -> None:
    def complete(prompt: Any, **options: Any) -> Any:
        return client.completions.create(model="tiny", prompt=prompt, temperature=0, max_tokens=5, **options)

    ids = tokenizer()("one two three")["input_ids"]
    text, tokens = complete("one two three"), complete(ids)
    assert text.choices[0].text == tokens.choices[0].text
    several = complete(["one two three", "red"], n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].text == several.choices[1].text == text.choices[0].text
    assert several.usage.prompt_tokens == len(ids) + len(tokenizer()("red")["input_ids"])
    chunks = list(complete(["one two three", "red"], stream=True))
    for number, choice in enumerate(complete(["one two three", "red"]).choices):
        assert "".join(one.text for chunk in chunks for one in chunk.choices if one.index == number) == choice.text


def test_a_prompt_is_echoed_and_scored(client: Any) -> None:
    def complete(**options: Any) -> Any:
        made = {"model": "tiny", "prompt": "one two three", "temperature": 0, "max_tokens": 4, "echo": True}
        return client.completions.create(**made | options)

    answer = complete(logprobs=2)
    plain = complete(echo=False)
    choice, scores, prompt = answer.choices[0], answer.choices[0].logprobs, answer.usage.prompt_tokens
    assert choice.text == "one two three" + plain.choices[0].text
    assert len(scores.tokens) == len(scores.token_logprobs) == len(scores.text_offset) == prompt + 4
    assert scores.token_logprobs[0] is None
    assert all(score <= 0 for score in scores.token_logprobs[1:])
    assert len(scores.top_logprobs[1]) >= 2
    only = complete(logprobs=1, max_tokens=0)
    assert only.choices[0].text == "one two three"
    assert only.choices[0].logprobs.token_logprobs == scores.token_logprobs[:prompt]
    assert only.usage.completion_tokens == 0


@pytest.mark.parametrize("most", [0, 4])
def test_a_scored_prompt_is_streamed_as_it_is_answered(client: Any, most: int) -> None:
    def complete(**options: Any) -> Any:
        asked = {"model": "tiny", "prompt": ["one two three", "red"], "temperature": 0, "max_tokens": most, "n": 2}
        return client.completions.create(**asked, echo=True, logprobs=2, **options)

    chunks = list(complete(stream=True))
    for whole in complete().choices:
        own = [one for chunk in chunks for one in chunk.choices if one.index == whole.index]
        assert "".join(one.text for one in own) == whole.text
        assert [one.finish_reason for one in own if one.finish_reason] == [whole.finish_reason]
        scores = [one.logprobs for one in own if one.logprobs]
        for key in ("tokens", "text_offset"):
            assert [each for part in scores for each in getattr(part, key)] == getattr(whole.logprobs, key)
        streamed = [each for part in scores for each in part.token_logprobs]
        assert streamed[0] is None
        assert streamed[1:] == pytest.approx(whole.logprobs.token_logprobs[1:], abs=1e-4)


def test_models_are_listed(client: Any) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.max_model_len) == ("tiny", 512)
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"messages": ADA, "model": "gpt-9"}, 404, "model_not_found"),
        ({"messages": ADA, "temperature": 200}, 400, "invalid_value"),
        ({"messages": ADA, "web_search_options": {}}, 400, "unsupported_parameter"),
        ({"messages": ADA, "stop_token_ids": [10**6]}, 400, "invalid_value"),
        ({"messages": ADA, "n": PLACES + 1}, 400, "invalid_value"),
        ({"messages": [{"role": "user", "content": "word " * 2000}]}, 400, "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": "w" * 100_000}]}, 400, "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": "a\ud800b"}]}, 400, "invalid_value"),
        ({"messages": [{"role": "user", "content": "x" * 300_000}]}, 413, "body_too_large"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_request_is_refused_with_its_reason(
    tiny: Served, body: dict[str, Any], status: int, code: str, stream: bool
) -> None:
    content = json.dumps(body | {"stream": stream}).encode()
    found = tiny.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    assert (found.status_code, found.json()["error"]["code"]) == (status, code)
    assert set(found.json()["error"]) == {"message", "type", "param", "code"}
    (entry,) = tiny.logged(found)
    assert (entry["status"], entry["error"]) == (status, code)


def test_an_image_to_a_text_model_is_refused(tiny: Served) -> None:
    pillow = pytest.importorskip("PIL.Image")
    written = BytesIO()
    pillow.new("RGB", (8, 8)).save(written, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(written.getvalue()).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}]
    found = tiny.post("/v1/chat/completions", {"messages": [{"role": "user", "content": parts}]})
    assert found.status_code == 400
    assert "takes text only" in found.json()["error"]["message"]


def test_audio_to_a_text_model_is_refused(tiny: Served) -> None:
    part = {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}
    found = tiny.post("/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}]})
    error = found.json()["error"]
    assert (found.status_code, error["param"]) == (400, "messages[0].content[0].input_audio.data")
    assert error["message"].endswith("this model takes text only; leave out the audio")
    assert "input_audio" not in tiny.get("/openapi.json").text


def test_bodies_that_are_not_json(tiny: Served) -> None:
    as_json = {"content-type": "application/json"}
    for content, headers, status in (
        (b"{", as_json, 400),
        (b"\xff\xfe", as_json, 400),
        (b"[]", as_json, 400),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b" " * 300_000, as_json, 413),
    ):
        for path in ("/v1/chat/completions", "/v1/completions", "/tokenize"):
            found = tiny.post(path, content=content, headers=headers)
            assert found.status_code == status, (path, content[:9])
            assert found.json()["error"]["message"]

    def endless() -> Iterator[bytes]:
        for _ in range(600):
            yield b" " * 1000

    with tiny.client() as client:
        found = client.post("/tokenize", content=endless(), headers=as_json)
    assert found.status_code == 413
    assert tiny.get("/v1/audio/speech").status_code == 404
    assert tiny.get("/v1/chat/completions").status_code == 405


def test_a_key_is_needed_everywhere_but_for_health(tiny: Served) -> None:
    for key in ("", "wrong", KEYS[0] + "x"):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        for path in ("/v1/models", "/metrics", "/load", "/version", "/tokenizer_info", "/v1/memory", "/nowhere"):
            found = httpx.get(tiny.url + path, headers=headers)
            assert (found.status_code, found.json()["error"]["code"]) == (401, "invalid_api_key")
    assert httpx.get(tiny.url + "/health").json() == {"status": "ready"}
    for method in ("GET", "POST"):
        ping = httpx.request(method, tiny.url + "/ping")
        assert (ping.status_code, ping.content) == (200, b"")


def test_what_others_ask_of_a_server(tiny: Served) -> None:
    """The endpoints of vLLM's server that tools for operators know."""
    assert tiny.get("/version").json() == {"version": __version__}
    assert tiny.get("/load").json() == {"server_load": 0}
    asked = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with tiny.client() as client, client.stream("POST", "/v1/completions", json=asked) as response:
        assert response.status_code == 200
        assert tiny.get("/load").json() == {"server_load": 1}
    assert tiny.is_empty()
    info = tiny.get("/tokenizer_info").json()
    assert info["tokenizer_class"] == type(tokenizer()).__name__
    assert info["chat_template"] == tokenizer().chat_template


# -- many clients --------------------------------------------------------------------------------------------------


def test_a_client_that_leaves_frees_its_blocks(tiny: Served) -> None:
    for _ in range(3):
        with (
            tiny.client() as client,
            client.stream("POST", "/v1/chat/completions", json={"messages": ADA, "stream": True, **LONG}) as answer,
        ):
            lines = answer.iter_lines()
            for _ in range(5):
                next(lines)
            assert tiny.engine.figures.running == 1
        assert tiny.is_empty()
    wait(lambda: [entry["status"] for entry in tiny.log[-3:]] == [499] * 3)
    with tiny.client() as client, pytest.raises(httpx.ReadTimeout):  # the same without a stream
        client.post("/v1/chat/completions", json={"messages": ADA, **LONG}, timeout=0.15)
    assert tiny.is_empty()


def test_beyond_the_queue_clients_are_told_to_come_back(tiny: Served) -> None:
    def ask(number: int) -> tuple[int, str | None]:
        body = {"prompt": [5, number + 10], "max_tokens": 60, "ignore_eos": True, "seed": 1}
        found = tiny.post("/v1/completions", body)
        assert found.status_code in (200, 429)
        if found.status_code == 200:
            assert found.json()["usage"]["completion_tokens"] == 60
        else:
            assert found.json()["error"]["code"] == "queue_full"
        return found.status_code, found.headers.get("retry-after")

    with ThreadPoolExecutor(24) as clients:
        found = list(clients.map(ask, range(24)))
    assert found.count((200, None)) >= PLACES
    refused = [int(retry) for status, retry in found if status == 429 and retry is not None]
    assert len(refused) == 24 - found.count((200, None)) > 0
    assert all(1 <= retry <= 120 for retry in refused)
    assert tiny.is_empty()


def test_a_deadline_ends_an_answer_where_it_is(tiny: Served) -> None:
    body = {"prompt": [5, 6], **LONG, "deadline_seconds": 0.3}
    found = tiny.post("/v1/completions", body).json()
    choice, tokens = found["choices"][0], found["usage"]["completion_tokens"]
    assert choice["finish_reason"] == "deadline"
    assert tokens < 400
    late = tiny.post("/v1/completions", {"prompt": "one", **LONG}, headers={"X-Deadline-Seconds": "1e-9"})
    assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline")
    assert tiny.is_empty()


# -- what is told about it -----------------------------------------------------------------------------------------


def test_the_log_has_a_line_for_each_request_and_no_text(tiny: Served) -> None:
    found = tiny.post("/v1/chat/completions", {"messages": ADA, "max_tokens": 4, "ignore_eos": True})
    (entry,) = tiny.logged(found)
    assert (entry["status"], entry["completion_tokens"], entry["finish_reasons"]) == (200, 4, ["length"])
    assert 0 < entry["prepare_ms"] <= entry["first_token_ms"] <= entry["ms"]
    assert "Ada" not in json.dumps(tiny.log)
    assert not any(key in json.dumps(tiny.log) for key in KEYS)


def test_metrics_and_memory_tell_the_truth(tiny: Served) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    def counted() -> dict[str, float]:
        families = text_string_to_metric_families(tiny.get("/metrics").text)
        return {f"{one.name}{sorted(one.labels.items())}": one.value for family in families for one in family.samples}

    before = counted()
    tiny.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True})
    wait(lambda: counted()["brim_completion_tokens_total[]"] == before["brim_completion_tokens_total[]"] + 4)
    after = counted()
    assert after["brim_prompt_tokens_total[]"] == before["brim_prompt_tokens_total[]"] + 3
    assert after["brim_state[('state', 'ready')]"] == 1
    assert after["brim_kv_blocks[('state', 'held')]"] == 0
    memory = tiny.get("/v1/memory").json()
    assert memory["kv"]["tokens"] == 2048
    assert memory["kv"]["blocks"] == 2048 // 8
    assert memory["kv"]["blocks_held"] == memory["kv"]["held_bytes"] == 0
    assert memory["health"]["status"] == "ready"
    assert memory["requests"]["places"] == PLACES


def test_gateways_find_the_gauges_they_read(tiny: Served) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    def gauges() -> dict[str, Any]:
        families = text_string_to_metric_families(tiny.get("/metrics").text)
        return {one.name: one.samples for one in families if one.name.startswith("vllm:")}

    def value(name: str) -> float:
        (sample,) = gauges()[f"vllm:{name}"]
        return float(sample.value)

    (config,) = gauges()["vllm:cache_config_info"]
    assert (config.labels, config.value) == ({"block_size": "8", "num_gpu_blocks": str(2048 // 8)}, 1)
    with (
        tiny.client() as client,
        client.stream("POST", "/v1/completions", json={"prompt": [5] * 40, "stream": True, **LONG}) as answer,
    ):
        lines = answer.iter_lines()  # kept: a reader that is dropped closes the answer
        assert "choices" in next(lines)
        assert (value("num_requests_running"), value("num_requests_waiting")) == (1, 0)
        assert 5 / 256 <= value("kv_cache_usage_perc") <= 60 / 256
    assert tiny.is_empty()
    assert value("kv_cache_usage_perc") == value("num_requests_running") == 0


def test_events_are_as_the_protocol_wants_them(tiny: Served) -> None:
    with (
        tiny.client() as client,
        client.stream("POST", "/v1/completions", json={"prompt": [5], "stream": True, "max_tokens": 3}) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        found = events(answer)
    assert all(event["object"] == "text_completion" for event in found)
    assert found[-1]["choices"][0]["finish_reason"] in ("stop", "length")


def test_bodies_of_many_messages_hold_up_nobody() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "Hi."}] * 120_000}).encode()
    kind, slowest = {"Content-Type": "application/json"}, 0.0
    with served(engine_of(copy=7, kv_tokens=2048), threads=True) as found:
        with ThreadPoolExecutor(2) as clients, found.client() as canary:
            asked = [clients.submit(found.post, "/v1/chat/completions", content=body, headers=kind) for _ in range(2)]
            while not all(one.done() for one in asked):
                began = time.perf_counter()
                assert canary.get("/health").status_code == 200
                slowest = max(slowest, time.perf_counter() - began)
        for one in asked:
            error = one.result().json()["error"]
            assert (one.result().status_code, error["param"]) == (400, "messages")
            assert error["message"] == "messages: it has 120000 messages; at most 4096 are taken: send fewer"
    assert slowest < 0.5
