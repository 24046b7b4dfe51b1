"""One question to a server over HTTP, of a bounded size and time.

In: an address and a key. Out: status and body, or `OSError`. Redirects are not followed: the key is for this server.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import urllib.request

SECONDS = 5.0
LARGEST_ANSWER = 8 << 20
_PIECE = 64 << 10


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    status: int
    body: bytes


def ask(url: str, key: str | None = None, *, seconds: float = SECONDS, most: int = LARGEST_ANSWER) -> ServerAnswer:
    """GET. A server that sends too much, or takes too long for the whole of it, is an `OSError` too."""
    import http.client
    import urllib.error
    import urllib.request

    until = time.monotonic() + seconds
    headers = {"Accept": "text/plain, application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        request = urllib.request.Request(url, headers=headers)
        with _opener().open(request, timeout=seconds) as answer:
            return ServerAnswer(int(answer.status), _whole(answer, until, most))
    except urllib.error.HTTPError as error:
        with error:
            return ServerAnswer(error.code, _whole(error, until, most))
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"{url}: {error}") from None


def _opener() -> urllib.request.OpenerDirector:
    import urllib.request

    class _Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    return urllib.request.build_opener(_Stay)


def _whole(answer: Any, until: float, most: int) -> bytes:
    """All of a body, piece by piece, so that one that drips ends in time."""
    found = bytearray()
    while piece := answer.read1(_PIECE) if hasattr(answer, "read1") else answer.read(_PIECE):
        found += piece
        if len(found) > most:
            raise OSError(f"its answer is larger than {most >> 20} MiB")
        if time.monotonic() > until:
            raise OSError("its answer takes too long")
    return bytes(found)
