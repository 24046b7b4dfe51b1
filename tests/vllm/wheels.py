"""Single files of wheels on the package index, without downloading the wheels.

The index is the one that pip is set up with. A wheel is a zip: its directory and the wanted members are read by ranges
of bytes. What is not there, or is served without ranges, raises `Unreachable` with the reason.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from html.parser import HTMLParser
from urllib.parse import urldefrag, urljoin

_SECONDS = 30
_BLOCK_BYTES = 1 << 20  # read at once: the directory of a wheel is about as large


class Unreachable(Exception):
    """The index or a wheel cannot be read here."""


def wheels(package: str) -> dict[str, str]:
    """The address of a Linux wheel of every version on the index."""
    index = _index()
    if not index.startswith("http"):
        raise Unreachable("the index is served from files")
    page = f"{index.rstrip('/')}/{package}/"
    links = _Links()
    links.feed(_fetched(urllib.request.Request(page))[0].decode())
    found: dict[str, str] = {}
    for link in links.found:
        address = urldefrag(urljoin(page, link)).url
        name = re.fullmatch(rf"{package}-([0-9.]+)-.*(x86_64|any)\.whl", address.rpartition("/")[2])
        if name:
            found[name[1]] = address
    return found


def _index() -> str:
    asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False)
    if said.returncode == 0:
        return said.stdout.strip()
    from pip._internal.models.index import PyPI  # pip's own default, which it does not tell

    return str(PyPI.simple_url)


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _fetched(request: urllib.request.Request) -> tuple[bytes, int, str]:
    """The body, the status, and which range of how many bytes it is."""
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            return answer.read(), answer.status, answer.headers.get("Content-Range", "")
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise Unreachable(f"the index cannot be read: {error}") from error


class RemoteFile(io.RawIOBase):
    """A file behind an address, for `zipfile`: blocks of it are read when they are needed."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._place = 0
        self._blocks: dict[int, bytes] = {}
        self._size = self._measured()

    def _measured(self) -> int:
        """By a range: a server that ignores it would send everything, so only its answer's head is trusted."""
        request = urllib.request.Request(self._address, headers={"Range": "bytes=0-0"})
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                if answer.status != 206:
                    raise Unreachable("the index serves no ranges of bytes")
                return int(answer.headers["Content-Range"].rpartition("/")[2])
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            raise Unreachable(f"a wheel cannot be read: {error}") from error

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        return self._place

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._place + size)
        found = b""
        while self._place < end:
            number, inside = divmod(self._place, _BLOCK_BYTES)
            part = self._block(number)[inside : inside + end - self._place]
            found += part
            self._place += len(part)
        return found

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            first = number * _BLOCK_BYTES
            last = min(first + _BLOCK_BYTES, self._size) - 1
            request = urllib.request.Request(self._address, headers={"Range": f"bytes={first}-{last}"})
            self._blocks[number] = _fetched(request)[0]
        return self._blocks[number]


def members(address: str, names: list[str]) -> dict[str, str]:
    """The text of those members that a wheel has."""
    with zipfile.ZipFile(RemoteFile(address)) as wheel:  # type: ignore[arg-type]
        there = set(wheel.namelist())
        return {name: wheel.read(name).decode() for name in names if name in there}
