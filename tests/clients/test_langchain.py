"""langchain-openai: messages, streams, bound tools, structured answers."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from tests.clients.serving import ADA, ADA_ANSWER, KEY, MODEL, ROOM


class Weather(BaseModel):
    """The weather in a city."""

    city: Literal["Paris", "London"]


@pytest.fixture
def chat(url: str) -> ChatOpenAI:
    options: Any = {"temperature": 0, "max_tokens": ROOM, "max_retries": 0}
    return ChatOpenAI(model=MODEL, base_url=f"{url}/v1", api_key=SecretStr(KEY), **options)


def test_an_answer(chat: ChatOpenAI) -> None:
    answer = chat.invoke([("system", "Be kind."), ("human", ADA)])
    assert answer.content == ADA_ANSWER
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0


def test_a_stream_and_a_batch(chat: ChatOpenAI) -> None:
    pieces = list(chat.stream(ADA))
    assert "".join(str(piece.content) for piece in pieces) == ADA_ANSWER
    assert [answer.content for answer in asyncio.run(chat.abatch([ADA] * 3))] == [ADA_ANSWER] * 3


def test_a_bound_tool(chat: ChatOpenAI) -> None:
    answer: Any = chat.bind_tools([Weather], tool_choice="required").invoke("How is the weather in Paris?")
    (call,) = answer.tool_calls
    assert call["name"] == "Weather"
    assert call["args"]["city"] in ("Paris", "London")


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_a_structured_answer(chat: ChatOpenAI, method: Literal["json_schema", "function_calling"]) -> None:
    assert isinstance(chat.with_structured_output(Weather, method=method).invoke(ADA), Weather)


def test_the_responses_api(url: str) -> None:
    options: Any = {"temperature": 0, "max_tokens": 24, "max_retries": 0, "use_responses_api": True}
    chat = ChatOpenAI(model=MODEL, base_url=f"{url}/v1", api_key=SecretStr(KEY), **options)
    assert chat.invoke(ADA).text == ADA_ANSWER
