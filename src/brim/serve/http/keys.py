"""Who asks: API keys, and what keeps the prefixes and the share of one key from another's requests."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest
from typing import TYPE_CHECKING

from brim.guard.shares import ClientShare
from brim.serve.http.reply import HttpReply
from brim.serve.problems import Problem
from brim.serve.settings import is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_TO_ALL = ("/health", "/ping")
_SALT_BYTES = 16
_IPV6_PREFIX = 64  # bits: what one client is given by its provider


@dataclass(frozen=True, slots=True)
class Tenant:
    """One key. Prefixes are found by requests of the same salt only, so one tenant cannot time another's prompts."""

    name: str  # for logs: tells keys apart, and does not tell the key
    salt: bytes
    weight: float = 1.0  # of its share


ANYBODY = Tenant("", b"")


class Keys:
    """Keys are compared as digests, all of them each time: the time taken does not depend on what was sent."""

    def __init__(
        self, keys: Sequence[str], weights: Mapping[str, float] | None = None, secret: bytes | None = None
    ) -> None:
        self._secret = secret or secrets.token_bytes(32)  # so that salts cannot be foreseen
        self._tenants = [(self._digest(key), self._tenant(key, (weights or {}).get(key, 1.0))) for key in keys]

    def _digest(self, key: str) -> bytes:
        return blake2b(key.encode(errors="replace"), key=self._secret).digest()

    def _tenant(self, key: str, weight: float) -> Tenant:
        salt = blake2b(key.encode(), key=self._secret, digest_size=_SALT_BYTES, person=b"salt").digest()
        return Tenant(blake2b(key.encode(), digest_size=4, person=b"name").hexdigest(), salt, weight)

    def tenant(self, key: str) -> Tenant | None:
        """Whose key this is."""
        if not self._tenants:
            return ANYBODY
        sent, found = self._digest(key), None
        for digest, tenant in self._tenants:
            if compare_digest(digest, sent):
                found = tenant
        return found


class KeyCheckedApp:
    """An application behind its keys: everything but what is open to all asks for one, where there are any.

    Where there is none and it listens on loopback only, it must have been asked for by such a name: a web page whose
    own name was made to point to this machine sends that name.
    """

    def __init__(
        self, app: ASGIApp, keys: Keys, *, local_only: bool, open_to_all: Collection[str] = OPEN_TO_ALL
    ) -> None:
        self._app = app
        self._keys = keys
        self._local_only = local_only
        self._open_to_all = open_to_all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._local_only and not is_loopback(_host(scope)):
            problem = Problem(421, f"this server is for this machine only, and was asked for as '{_host(scope):.60}'")
            await HttpReply(send, {}, scope["path"]).problem(problem)
            return
        tenant = ANYBODY if scope["path"] in self._open_to_all else self._keys.tenant(_sent_key(scope))
        if tenant is None:
            problem = Problem(
                401,
                "the API key is missing or wrong; send the server's --api-key as Authorization: Bearer KEY, or as "
                "x-api-key: KEY",
                kind="authentication_error",
                code="invalid_api_key",
            )
            await HttpReply(send, {"www-authenticate": "Bearer"}, scope["path"]).problem(problem)
            return
        scope.setdefault("state", {})["tenant"] = tenant
        await self._app(scope, receive, send)


def share_of(tenant: Tenant, address: str | None) -> ClientShare:
    """A key has one share, wherever it is used; without keys an address has one, or a network of IPv6 addresses."""
    return ClientShare(tenant.name or _network(address or ""), tenant.weight)


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address  # a socket's name, or what a proxy on this machine wrote
    if found.version == 4:
        return str(found)
    mapped = found.ipv4_mapped
    return str(mapped or ipaddress.ip_network((int(found), _IPV6_PREFIX), strict=False))


def _sent_key(scope: Scope) -> str:
    """As OpenAI's clients send it, or Anthropic's."""
    kind, _, key = _header(scope, b"authorization").partition(" ")
    return key.strip() if kind.lower() == "bearer" else _header(scope, b"x-api-key").strip()


def _host(scope: Scope) -> str:
    """The host's name or address, without the port."""
    host = _header(scope, b"host").lower()
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _header(scope: Scope, wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == wanted), "")
