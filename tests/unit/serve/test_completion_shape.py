"""Answers of `/v1/completions`: a stream and a whole answer say the same."""

from __future__ import annotations

from brim.engine.front.answers import Completion, Update
from brim.engine.requests.request import FinishReason
from brim.engine.schedule.events import TokenLogprobs
from brim.serve.prepare.jobs import Prepared
from brim.serve.shape.answers import Ended, Head
from brim.serve.shape.completion import CompletionShape
from brim.serve.token_texts import TokenTexts


def shape() -> CompletionShape:
    return CompletionShape(
        Head.new("cmpl", "tiny"),
        (Prepared((1, 2)),),
        prompts=(),
        answers=2,
        scored=True,
        scored_only=False,
        include_usage=False,
        texts=TokenTexts(None),
    )


def test_offsets_of_a_stream_are_those_of_the_whole_answer() -> None:
    scores = [TokenLogprobs(token, -1.0, ()) for token in (7, 123, 5)]
    done = Completion("r", 1, 2, 0, (7, 123, 5), "abc", FinishReason.LENGTH, logprobs=tuple(scores))
    whole = shape().whole([Ended(1, done)])["choices"][0]["logprobs"]["text_offset"]
    streamed = shape()
    streamed.events(0, Update("r", 0, 9, "x", TokenLogprobs(9, -1.0, ())))
    chunks = [streamed.events(1, Update("r", 1, score.token, "a", score))[0] for score in scores]
    offsets = [offset for chunk in chunks for offset in chunk["choices"][0]["logprobs"]["text_offset"]]
    assert offsets == whole == [0, len("token_id:7"), len("token_id:7token_id:123")]
