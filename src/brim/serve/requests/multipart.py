"""Forms with files (`multipart/form-data`), read strictly from a body of a bounded size.

In: the bytes of a body, and its Content-Type. Out: the texts and files of its fields. Names of files are dropped, and
nothing is written to disk. What is not as RFC 7578 says is refused: a part without a name, an open end, other codings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from email.message import Message
from email.parser import HeaderParser

from brim.serve.problems import Problem, invalid
from brim.units import KIB

_MOST_PARTS = 64
_MOST_HEAD = 4 * KIB
_MOST_TEXT = 64 * KIB
_LONGEST_BOUNDARY = 70  # as RFC 2046 says


@dataclass(frozen=True, slots=True)
class FormFields:
    texts: dict[str, list[str]] = field(default_factory=dict)  # of each field, all that were sent
    files: dict[str, bytes] = field(default_factory=dict)


def boundary_of(content_type: str) -> bytes:
    """What separates the parts of a form, or a refusal of what is none."""
    head = Message()
    head["content-type"] = content_type
    found = head.get_param("boundary")
    if head.get_content_type() != "multipart/form-data" or not isinstance(found, str):
        raise Problem(415, "the body must be a form: send it with Content-Type: multipart/form-data", code="not_form")
    if not 0 < len(found) <= _LONGEST_BOUNDARY or not found.isascii():
        raise _damaged("its boundary is not one")
    return found.encode()


def parse_form(body: bytes, boundary: bytes) -> FormFields:
    mark = b"--" + boundary
    if not body.startswith(mark):
        body = body[body.find(b"\r\n" + mark) + 2 :] if b"\r\n" + mark in body else b""  # a preamble is nobody's
    if body.count(b"\r\n" + mark) > _MOST_PARTS:
        raise _damaged(f"it has more than {_MOST_PARTS} parts")
    parts = body[len(mark) :].split(b"\r\n" + mark)
    if not body or not parts[-1].startswith(b"--"):
        raise _damaged("its end is missing")
    found = FormFields()
    for part in parts[:-1]:
        _read_part(part, found)
    return found


def _read_part(part: bytes, found: FormFields) -> None:
    head, separator, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    if not separator or not part.startswith(b"\r\n") or len(head) > _MOST_HEAD:
        raise _damaged("a part has no head, or too long a one")
    headers = HeaderParser().parsestr(head.decode("utf-8", errors="replace"))
    name = headers.get_param("name", header="content-disposition")
    if headers.get_content_disposition() != "form-data" or not isinstance(name, str) or not name:
        raise _damaged("a part has no name")
    if headers.get("content-transfer-encoding", "binary").lower() not in ("binary", "8bit", "7bit"):
        raise invalid(f"{name:.60}", "it is sent in another coding; send it as it is")
    if headers.get_param("filename", header="content-disposition") is not None:
        if name in found.files:
            raise invalid(f"{name:.60}", "it was sent twice")
        found.files[name] = content
        return
    if len(content) > _MOST_TEXT:
        raise invalid(f"{name:.60}", f"it has {len(content):,} bytes; at most {_MOST_TEXT:,} are read")
    try:
        found.texts.setdefault(name, []).append(content.decode())
    except UnicodeDecodeError:
        raise invalid(f"{name:.60}", "it is no UTF-8") from None


def _damaged(what: str) -> Problem:
    return Problem(400, f"the form is damaged: {what}", code="invalid_form")
