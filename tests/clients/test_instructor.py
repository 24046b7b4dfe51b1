"""instructor: answers as objects, by tools and by JSON schemas."""

from __future__ import annotations

from typing import Any, Literal

import instructor
import openai
import pytest
from pydantic import BaseModel

from tests.clients.serving import ADA, KEY, MODEL, ROOM


class Weather(BaseModel):
    city: Literal["Paris", "London"]


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA])
def test_an_object(url: str, mode: instructor.Mode) -> None:
    messages: Any = [{"role": "user", "content": ADA}]
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as plain:
        client = instructor.from_openai(plain, mode=mode)
        found = client.create(
            model=MODEL, messages=messages, response_model=Weather, temperature=0, max_tokens=ROOM, max_retries=0
        )
    assert isinstance(found, Weather)
