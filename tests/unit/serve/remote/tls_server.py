"""A server of images on this machine, with a certificate of its own, and names that lead to it."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from brim.serve.prepare.remote.fetch import Ways

NAMES = ("images.test", "other.test")
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def make_certificate(folder: Path) -> Path:
    """For both names; the key is in the same file."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    made, key = folder / "made.pem", folder / "key.pem"
    names = ",".join(f"DNS:{name}" for name in NAMES)
    how = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={NAMES[0]}"]
    command = ["openssl", "req", "-x509", *how, "-addext", f"subjectAltName={names}", "-keyout", key, "-out", made]
    subprocess.run(command, check=True, capture_output=True)
    made.write_text(made.read_text() + key.read_text())
    return made


@dataclass(slots=True)
class Elsewhere:
    """The server, and the ways to it."""

    port: int
    certificate: Path
    addresses: Mapping[str, Sequence[str]] = field(default_factory=lambda: {name: ["127.0.0.1"] for name in NAMES})
    asked: list[str] = field(default_factory=list)  # request lines
    resolved: Counter[str] = field(default_factory=Counter)

    def url(self, path: str, name: str = NAMES[0]) -> str:
        return f"https://{name}:{self.port}{path}"

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.resolved[host] += 1
        if host not in self.addresses:
            raise OSError("no such name")
        return self.addresses[host]

    def trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate))

    def ways(self, allowed: Callable[[str], bool] = lambda address: address == "127.0.0.1") -> Ways:
        return Ways(self.resolve, allowed, self.trusted)


@asynccontextmanager
async def elsewhere(certificate: Path, answers: Mapping[str, Answer]) -> AsyncIterator[Elsewhere]:
    """Listens until it is not needed any more."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            found.asked.append(head.partition("\r\n")[0])
            await answers[head.split(" ")[1]](writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has seen enough
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    found = Elsewhere(server.sockets[0].getsockname()[1], certificate)
    try:
        yield found
    finally:
        server.close()


def file(content: bytes) -> Answer:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(content), content))

    return write


def status(line: str, **headers: str) -> Answer:
    async def write(writer: asyncio.StreamWriter) -> None:
        said = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 {line}\r\n{said}content-length: 0\r\n\r\n".encode())

    return write


def endless(head: bytes, piece: bytes, pause: float = 0.0) -> Answer:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        for _ in range(10_000):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)

    return write
