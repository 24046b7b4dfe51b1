"""Files from elsewhere: only what anybody could reach, and never more than was allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from brim.errors import InvalidRequest
from brim.serve.prepare.images import decode_all
from brim.serve.prepare.remote.fetch import RemoteFile, Ways, fetch_all
from brim.serve.prepare.remote.fetching import Fetching
from brim.serve.prepare.remote.public import is_public
from brim.serve.problems import Problem
from brim.serve.requests.chat import read_chat
from brim.serve.requests.types import ServedModel
from brim.serve.settings import RequestLimits
from tests.unit.serve.remote.tls_server import Answer, Elsewhere, elsewhere, endless, file, make_certificate, status
from tests.unit.serve.test_images import png

LIMITS = RequestLimits(image_bytes=100_000, remote_media=True)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


async def fetch(
    ways: Ways, *urls: str, each: int = 100_000, together: int = 150_000, seconds: float = 20.0
) -> list[bytes]:
    files = [RemoteFile(url, f"image {number}") for number, url in enumerate(urls)]
    return await fetch_all(files, ways, each=each, together=together, seconds=seconds)


async def refusal(ways: Ways, *urls: str, seconds: float = 20.0) -> str:
    with pytest.raises(InvalidRequest) as refused:
        await fetch(ways, *urls, seconds=seconds)
    return str(refused.value)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("2606:2800:220:1::1", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("192.168.0.1", False),
        ("172.31.255.255", False),
        ("169.254.169.254", False),  # where clouds keep their keys
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.1.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("fec0::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.215.14", True),
        ("64:ff9b::a00:1", False),  # 10.0.0.1 behind a NAT64
        ("64:ff9b::5db8:d70e", True),
        ("64:ff9b:1::1", False),
        ("2002:7f00:1::1", False),  # 127.0.0.1 over 6to4
    ],
)
def test_an_address_is_public_or_not(address: str, public: bool) -> None:
    assert is_public(address) is public


def test_files_are_fetched_from_the_address_that_was_checked(certificate: Path) -> None:
    async def scenario() -> None:
        answers = {"/a?size=1": file(b"first"), "/b": status("302 Found", location="/c"), "/c": file(b"second")}
        async with elsewhere(certificate, answers) as there:
            found = await fetch(there.ways(), there.url("/a?size=1"), there.url("/b", "other.test"))
        assert found == [b"first", b"second"]
        assert there.asked == ["GET /a?size=1 HTTP/1.1", "GET /b HTTP/1.1", "GET /c HTTP/1.1"]
        assert there.resolved == {"images.test": 1, "other.test": 2}  # once for each request, the redirected one too

    asyncio.run(scenario())


def test_what_is_not_public_is_not_even_connected_to(certificate: Path) -> None:
    async def scenario() -> None:
        answers = {"/": file(b"secret"), "/away": status("307 Away", location="https://inside.test/")}
        async with elsewhere(certificate, answers) as there:
            said = await refusal(there.ways(is_public), there.url("/"))
            assert said.startswith("image 0: images.test is not on the open internet")
            assert "is not on the open internet" in await refusal(Ways(), f"https://127.0.0.1:{there.port}/")
            there.addresses = {"images.test": ["127.0.0.1", "10.0.0.1"], "other.test": ["127.0.0.1"]}
            assert "is not on the open internet" in await refusal(there.ways(), there.url("/"))  # one of them is not
            assert there.asked == []
            there.addresses = {"images.test": ["127.0.0.1"], "inside.test": ["10.0.0.1"]}
            assert "inside.test is not on" in await refusal(there.ways(), there.url("/away"))
            assert there.asked == ["GET /away HTTP/1.1"]

    asyncio.run(scenario())


def test_redirects_are_few_and_stay_with_https(certificate: Path) -> None:
    async def scenario() -> None:
        plain = status("301 Moved", location="http://images.test/")
        nowhere = status("301 Moved", location="//[")
        answers = {"/plain": plain, "/nowhere": nowhere, "/": status("302 Found", location="/")}
        async with elsewhere(certificate, answers) as there:
            assert "only https is fetched, not 'http'" in await refusal(there.ways(), there.url("/plain"))
            assert "which is not a URL" in await refusal(there.ways(), there.url("/nowhere"))
            assert "redirected more than 3 times" in await refusal(there.ways(), there.url("/"))
            assert len(there.asked) == 6

    asyncio.run(scenario())


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
TOO_MUCH: Mapping[str, Answer] = {
    "/promised": file(b"x" * 100_001),
    "/rest": endless(OK + b"\r\n", b"x" * 50_000),
    "/chunks": endless(CHUNKED, b"c350\r\n" + b"x" * 50_000 + b"\r\n"),
    "/crumbs": endless(CHUNKED, b"1;padded=0123456789\r\nx\r\n" * 1000),
    "/size": endless(CHUNKED, b"1" * 50_000),
}


@pytest.mark.parametrize("path", TOO_MUCH)
def test_no_more_is_read_than_was_allowed(certificate: Path, path: str) -> None:
    async def scenario() -> None:
        async with elsewhere(certificate, TOO_MUCH) as there:
            assert "more than the 97.7 KiB that are left" in await refusal(there.ways(), there.url(path))

    asyncio.run(scenario())


def test_all_files_share_the_bytes_and_the_seconds(certificate: Path) -> None:
    async def scenario() -> None:
        answers: dict[str, Answer] = {"/": file(b"x" * 90_000)}
        answers["/drip"] = endless(OK, b"x-more: 1\r\n", pause=0.02)
        async with elsewhere(certificate, answers) as there:
            assert len(await fetch(there.ways(), there.url("/"))) == 1
            assert (await refusal(there.ways(), there.url("/"), there.url("/"))).startswith("image 1: it has more than")
            said = await refusal(there.ways(), there.url("/drip"), seconds=0.3)
            assert "it was not here in the 0.3 s" in said

    asyncio.run(scenario())


def test_who_is_not_who_he_says_is_not_asked(certificate: Path) -> None:
    async def scenario() -> None:
        async with elsewhere(certificate, {"/": file(b"x"), "/gone": status("404 Not Found")}) as there:
            there.addresses = {"images.test": ["127.0.0.1"], "another.test": ["127.0.0.1"]}
            assert "certificate" in await refusal(there.ways(), there.url("/", "another.test"))
            assert "certificate" in await refusal(Ways(there.resolve, lambda address: True), there.url("/"))
            assert there.asked == []
            assert "answered with status 404" in await refusal(there.ways(), there.url("/gone"))
            assert "nowhere.test cannot be found" in await refusal(there.ways(), there.url("/", "nowhere.test"))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://", "names no server"),
        ("https://a:b@images.test/", "a user's name"),
        ("https://images.test:99999/", "is not a URL"),
        ("https://[::1/", "is not a URL"),
        ("https://images.test/a b", "characters of ASCII"),
        ("https://images.test/\u00e9", "characters of ASCII"),
        ("https://images.test/" + "a" * 5000, "at most 4096"),
        ("ftp://images.test/", "only https"),
    ],
)
def test_a_url_that_is_not_fetched(url: str, said: str) -> None:
    async def nobody(host: str, port: int) -> list[str]:
        raise AssertionError("no name is looked up")

    assert said in asyncio.run(refusal(Ways(nobody), url))


def asked_for(*urls: str) -> dict[str, object]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": parts}]}


def test_images_of_a_dialogue_come_like_those_that_were_sent(certificate: Path) -> None:
    async def scenario(there: Elsewhere) -> None:
        fetching = Fetching(partial(ThreadPoolExecutor, 1), there.ways())
        urls = [there.url("/4x3"), there.url("/none"), there.url("/4x3")]
        dialogue = read_chat(asked_for(*urls), ServedModel(longest=1000, limits=LIMITS)).dialogue
        fetched = await fetching.fetched(dialogue, LIMITS)
        fetching.close()
        assert [one.path for one in fetched.images] == [one.path for one in dialogue.images]
        assert decode_all(fetched.images[::2], LIMITS)[fetched.images[0]].size == (4, 3)
        with pytest.raises(InvalidRequest, match=r"content\[1\].*no image that can be read"):
            decode_all(fetched.images, LIMITS)
        assert len(there.asked) == 2  # the same one is fetched once

    async def with_server() -> None:
        async with elsewhere(certificate, {"/4x3": file(png(4, 3)), "/none": file(b"<html>")}) as there:
            await scenario(there)

    asyncio.run(with_server())


def test_the_processes_that_fetch_say_why_not() -> None:
    async def scenario() -> None:
        fetching = Fetching()
        dialogue = read_chat(asked_for("HTTPS://127.0.0.1/a.png"), ServedModel(longest=1000, limits=LIMITS)).dialogue
        with pytest.raises(InvalidRequest, match=r"^messages\[0\].*url: 127\.0\.0\.1 is not on the open"):
            await fetching.fetched(dialogue, LIMITS)
        fetching.close()

    asyncio.run(scenario())


def test_nothing_is_fetched_unless_the_server_was_told_so() -> None:
    with pytest.raises(Problem, match=r"fetches nothing.*--allow-remote-media") as refused:
        read_chat(asked_for("https://images.test/a.png"), ServedModel(longest=1000))
    assert refused.value.code == "remote_url_refused"
