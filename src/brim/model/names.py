"""Names of models as people type and paste them, taken apart: hub ids, addresses, quants of repositories, Ollama's.

In: text that is no path of this machine. Out: a `WrittenName`. Nothing is looked up here: whether there is such a model
is seen by who reads the name. What cannot be a name is an error that says what was read and how to write it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from brim.errors import SourceNotFound
from brim.suggest import shown

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96}")
_TAG = re.compile(r"[A-Za-z0-9][\w.-]{0,95}")
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*://")
_HUBS = ("huggingface.co", "www.huggingface.co", "hf.co")
_OLLAMA = ("ollama.com", "www.ollama.com", "registry.ollama.ai")
_NO_MODELS = ("datasets", "spaces", "collections", "papers", "docs", "blog")
_HOW = "write org/name, org/name:Q4_K_M for a quant of a GGUF repository, or the path of a file or folder"


class NameKind(StrEnum):
    HUB = "hub"  # org/name
    TAGGED = "tagged"  # name:tag, of the catalogue or as Ollama writes it
    PLAIN = "plain"  # of the catalogue


@dataclass(frozen=True, slots=True)
class WrittenName:
    """A name without what was written around it."""

    kind: NameKind
    name: str
    tag: str | None = None  # of a variant: Q4_K_M, or Ollama's 8b-instruct-q4_K_M
    file: str | None = None  # of a repository


def is_address(text: str) -> bool:
    """Whether this is an address of a site, with or without what browsers write before it."""
    bare = text.strip().lower()
    return bool(_SCHEME.match(bare)) or bare.partition("/")[0] in (*_HUBS, *_OLLAMA)


def parse_name(text: str) -> WrittenName:
    """A name of a model, taken apart."""
    text = text.strip()
    bare = _SCHEME.sub("", text, count=1)
    host, _, rest = bare.partition("/")
    if host.lower() in _HUBS and rest:
        return _hub_address(text, rest)
    if host.lower() in _OLLAMA and rest:
        return _tagged(text, rest.removeprefix("library/"), always=True)
    if bare != text:
        raise SourceNotFound(
            f"model '{shown(text)}' is an address of {host[:40]}, and only hub addresses are read; {_HOW}"
        )
    if ":" in text:
        return _tagged(text, text.removeprefix("library/"))
    return WrittenName(NameKind.HUB if HUB_ID.fullmatch(text) else NameKind.PLAIN, text)


def _hub_address(text: str, rest: str) -> WrittenName:
    """org/name, org/name:tag, org/name/tree/main, org/name/blob/main/file, as a browser or Ollama has them."""
    rest = re.split(r"[?#]", rest, maxsplit=1)[0].strip("/")
    parts = rest.split("/")
    if parts[0] in _NO_MODELS or len(parts) < 2:
        raise SourceNotFound(f"model '{shown(text)}' is not the address of a model; {_HOW}")
    named = "/".join(parts[:2])
    if len(parts) == 2:
        return _tagged(text, named) if ":" in named else _hub(text, named)
    if parts[2] not in ("tree", "blob", "resolve", "raw"):
        raise SourceNotFound(f"model '{shown(text)}': '{parts[2][:20]}' of an address is not read; {_HOW}")
    if len(parts) > 3 and parts[3] != "main":
        raise SourceNotFound(
            f"model '{shown(text)}' names the revision '{parts[3][:40]}', and only main is read; leave it out, or "
            "download that revision and give its folder"
        )
    return _hub(text, named, "/".join(parts[4:]) or None)


def _hub(text: str, name: str, file: str | None = None) -> WrittenName:
    if not HUB_ID.fullmatch(name):
        raise SourceNotFound(f"model '{shown(text)}': '{name[:60]}' is not org/name; {_HOW}")
    return WrittenName(NameKind.HUB, name, file=file)


def _tagged(text: str, rest: str, *, always: bool = False) -> WrittenName:
    """name:tag; `always`: it is a name with a tag also where none was written."""
    name, colon, tag = rest.partition(":")
    if (colon or not always) and not _TAG.fullmatch(tag):
        raise SourceNotFound(f"model '{shown(text)}' reads as '{name[:40]}' with the tag '{tag[:40]}'; {_HOW}")
    kind = NameKind.HUB if HUB_ID.fullmatch(name) else NameKind.TAGGED
    if kind is NameKind.TAGGED and not _TAG.fullmatch(name):
        raise SourceNotFound(f"model '{shown(text)}' reads as '{name[:40]}' with the tag '{tag[:40]}'; {_HOW}")
    return WrittenName(kind, name, tag if colon else "latest")
