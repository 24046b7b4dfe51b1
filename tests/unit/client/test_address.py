"""Addresses as people write them."""

from __future__ import annotations

import pytest

from brim.client.address import Address, parse_url
from brim.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "wanted", "shown"),
    [
        ("localhost:8000", Address("localhost", 8000), "http://localhost:8000"),
        ("http://127.0.0.1:8000/v1/", Address("127.0.0.1", 8000), "http://127.0.0.1:8000"),
        ("https://api.example", Address("api.example", 443, True), "https://api.example"),
        ("https://example/llm/v1", Address("example", 443, True, "/llm"), "https://example/llm"),
        ("http://[::1]:8000", Address("::1", 8000), "http://[::1]:8000"),
    ],
)
def test_an_address_is_read(text: str, wanted: Address, shown: str) -> None:
    found = parse_url(text)
    assert (found, str(found)) == (wanted, shown)


@pytest.mark.parametrize("text", ["", "ftp://x", "http://", "http://x:99999", "http://x/?a=1", "http://u@x", "a b"])
def test_what_is_no_address_is_refused_by_its_option(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^url '.*http://localhost:8000$"):
        parse_url(text)
