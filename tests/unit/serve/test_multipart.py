"""Forms with files, read strictly."""

from __future__ import annotations

from contextlib import suppress

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from brim.serve.problems import Problem
from brim.serve.requests.multipart import boundary_of, parse_form

NAMES = some.text("abc[]_", min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(some.dictionaries(NAMES, some.text(max_size=40), max_size=5), some.binary(max_size=300))
def test_what_a_client_sends_is_what_is_read(texts: dict[str, str], content: bytes) -> None:
    request = httpx.Request("POST", "http://x/", data=texts, files={"file": ("a.wav", content)})
    form = parse_form(request.read(), boundary_of(request.headers["content-type"]))
    assert form.files == {"file": content}
    assert {name: sent[0] for name, sent in form.texts.items()} == texts


@settings(max_examples=200, deadline=None)
@given(
    some.binary(max_size=200),
    some.sampled_from([b"", b"--b\r\n", b"--b--", b"\r\n--b\r\nContent-Disposition: form-data"]),
)
def test_any_bytes_are_read_or_refused(noise: bytes, begin: bytes) -> None:
    with suppress(Problem):
        parse_form(begin + noise, b"b")


def part(head: str, body: str = "x") -> bytes:
    return f"--b\r\n{head}\r\n\r\n{body}\r\n--b--\r\n".encode()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (part("Content-Disposition: form-data"), "no name"),
        (part('Content-Disposition: attachment; name="a"'), "no name"),
        (part('Content-Disposition: form-data; name="a"')[:-6], "end is missing"),
        (part('Content-Disposition: form-data; name="a"\r\nContent-Transfer-Encoding: base64'), "another coding"),
        (part('Content-Disposition: form-data; name="a"', "x" * 70_000), "at most 65,536"),
        (part('Content-Disposition: form-data; name="a"\r\nX: ' + "y" * 5000), "too long"),
        (b"--b\r\n" + b"\r\n--b\r\n" * 100 + b"--b--", "more than 64 parts"),
    ],
)
def test_what_is_wrong_is_said(body: bytes, said: str) -> None:
    with pytest.raises(Problem, match=said):
        parse_form(body, b"b")


def test_only_forms_have_a_boundary() -> None:
    assert boundary_of('multipart/form-data; boundary="a b"') == b"a b"
    for wrong in ("", "application/json", "multipart/form-data", "multipart/mixed; boundary=b"):
        with pytest.raises(Problem) as refused:
            boundary_of(wrong)
        assert refused.value.status == 415
