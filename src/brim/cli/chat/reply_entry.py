"""A reply as a line of JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brim.engine.chat.reply import Reply
    from brim.engine.chat.turns import Turn


def reply_entry(reply: Reply) -> dict[str, Any]:
    """All fields of the reply; media of evicted turns by name, or by what they are."""
    entry = {field.name: getattr(reply, field.name) for field in fields(reply)}
    return entry | {"evicted": [_turn_entry(turn) for turn in reply.evicted]}


def _turn_entry(turn: Turn) -> dict[str, Any]:
    entry = {field.name: getattr(turn, field.name) for field in fields(turn)}
    return entry | {"images": _names(turn.images), "audios": _names(turn.audios)}


def _names(media: Iterable[Any]) -> list[str]:
    return [_name(medium) for medium in media]


def _name(medium: Any) -> str:
    from brim.engine.chat.media_files import MediaFile

    if isinstance(medium, MediaFile):
        return medium.path
    if isinstance(medium, (str, PathLike)):
        return fspath(medium)
    if isinstance(medium, bytes):
        return f"{len(medium)} bytes"
    return f"{len(medium[0])} samples" if isinstance(medium, tuple) else type(medium).__name__
