"""Block events for gateways: a ZeroMQ publisher that speaks as vLLM's server does, where `--kv-events` is given.

Each message has three parts: the topic, a sequence number (8 bytes, big-endian), and a batch in MessagePack:
`[time, [event, …]]`, with events as arrays that begin with their name. Blocks are named by 64 bits of their digest.
Digests of different API keys differ, so one key's prefixes tell nothing of another's. Subscribers that come late do not
see what was stored before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from brim.engine.kv.events import BlockEvent, BlocksRemoved, BlocksStored
from brim.errors import InvalidRequest
from brim.install import install_command
from brim.records.routing import short_digest
from brim.serve.lifecycle import ServerLifecycle

_EVERY_SECONDS = 0.1
_MEDIUM = "GPU"


def packed(events: Sequence[BlockEvent], block_size: int) -> list[list[Any]]:
    """Events as they are written."""
    found: list[list[Any]] = []
    for event in events:
        if isinstance(event, BlocksStored):
            hashes = [short_digest(one) for one in event.digests]
            parent = None if event.parent is None else short_digest(event.parent)
            found.append(["BlockStored", hashes, parent, list(event.tokens), block_size, None, _MEDIUM])
        elif isinstance(event, BlocksRemoved):
            found.append(["BlockRemoved", [short_digest(one) for one in event.digests], _MEDIUM])
        else:
            found.append(["AllBlocksCleared"])
    return found


class BlockPublisher:
    """Publishes the events of one server's engine."""

    def __init__(self, address: str, topic: str) -> None:
        try:
            import msgpack
            import zmq
        except ImportError as error:
            raise InvalidRequest(f"kv-events needs {error.name}: {install_command('gateway')}") from None
        self._pack = msgpack.packb
        self._topic = topic.encode()
        self._sequence = 0
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise InvalidRequest(f"kv-events {address}: cannot publish there ({error}); write tcp://*:5557") from None

    async def keep_publishing(self, lifecycle: ServerLifecycle) -> None:
        """Until it is cancelled."""
        running = lifecycle.running
        assert running is not None
        while running.serving.alive:
            found = await asyncio.wrap_future(running.serving.call(running.engine.block_events))
            self.send(found, running.engine.settings.block_size)
            await asyncio.sleep(_EVERY_SECONDS)

    def send(self, events: Sequence[BlockEvent], block_size: int) -> None:
        if events:
            batch = self._pack([time.time(), packed(events, block_size)])
            self._socket.send_multipart([self._topic, self._sequence.to_bytes(8, "big"), batch])
            self._sequence += 1

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()
