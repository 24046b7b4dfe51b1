"""litellm, which many gateways are made of: chats, streams, tools, text completions."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import litellm
import pytest

from tests.clients.serving import ADA, ADA_ANSWER, KEY, MODEL, ROOM, WEATHER_SCHEMA


@pytest.fixture
def asked(url: str) -> dict[str, Any]:
    return {
        "model": f"openai/{MODEL}",
        "api_base": f"{url}/v1",
        "api_key": KEY,
        "messages": [{"role": "user", "content": ADA}],
        "temperature": 0,
        "max_tokens": 24,
    }


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_a_chat(asked: dict[str, Any], provider: str) -> None:
    answer = litellm.completion(**{**asked, "model": f"{provider}/{MODEL}"})
    assert answer.choices[0].message.content == ADA_ANSWER
    assert answer.usage.completion_tokens > 0


def test_a_stream(asked: dict[str, Any]) -> None:
    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    built = litellm.stream_chunk_builder(chunks)
    assert built is not None
    assert built.choices[0].message.content == ADA_ANSWER
    assert built.usage.completion_tokens > 0


def test_async(asked: dict[str, Any]) -> None:
    answer = asyncio.run(litellm.acompletion(**asked))
    assert answer.choices[0].message.content == ADA_ANSWER


def test_a_call_of_a_tool(asked: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": WEATHER_SCHEMA}}
    answer = litellm.completion(**{**asked, "max_tokens": ROOM}, tools=[tool], tool_choice="required")
    (call,) = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Paris", "London")


def test_a_text_completion(asked: dict[str, Any]) -> None:
    options = {key: asked[key] for key in ("api_base", "api_key", "temperature", "max_tokens")}
    answer = litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt="1 2 3 4", **options)
    assert answer.choices[0].text


def test_a_refusal_is_a_bad_request(asked: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError, match="max_tokens"):
        litellm.completion(**{**asked, "max_tokens": -1})


def test_too_long_an_input_is_told_from_other_refusals(asked: dict[str, Any]) -> None:
    long = [{"role": "user", "content": "one two three " * 2000}]
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**{**asked, "messages": long})
