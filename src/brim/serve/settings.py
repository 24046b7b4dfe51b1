"""How a server is set up (`ServeSettings`), and what it takes at most (`Limits`)."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

from brim.errors import InvalidRequest
from brim.units import KIB, MIB

DEFAULT_QUEUE = 256
DEFAULT_MESSAGES = 4096
DEFAULT_MEDIA_CACHE = 512 * MIB
LOCAL_NAMES = ("localhost", "ip6-localhost")


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one request may bring."""

    body_bytes: int = 16 * MIB
    body_seconds: float = 30.0  # for the body to come, and a second more for each of
    body_rate: int = 16 * KIB  # bytes
    messages: int = DEFAULT_MESSAGES  # of a conversation, and as many parts and calls in them
    image_bytes: int = 8 * MIB  # of a file, before it is decoded
    image_pixels: int = 1 << 25  # of all images, read from their headers before they are decoded
    images: int = 16
    audio_bytes: int = 10 * MIB  # of a file: five minutes of 16 bits at 16 kHz
    audio_seconds: float = 1800.0  # of all audio, read from headers before anything is decoded
    audios: int = 16
    remote_media: bool = False  # images may be https URLs, which are fetched
    fetch_seconds: float = 10.0  # for all images of a request

    def __post_init__(self) -> None:
        if self.messages < 1:
            raise InvalidRequest(f"max-messages is {self.messages}; it must be at least 1")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What clients may hold open, and for how long."""

    connections: int = 1024  # at once
    header_bytes: int = 32 * KIB  # of a request, its first line included
    headers: int = 100
    header_seconds: float = 10.0  # for them to come, from their first byte, or from the start of the connection
    idle_seconds: int = 75  # between requests
    send_seconds: float = 60.0  # that a client may read nothing of what is ready for it

    def __post_init__(self) -> None:
        if self.connections < 1:
            raise InvalidRequest(f"max-connections is {self.connections}; it must be at least 1")
        for name in ("header_seconds", "idle_seconds", "send_seconds"):
            check_seconds(name.replace("_", "-"), getattr(self, name))


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """A server: where it listens, who may ask, and how much."""

    model_name: str
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    key_weights: Mapping[str, float] = field(default_factory=dict)  # of keys whose weight is not 1
    salt_secret: bytes | None = None  # of the salts of keys: replicas have the same one; None: made at random
    insecure: bool = False
    lenient: bool = False  # unknown fields of bodies are ignored with a warning, not refused
    max_queue: int = DEFAULT_QUEUE
    max_per_key: int | None = None  # answers of a key, or of an address where there are no keys; None: any number
    drain_seconds: float = 60.0
    kv_events: str | None = None  # where block events are published for gateways, as ZeroMQ writes it
    kv_events_topic: str = ""
    tool_parser: str = "auto"  # how the model writes calls (`brim.serve.parse.table`)
    reasoning_parser: str = "auto"
    limits: RequestLimits = field(default_factory=RequestLimits)
    connection_limits: ConnectionLimits = field(default_factory=ConnectionLimits)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InvalidRequest(f"port is {self.port}; it must be from 0 (any that is free) to 65535")
        if self.max_queue < 0:
            raise InvalidRequest(f"max-queue is {self.max_queue}; it must be at least 0")
        if self.max_per_key is not None and self.max_per_key < 1:
            raise InvalidRequest(f"max-per-key is {self.max_per_key}; it must be at least 1")
        if not 0 <= self.drain_seconds < float("inf"):
            raise InvalidRequest(f"drain-seconds is {self.drain_seconds}; it must be a number of at least 0")
        check_seconds("body-seconds", self.limits.body_seconds)
        _check_keys(self.api_keys)
        if not self.api_keys and not self.insecure and not is_loopback(self.host):
            raise InvalidRequest(
                f"host {self.host} can be reached from other machines, and there is no api-key; give --api-key KEY, "
                "or say --insecure if everybody who can reach it may use it"
            )


def check_seconds(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise InvalidRequest(f"{name} is {value}; it must be a number above 0")


def _check_keys(keys: tuple[str, ...]) -> None:
    """Refuse keys that no header could bring."""
    for key in keys:
        if not key:
            raise InvalidRequest("api-key is empty; give one that nobody guesses, or none")
        if not key.isascii() or not key.isprintable() or key != key.strip():
            raise InvalidRequest("api-key has characters that headers do not carry; write ASCII, without outer spaces")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    if host in LOCAL_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
