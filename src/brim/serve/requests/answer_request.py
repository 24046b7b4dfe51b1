"""What a request for answers asks of the engine and of the stream, whatever the endpoint (`AnswerRequest`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b

from brim.engine.requests.params import SamplingParams
from brim.serve.problems import invalid

_SALT_BYTES = 16


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    model: str | None
    params: SamplingParams
    stream: bool
    include_usage: bool
    deadline_seconds: float | None
    priority: int = 0
    continuous_usage: bool = False  # in every event of a stream
    token_ids: bool = False  # those of prompt and answer are part of the answer
    tokens_as_ids: bool = False  # tokens beside log-probabilities are named by their ids
    prompt_scores: int | None = None  # alternatives beside each token of the prompt; None: it is not scored
    request_id: str | None = None  # the client's own, for the answer; None: it gets one
    cache_salt: str | None = None  # prefixes are found by requests of the same only
    bad_words: tuple[str, ...] = ()
    prediction: str | None = None  # a text that the answer may have much of

    def salt(self, tenant: bytes) -> bytes:
        """What the prefixes of this request are kept under: it begins with what is the tenant's."""
        if self.cache_salt is None:
            return tenant
        return tenant + blake2b(self.cache_salt.encode(errors="surrogatepass"), digest_size=_SALT_BYTES).digest()


def sooner(wanted: AnswerRequest, header: str | None) -> AnswerRequest:
    """With the deadline of the header `X-Deadline-Seconds`, where that is sooner."""
    if header is None:
        return wanted
    try:
        seconds = float(header)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise invalid("X-Deadline-Seconds", f"{header!r:.40} is not a positive number of seconds")
    return replace(wanted, deadline_seconds=min(seconds, wanted.deadline_seconds or seconds))
