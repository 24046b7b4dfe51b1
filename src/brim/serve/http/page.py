"""`/`: the page, from files of the package. It asks this server alone, which its headers make sure of."""

from __future__ import annotations

import mimetypes
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.requests import Request

FILES = Path(__file__).parents[1] / "page"
INDEX = "index.html"
_TYPES = {".js": "text/javascript", ".svg": "image/svg+xml"}  # whatever the machine's own table says
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class _PageFile:
    """One file, read once."""

    body: bytes
    kind: str
    tag: str

    @classmethod
    def read(cls, path: Path) -> _PageFile:
        body = path.read_bytes()
        kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        return cls(body, kind, f'"{blake2b(body, digest_size=8).hexdigest()}"')

    async def __call__(self, request: Request) -> Response:
        headers = {**_HEADERS, "ETag": self.tag}
        if request.headers.get("if-none-match") == self.tag:
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.kind, headers=headers)


def page_routes() -> list[Route]:
    """`/` and `/page/NAME` for every file. None of them needs a key: nothing about this server is in them."""
    found = []
    for path in sorted(FILES.iterdir()):
        where = "/" if path.name == INDEX else f"/page/{path.name}"
        found.append(Route(where, _PageFile.read(path).__call__))
    return found
