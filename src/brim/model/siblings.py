"""Models of the catalogue under the names of their siblings.

A base model and its instruct and chat versions have the same layers, so that any of them can be planned with the
catalogue's dimensions. In: "meta-llama/Meta-Llama-3.1-8B", "llama3.1-8b-instruct". Out: an `Entry`, or None. Another
size, version or date, a quantised format, or another organisation is another model.
"""

from __future__ import annotations

import re
from functools import cache

from brim.model.catalogue import CatalogueEntry, entries

_NAME = re.compile(r"[\w. -]+")
_WORDS = re.compile(r"[a-z]+|\d+(?:\.\d+)*[a-z]*")
_TUNING = {"base", "pt", "instruct", "it", "chat", "hf", "think", "thinking"}
_MAKERS = {"meta", "nvidia"}  # written before some of their models' names


def find_sibling(text: str) -> CatalogueEntry | None:
    """The entry with the dimensions of the named model; None where there is none.

    An organisation, where it is given, must be the entry's own. Without one, the catalogue's short names count too, in
    any spelling.
    """
    organisation, slash, name = text.strip().lower().rpartition("/")
    if not _NAME.fullmatch(name) or not name.isascii():
        return None
    if not slash and _words(name) in _by_short_name():
        return _by_short_name()[_words(name)]
    entry = _by_hub_name().get(_without_tuning(name))
    return entry if entry and organisation in ("", _hub_parts(entry)[0]) else None


def _words(name: str) -> tuple[str, ...]:
    """("qwen", "3", "8b") for qwen3-8b, Qwen 3 8B and qwen_3_8b."""
    return tuple(_WORDS.findall(name.lower()))


def _without_tuning(name: str) -> tuple[str, ...]:
    """("llama", "3.1", "8b") for Meta-Llama-3.1-8B-Instruct."""
    words = _words(name)
    of_model = words[1:] if words and words[0] in _MAKERS else words
    return tuple(word for word in of_model if word not in _TUNING)


def _hub_parts(entry: CatalogueEntry) -> tuple[str, str]:
    organisation, _, name = entry.hub_id.lower().partition("/")
    return organisation, name


@cache
def _by_short_name() -> dict[tuple[str, ...], CatalogueEntry]:
    return {_words(entry.name): entry for entry in entries().values()}


@cache
def _by_hub_name() -> dict[tuple[str, ...], CatalogueEntry]:
    return {_without_tuning(_hub_parts(entry)[1]): entry for entry in entries().values()}
