"""pydantic-ai: agents over chat completions and over responses, with typed answers and tools."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.serving import ADA, ADA_ANSWER, KEY, MODEL, ROOM

SETTINGS: Any = {"temperature": 0, "max_tokens": ROOM}


class Weather(BaseModel):
    city: Literal["Paris", "London"]


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel])
def model(url: str, request: pytest.FixtureRequest) -> Any:
    return request.param(MODEL, provider=OpenAIProvider(base_url=f"{url}/v1", api_key=KEY))


def test_an_answer(model: Any) -> None:
    result = Agent(model, model_settings=SETTINGS).run_sync(ADA)
    assert result.output == ADA_ANSWER
    assert result.usage.output_tokens > 0


def test_a_stream(model: Any) -> None:
    async def ask() -> str:
        async with Agent(model, model_settings=SETTINGS).run_stream(ADA) as stream:
            return str(await stream.get_output())

    assert asyncio.run(ask()) == ADA_ANSWER


@pytest.mark.parametrize("way", [ToolOutput, NativeOutput])
def test_a_typed_answer(model: Any, way: Any) -> None:
    agent = Agent(model, output_type=way(Weather), model_settings=SETTINGS, retries=0)
    assert isinstance(agent.run_sync("How is the weather in Paris?").output, Weather)
