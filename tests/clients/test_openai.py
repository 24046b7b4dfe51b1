"""The official `openai` package: sync and async, streams, tools, responses, answers parsed into classes, images."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from io import BytesIO
from typing import Any, Literal

import openai
import pytest
from PIL import Image
from pydantic import BaseModel

from tests.clients.serving import ADA, ADA_ANSWER, KEY, MODEL, ROOM, WEATHER_SCHEMA

ASKED: Any = {"model": MODEL, "messages": [{"role": "user", "content": ADA}], "temperature": 0, "max_tokens": 24}
WEATHER: Any = {"name": "weather", "description": "The weather in a city.", "parameters": WEATHER_SCHEMA}


class Weather(BaseModel):
    city: Literal["Paris", "London"]
    degrees: Literal[10, 20]


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    found: Any = client.models.retrieve(MODEL)
    assert (found.id, found.root) == (MODEL, MODEL)  # `root` is what vLLM's and SGLang's clients read


def test_a_wrong_key_is_an_authentication_error(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="wrong") as client, pytest.raises(openai.AuthenticationError):
        client.chat.completions.create(**ASKED)


def test_a_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASKED)
    assert answer.choices[0].message.content == ADA_ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_is_put_together_by_the_client(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(**ASKED, stream_options={"include_usage": True}) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == ADA_ANSWER
    assert final.usage is not None
    assert final.usage.completion_tokens > 0


def test_many_at_once_of_the_async_client(url: str) -> None:
    async def ask() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
            answers = await asyncio.gather(*(client.chat.completions.create(**ASKED) for _ in range(12)))
            pieces = [
                chunk.choices[0].delta.content or ""
                async for chunk in await client.chat.completions.create(**ASKED, stream=True)
            ]
        return [*(answer.choices[0].message.content for answer in answers), "".join(pieces)]

    assert asyncio.run(ask()) == [ADA_ANSWER] * 13


def test_logprobs_of_a_completion(client: openai.OpenAI) -> None:
    whole = client.completions.create(
        model=MODEL, prompt="1 2 3 4 5", max_tokens=2, temperature=0, logprobs=2, echo=True
    )
    scores = whole.choices[0].logprobs
    assert scores is not None
    assert scores.token_logprobs is not None
    assert scores.tokens is not None
    assert scores.token_logprobs[0] is None
    assert all(score is not None and score <= 0 for score in scores.token_logprobs[1:])
    assert "".join(scores.tokens).strip() == whole.choices[0].text  # a first token is shown with its space


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_of_a_tool(client: openai.OpenAI, choice: Any, stream: bool) -> None:
    asked = {**ASKED, "tools": [{"type": "function", "function": WEATHER}], "tool_choice": choice, "max_tokens": ROOM}
    asked["messages"] = [{"role": "user", "content": "How is the weather in Paris?"}]
    if stream:
        with client.chat.completions.stream(**asked) as streamed:
            message: Any = streamed.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.create(**asked).choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "London")
    answered = [
        *asked["messages"],
        {
            "role": "assistant",
            "tool_calls": [call.model_dump(exclude={"function": {"parsed_arguments"}, "index": True})],
        },
        {"role": "tool", "tool_call_id": call.id, "content": "20 degrees"},
    ]
    after = client.chat.completions.create(**{**asked, "messages": answered, "tool_choice": "none"})
    assert after.choices[0].message.content


def test_an_answer_is_parsed_into_a_class(client: openai.OpenAI) -> None:
    asked = {**ASKED, "max_tokens": ROOM, "response_format": Weather}
    parsed = client.chat.completions.parse(**asked).choices[0].message.parsed
    assert isinstance(parsed, Weather)
    with client.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion().choices[0].message.parsed
    assert streamed == parsed


def test_a_class_as_a_tool(client: openai.OpenAI) -> None:
    asked = {**ASKED, "max_tokens": ROOM, "tools": [openai.pydantic_function_tool(Weather)], "tool_choice": "required"}
    calls = client.chat.completions.parse(**asked).choices[0].message.tool_calls
    assert calls
    assert isinstance(calls[0].function.parsed_arguments, Weather)


def test_a_response_and_what_follows_it(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="My name is Ada.", temperature=0, max_output_tokens=24)
    assert first.status == "completed"
    asked: Any = {"input": "What is my name?", "previous_response_id": first.id, "temperature": 0}
    assert "Ada" in client.responses.create(model=MODEL, max_output_tokens=24, **asked).output_text
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_a_response_in_pieces(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input=ADA, temperature=0, max_output_tokens=24) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert "response.output_text.delta" in kinds
    assert final.output_text == ADA_ANSWER


def test_a_response_is_parsed_into_a_class(client: openai.OpenAI) -> None:
    found = client.responses.parse(model=MODEL, input=ADA, text_format=Weather, temperature=0, max_output_tokens=ROOM)
    assert isinstance(found.output_parsed, Weather)


def test_a_response_calls_a_tool(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "strict": True, **WEATHER}
    found = client.responses.create(
        model=MODEL, input=ADA, tools=[tool], tool_choice="required", temperature=0, max_output_tokens=ROOM
    )
    (call,) = [item for item in found.output if item.type == "function_call"]
    assert call.name == "weather"
    assert json.loads(call.arguments)["city"] in ("Paris", "London")


def test_a_refusal_names_the_field(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**ASKED, extra_body={"temprature": 1})
    assert refused.value.param == "temprature"


def test_an_image(vision_url: str) -> None:
    buffer = BytesIO()
    Image.new("RGB", (64, 48), "red").save(buffer, "PNG")
    link = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    part = {"type": "image_url", "image_url": {"url": link}}
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, part]}]
    plain: Any = [{"role": "user", "content": "What is this?"}]
    with openai.OpenAI(base_url=f"{vision_url}/v1", api_key=KEY, max_retries=0) as client:
        seen = client.chat.completions.create(model="brim-tiny-vl", messages=messages, max_tokens=4)
        unseen = client.chat.completions.create(model="brim-tiny-vl", messages=plain, max_tokens=4)
    assert seen.usage is not None
    assert unseen.usage is not None
    assert seen.usage.prompt_tokens > unseen.usage.prompt_tokens + 3
