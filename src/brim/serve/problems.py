"""What a client is told when its request is refused or fails, in OpenAI's shape, or in Anthropic's at its paths.

In: errors of Brim. Out: a `Problem`, with the status, the field it is about, a code for programs, and the sentence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from brim.errors import BrimError, InputError, MediaUnavailable, PromptTooLong

INVALID = "invalid_request_error"
SERVER = "server_error"
MEDIA_RETRY_SECONDS = 10
ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_FIELD = re.compile(r"([a-z_]+(?:\[\d+\]|\.[a-z_]+)*)(?:: | is |, )")


class Problem(Exception):
    """A request that is not answered, and why."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        closes: bool = False,
    ) -> None:
        """`closes`: the rest of the request is not read, so the connection ends."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.closes = closes

    @property
    def body(self) -> dict[str, Any]:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}

    def body_at(self, path: str, request_id: str | None = None) -> dict[str, Any]:
        """In the shape of the API that this path belongs to."""
        if not path.startswith(ANTHROPIC_PATH):
            return self.body
        error = {"type": _ANTHROPIC_KINDS.get(self.status, INVALID if self.status < 500 else "api_error")}
        return {"type": "error", "error": error | {"message": self.message}, "request_id": request_id}

    @property
    def headers(self) -> Mapping[str, str]:
        found = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return found | {"Connection": "close"} if self.closes else found


def invalid(param: str, problem: str, code: str = "invalid_value") -> Problem:
    """A field that is wrong."""
    return Problem(400, f"{param}: {problem}", param=param, code=code)


def media_unavailable(said: str) -> Problem:
    """No encoder runs at present, and one is tried again every few seconds."""
    return Problem(503, said, kind=SERVER, code="media_unavailable", retry_after=MEDIA_RETRY_SECONDS)


def problem_of(error: BrimError) -> Problem:
    """An error of the engine as the client's; its messages begin with the field that they are about."""
    said = str(error)
    if isinstance(error, MediaUnavailable):
        return media_unavailable(said)
    if not isinstance(error, InputError):
        return Problem(503, said, kind=SERVER, code="engine_unavailable")
    found = _FIELD.match(said)
    code = "context_length_exceeded" if isinstance(error, PromptTooLong) else "invalid_value"
    return Problem(400, said, param=found[1] if found else None, code=code)
