"""The official `anthropic` package over `/v1/messages`: messages, streams, tools, counted tokens, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.clients.serving import ADA, ADA_ANSWER, KEY, MODEL, ROOM, WEATHER_SCHEMA

MESSAGES: Any = [{"role": "user", "content": ADA}]
GREEDY: Any = {"temperature": 0}  # the API has it, this client does not know it any more
ASKED: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24, "extra_body": GREEDY}
WEATHER: Any = {"name": "weather", "description": "The weather in a city.", "input_schema": WEATHER_SCHEMA}


@pytest.fixture
def client(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as made:
        yield made


def test_a_message(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(**ASKED)
    assert answer.id.startswith("msg_")
    assert (answer.role, answer.stop_reason, answer.stop_sequence) == ("assistant", "end_turn", None)
    (block,) = answer.content
    assert block.type == "text"
    assert block.text == ADA_ANSWER
    assert answer.usage.input_tokens > 0
    assert answer.usage.output_tokens > 0


def test_a_system_prompt_and_parts(client: anthropic.Anthropic) -> None:
    parts: Any = [{"type": "text", "text": "My name is Ada.", "cache_control": {"type": "ephemeral"}}]
    messages: Any = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": [{"type": "text", "text": "Hello Ada."}]},
        {"role": "user", "content": "What is my name?"},
    ]
    system: Any = [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]
    answer = client.messages.create(**{**ASKED, "messages": messages}, system=system)
    assert answer.content[0].type == "text"
    assert "Ada" in answer.content[0].text


def test_it_ends_at_a_length_and_at_a_stop_sequence(client: anthropic.Anthropic) -> None:
    assert client.messages.create(**{**ASKED, "max_tokens": 2}).stop_reason == "max_tokens"
    stopped = client.messages.create(**ASKED, stop_sequences=[" Ada"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " Ada")
    assert stopped.content[0].type == "text"
    assert stopped.content[0].text == "Your name is"


def test_a_stream_is_put_together_by_the_client(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**ASKED) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert {"content_block_start", "content_block_delta", "content_block_stop"} <= set(kinds)
    assert final.content[0].type == "text"
    assert final.content[0].text == ADA_ANSWER
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == client.messages.create(**ASKED).usage.output_tokens


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_of_a_tool(client: anthropic.Anthropic, choice: Any, stream: bool) -> None:
    asked = {**ASKED, "max_tokens": ROOM, "tools": [WEATHER], "tool_choice": choice}
    if stream:
        with client.messages.stream(**asked) as streamed:
            answer = streamed.get_final_message()
    else:
        answer = client.messages.create(**asked)
    assert answer.stop_reason == "tool_use"
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    assert call.name == "weather"
    assert isinstance(call.input, dict)
    assert call.input["city"] in ("Paris", "London")
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "20 degrees"}]}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]},
        {"role": "user", "content": [result]},
    ]
    after = client.messages.create(**{**ASKED, "messages": messages}, tools=[WEATHER], tool_choice={"type": "none"})
    assert after.content[0].type == "text"


def test_tokens_are_counted_as_a_message_counts_them(client: anthropic.Anthropic) -> None:
    counted: Any = {"model": MODEL, "messages": MESSAGES, "tools": [WEATHER], "system": "Be kind."}
    found = client.messages.count_tokens(**counted).input_tokens
    usage = client.messages.create(**ASKED, tools=[WEATHER], system="Be kind.").usage
    read = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    assert found == usage.input_tokens + read
    assert found > client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens


def test_errors_are_the_clients_own(client: anthropic.Anthropic, url: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(**{**ASKED, "extra_body": {"temperature": "warm"}})
    with anthropic.Anthropic(base_url=url, api_key="wrong") as stranger, pytest.raises(anthropic.AuthenticationError):
        stranger.messages.create(**ASKED)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**ASKED, "model": "claude-of-nowhere"})
