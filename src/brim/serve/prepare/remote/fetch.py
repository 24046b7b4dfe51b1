"""One request's images from https servers: URLs in, files out, within bytes and seconds for all of them together.

A name is resolved once. If any of its addresses is not public, nothing is fetched; otherwise the connection is made to
one of the addresses that were checked, so a name that changes in between gains nothing. Redirects are URLs like the
first. Proxies of the environment are not used: they would resolve names again.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

from brim.client.http1 import BadResponse, ResponseHead, ResponseReader, Take, request_bytes
from brim.errors import InvalidRequest, first_line
from brim.serve.prepare.remote.public import is_public
from brim.units import format_bytes

MOST_REDIRECTS = 3
_HTTPS_PORT = 443
_MOST_URL = 4096
_READ_BYTES = 64 << 10
_FRAMING = 2  # a response may have so many times the bytes of its body, for chunks
_PLAIN = re.compile(r"[\x21-\x7e]+")
_REDIRECTS = (301, 302, 303, 307, 308)


async def resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


@dataclass(frozen=True, slots=True)
class Ways:
    """How names become addresses, which of them are allowed, and whose certificates are trusted."""

    resolve: Callable[[str, int], Awaitable[Sequence[str]]] = resolve
    allowed: Callable[[str], bool] = is_public
    trusted: Callable[[], ssl.SSLContext] = ssl.create_default_context


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file, and where it was asked for: for the message if it is refused."""

    url: str
    path: str


async def fetch_all(
    files: Sequence[RemoteFile], ways: Ways, *, each: int, together: int, seconds: float
) -> list[bytes]:
    """All of them, one after the other. `each` and `together` are bytes."""
    found: list[bytes] = []
    until = asyncio.get_running_loop().time() + seconds
    for file in files:
        left = together - sum(map(len, found))
        try:
            async with asyncio.timeout_at(until):
                found.append(await _fetch(file, ways, min(each, left)))
        except TimeoutError:
            raise InvalidRequest(
                f"{file.path}: it was not here in the {seconds:g} s that fetching may take; send the image itself"
            ) from None
    return found


async def _fetch(file: RemoteFile, ways: Ways, most: int) -> bytes:
    url = file.url
    for _ in range(MOST_REDIRECTS + 1):
        place = _read_url(url, file.path)
        addresses = await _addresses(place, ways, file.path)
        head, body = await _get(place, addresses, ways, file.path, most)
        if head.status == 200:
            return body
        target = head.headers.get("location")
        if head.status not in _REDIRECTS or not target:
            raise InvalidRequest(f"{file.path}: {place.hostname} answered with status {head.status}; send the image")
        url = _redirected(url, target, file.path)
    raise InvalidRequest(f"{file.path}: it is redirected more than {MOST_REDIRECTS} times; send the image itself")


def _redirected(url: str, target: str, path: str) -> str:
    try:
        return urljoin(url, target)
    except ValueError:
        raise InvalidRequest(f"{path}: it is redirected to {target!r:.40}, which is not a URL; send it") from None


def _read_url(url: str, path: str) -> SplitResult:
    try:
        found = urlsplit(url)
        port = found.port
    except ValueError:
        raise InvalidRequest(f"{path}: it is not a URL; write it like https://example.com/image.png") from None
    if found.scheme != "https":
        raise InvalidRequest(f"{path}: only https is fetched, not {found.scheme or 'nothing'!r:.20}; send the image")
    if not found.hostname or port == 0:
        raise InvalidRequest(f"{path}: the URL names no server; write it like https://example.com/image.png")
    if found.username is not None or found.password is not None:
        raise InvalidRequest(f"{path}: a URL with a user's name in it is not fetched; send the image itself")
    if len(url) > _MOST_URL or not _PLAIN.fullmatch(url):
        raise InvalidRequest(f"{path}: a URL has at most {_MOST_URL} characters of ASCII; write others like %C3%A9")
    return found


async def _addresses(place: SplitResult, ways: Ways, path: str) -> Sequence[str]:
    """The addresses of a server, all of which may be reached by anybody."""
    assert place.hostname is not None
    try:
        found = await ways.resolve(place.hostname, place.port or _HTTPS_PORT)
    except (OSError, UnicodeError):
        raise InvalidRequest(f"{path}: {place.hostname:.80} cannot be found; send the image itself") from None
    if not found or not all(map(ways.allowed, found)):
        raise InvalidRequest(
            f"{path}: {place.hostname:.80} is not on the open internet, and nothing else is fetched; send the image"
        )
    return found


async def _get(
    place: SplitResult, addresses: Sequence[str], ways: Ways, path: str, most: int
) -> tuple[ResponseHead, bytes]:
    """The response to one request, of at most so many bytes."""
    problem: Exception | None = None
    for address in addresses:
        try:
            reader, writer = await asyncio.open_connection(
                address, place.port or _HTTPS_PORT, ssl=ways.trusted(), server_hostname=place.hostname
            )
        except OSError as error:  # of TLS too
            problem = error
            continue
        try:
            writer.write(_request(place))
            return await _response(reader, path, most)
        except (OSError, BadResponse) as error:
            raise _failed(place, path, error) from None
        finally:
            writer.transport.abort()
    assert problem is not None
    raise _failed(place, path, problem)


def _failed(place: SplitResult, path: str, error: Exception) -> InvalidRequest:
    return InvalidRequest(f"{path}: {place.hostname:.80} gave no answer ({first_line(error):.120}); send the image")


def _request(place: SplitResult) -> bytes:
    target = (place.path or "/") + (f"?{place.query}" if place.query else "")
    host = place.netloc  # without a user's name, and with the port where it is an unusual one
    headers = {"host": host, "accept": "image/*", "user-agent": "brim", "connection": "close"}
    return request_bytes("GET", target, headers, None)


async def _response(reader: asyncio.StreamReader, path: str, most: int) -> tuple[ResponseHead, bytes]:
    body = bytearray()

    def take(piece: bytes) -> None:
        body.extend(piece)

    def begun(head: ResponseHead) -> Take:
        return take

    response, received = ResponseReader(begun), 0
    while not response.done:
        piece = await reader.read(_READ_BYTES)
        if not piece:
            if not response.ended():
                raise BadResponse("the connection was closed in the middle")
            break
        response.feed(piece)
        received += len(piece)
        if len(body) > most or received > _FRAMING * most + _READ_BYTES:
            raise InvalidRequest(
                f"{path}: it has more than the {format_bytes(most)} that are left for images of this request; "
                "choose a smaller one"
            )
    assert response.head is not None
    return response.head, bytes(body)
