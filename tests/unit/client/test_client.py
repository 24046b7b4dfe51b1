"""Requests to a server that answers as it likes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brim.client.address import Address
from brim.client.client import Client

WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlast"


def test_who_leaves_at_the_last_piece_of_an_answer_has_left() -> None:
    """The answer is whole at that moment, and nobody waits for it any more: that is no error of the connection's."""
    failed: list[dict[str, Any]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(WHOLE)
        await writer.drain()

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context))
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        client = Client(Address("127.0.0.1", server.sockets[0].getsockname()[1]))
        asking: asyncio.Task[Any] = asyncio.create_task(client.stream("/", {}, lambda piece: asking.cancel()))  # type: ignore[func-returns-value]
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.sleep(0)
        client.close()
        server.close()

    asyncio.run(scenario())
    assert failed == []
