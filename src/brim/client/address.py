"""Where a server is, from what the user wrote."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from brim.errors import InvalidRequest
from brim.suggest import shown

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """A server, and the path that its API is under."""

    host: str
    port: int
    secure: bool = False
    base: str = ""  # before /v1, without a slash at its end

    @property
    def authority(self) -> str:
        """As the `Host` header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.secure else "http"] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.authority}{self.base}"


def parse_url(text: str, what: str = "url") -> Address:
    """The address of a server: its root, or the /v1 that other clients are given."""
    try:
        found = urlsplit(text if "://" in text else f"http://{text}")
        port = found.port
    except ValueError as error:
        raise InvalidRequest(f"{what} '{shown(text)}' is not an address ({error}); {_EXAMPLE}") from None
    _check(found, text, what)
    base = found.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Address(found.hostname or "", port or _PORTS[found.scheme], found.scheme == "https", base)


_EXAMPLE = "write it like http://localhost:8000"


def _check(found: SplitResult, text: str, what: str) -> None:
    if found.scheme not in _PORTS:
        raise InvalidRequest(f"{what} '{shown(text)}' is not http or https; {_EXAMPLE}")
    if not found.hostname or not found.hostname.isascii() or any(mark.isspace() for mark in text):
        raise InvalidRequest(f"{what} '{shown(text)}' names no host; {_EXAMPLE}")
    if found.query or found.fragment or found.username:
        raise InvalidRequest(f"{what} '{shown(text)}' has more than a host, a port and a path; {_EXAMPLE}")
