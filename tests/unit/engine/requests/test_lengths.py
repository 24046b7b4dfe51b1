"""How long a prompt may be: one check, and one text."""

from __future__ import annotations

import pytest

from brim.engine.requests.lengths import check_prompt_length, no_room
from brim.errors import InvalidRequest, PromptTooLong


def test_a_prompt_leaves_room_for_at_least_one_token() -> None:
    check_prompt_length(7, context=8, longest=8)
    with pytest.raises(
        PromptTooLong,
        match=r"^prompt: 8 tokens leave no room in the context of 8 tokens: .* context length; shorten it$",
    ):
        check_prompt_length(8, context=8, longest=8)


def test_where_the_pool_is_smaller_than_the_context_it_says_so_and_what_to_do() -> None:
    with pytest.raises(
        PromptTooLong, match=r"^messages: 4 tokens do not fit the KV pool, which holds 4 .*; send less, or"
    ):
        check_prompt_length(4, context=8, longest=4, field="messages", remedy="send less")


def test_what_is_too_long_before_it_is_tokenised_is_refused_in_the_same_words() -> None:
    error = no_room("input", "its 9 messages", 8, ", of which each takes one", "send fewer")
    said = "input: its 9 messages leave no room in the context of 8 tokens, of which each takes one"
    assert isinstance(error, InvalidRequest)
    assert str(error) == f"{said}: the input is longer than the model's context length; send fewer"
