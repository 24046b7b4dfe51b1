"""The sampling parameters of a request: OpenAI's fields and Brim's own, as the engine takes them."""

from __future__ import annotations

from typing import Any

from brim.engine.requests.params import SamplingParams
from brim.errors import InvalidRequest
from brim.serve.problems import invalid, problem_of
from brim.serve.requests.fields import RequestFields

AS_THEY_ARE = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "n",
    "min_tokens",
    "ignore_eos",
)
HARMLESS = (  # about the caller's account, or hints: they change nothing about an answer
    "user",
    "store",
    "safety_identifier",
    "prompt_cache_key",
    "service_tier",
)


def sampling(fields: RequestFields, **computed: Any) -> SamplingParams:
    """What was asked, and what the endpoint has read in its own way (`max_tokens`, log-probabilities)."""
    wanted = fields.given(*AS_THEY_ARE) | computed
    wanted["stop"] = _stops(fields)
    wanted["stop_token_ids"] = tuple(fields.items("stop_token_ids") or ())
    wanted["logit_bias"] = _biases(fields)
    try:
        return SamplingParams(**wanted)
    except InvalidRequest as error:
        raise problem_of(error) from None


def _stops(fields: RequestFields) -> tuple[Any, ...]:
    stop = fields.raw("stop")
    if stop is None:
        return ()
    if isinstance(stop, str):
        return (stop,)
    if isinstance(stop, list):
        return tuple(stop)
    raise invalid("stop", "must be a string or a list of strings", "invalid_type")


def _biases(fields: RequestFields) -> tuple[tuple[int, float], ...]:
    bias = fields.raw("logit_bias")
    if bias is None:
        return ()
    if not isinstance(bias, dict):
        raise invalid("logit_bias", "it must be an object from token ids to numbers", "invalid_type")
    found = []
    for token, value in bias.items():
        if not token.isdecimal() or len(token) > 10:
            raise invalid("logit_bias", f"{token!r:.40} is not a token id")
        found.append((int(token), value))
    return tuple(found)


def wants_usage(fields: RequestFields, streamed: bool) -> bool:
    """`stream_options.include_usage`: a last event with the counts."""
    options = fields.inner("stream_options")
    if options is None:
        return False
    if not streamed:
        raise invalid("stream_options", "it is for streamed answers; set stream to true, or leave it out")
    wanted = options.flag("include_usage")
    options.leave_out(["include_obfuscation"])
    options.refuse_others()
    return wanted
