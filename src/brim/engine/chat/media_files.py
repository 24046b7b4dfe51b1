"""Files that are shown or played in a conversation, held as they were when they were given.

Each turn sends the media of all turns that are kept: a file that is deleted, moved or changed later stays what it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from brim.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class MediaFile:
    """A file's name, and what was in it."""

    path: str
    content: bytes = field(repr=False)


def held(media: Iterable[Any], kind: str) -> tuple[Any, ...]:
    """Media of a turn, with what is in those that are paths."""
    return tuple(_read(one, kind) if isinstance(one, (str, PathLike)) else one for one in media)


def _read(path: str | PathLike[str], kind: str) -> MediaFile:
    try:
        return MediaFile(fspath(path), Path(path).read_bytes())
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise InvalidRequest(f"{kind}: {fspath(path)!r} cannot be read ({reason})") from None


def given(medium: Any) -> Any:
    """A medium as an engine takes it."""
    return medium.content if isinstance(medium, MediaFile) else medium
