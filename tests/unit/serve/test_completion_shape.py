"""Answers of `/v1/completions`: a stream and a whole answer say the same."""

from __future__ import annotations

import pytest

from brim.engine.front.answers import Completion, Update
from brim.engine.requests.request import FinishReason
from brim.engine.schedule.events import TokenLogprobs
from brim.serve.prepare.jobs import Prepared
from brim.serve.responses.answers import FinishedAnswer, ResponseHeader
from brim.serve.responses.completion import CompletionFormatter
from brim.serve.responses.details import AnswerDetails
from brim.serve.token_texts import TokenTexts


def shape(
    prompts: tuple[str, ...] = (),
    scored_only: bool = False,
    details: AnswerDetails | None = None,
    by_id: bool = False,
) -> CompletionFormatter:
    return CompletionFormatter(
        ResponseHeader.new("cmpl", "tiny"),
        (Prepared((1, 2)),),
        prompts=prompts,
        answers=2,
        scored=1,
        scored_only=scored_only,
        include_usage=False,
        texts=TokenTexts(None),
        details=details or AnswerDetails(TokenTexts(None), eos_ids=(1,)),
        by_id=by_id,
    )


def test_offsets_of_a_stream_are_those_of_the_whole_answer() -> None:
    scores = [TokenLogprobs(token, -1.0, ()) for token in (7, 123, 5)]
    done = Completion("r", 1, 2, 0, (7, 123, 5), "abc", FinishReason.LENGTH, logprobs=tuple(scores))
    whole = shape().whole([FinishedAnswer(1, done)])["choices"][0]["logprobs"]["text_offset"]
    streamed = shape()
    streamed.events(0, Update("r", 0, 9, "x", TokenLogprobs(9, -1.0, ())))
    chunks = [streamed.events(1, Update("r", 1, score.token, "a", score))[0] for score in scores]
    offsets = [offset for chunk in chunks for offset in chunk["choices"][0]["logprobs"]["text_offset"]]
    assert offsets == whole == [0, len("token_id:7"), len("token_id:7token_id:123")]


@pytest.mark.parametrize("scored_only", [False, True])
def test_a_scored_prompt_is_streamed_before_its_answer(scored_only: bool) -> None:
    """All chunks of an answer together are the whole answer."""
    scores = [TokenLogprobs(token, -1.0, ((token, -1.0),)) for token in (7, 8)]
    prompt = (TokenLogprobs(2, -0.5, ((3, -0.1),)),)
    done = Completion("r", 1, 2, 0, (7, 8), "ab", FinishReason.LENGTH, tuple(scores), prompt)
    updates = [
        Update("r", 1),  # scores of a part of the prompt, which come when all of them do
        Update("r", 1, 7, "a", scores[0], prompt_logprobs=prompt),
        Update("r", 1, 8, "b", scores[1], completion=done),
    ]
    whole = shape(("one",), scored_only).whole([FinishedAnswer(1, done)])["choices"][0]
    streamed = shape(("one",), scored_only)
    events = [*streamed.opening(), *(event for update in updates for event in streamed.events(1, update))]
    choices = [event["choices"][0] for event in events]
    assert "".join(one["text"] for one in choices) == whole["text"]
    assert [one["finish_reason"] for one in choices if one["finish_reason"]] == ["length"]
    parts = [one["logprobs"] for one in choices if one["logprobs"]]
    assert {key: [each for part in parts for each in part[key]] for key in whole["logprobs"]} == whole["logprobs"]
    assert choices[0]["logprobs"]["token_logprobs"] == [None, -0.5]


def test_a_prompt_is_streamed_though_its_answer_ends_without_a_token() -> None:
    done = Completion("r", 0, 2, 0, (), "", FinishReason.DEADLINE)
    (prompt, end) = shape(("one",)).events(0, Update("r", 0, completion=done))
    assert prompt["choices"][0]["text"] == "one"
    assert end["choices"][0]["finish_reason"] == "deadline"
