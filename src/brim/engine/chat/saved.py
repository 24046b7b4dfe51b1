"""A conversation on disk: a JSON file that people can read, checked when it is loaded."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.engine.chat.checks import check_objects, check_text
from brim.engine.chat.conversation import Conversation
from brim.engine.chat.saved_media import audio_entry, audio_of, image_entry, image_of
from brim.engine.chat.saved_params import params_entry, params_of
from brim.engine.chat.turns import ROLES, Turn, exchanges_of
from brim.engine.requests.params import SamplingParams
from brim.errors import InvalidRequest, first_line
from brim.guard.rolling import check_marks

VERSION = 1


@dataclass(frozen=True, slots=True)
class SavedChat:
    """A conversation and its settings; None: the default of the engine that it is loaded into."""

    conversation: Conversation
    rolling_threshold: int | None
    low_water: int | None
    strategy: str
    params: SamplingParams | None = None


def write_chat(path: Path, chat: SavedChat) -> None:
    """All of it or nothing: a temporary file, then a rename."""
    talk = chat.conversation
    entry = {
        "brim_chat": VERSION,
        "rolling_threshold": chat.rolling_threshold,
        "low_water": chat.low_water,
        "strategy": chat.strategy,
        "params": None if chat.params is None else params_entry(chat.params),
        "system": talk.system,
        "summary": talk.summary,
        "tools": [dict(tool) for tool in talk.tools],
        "turns": [_turn_entry(turn) for turn in talk.turns],
    }
    try:
        content = (json.dumps(entry, indent=1, ensure_ascii=False) + "\n").encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"chat {path}: cannot be written as JSON ({first_line(error)})") from None
    try:
        _replace(path, content)
    except OSError as error:
        raise InvalidRequest(f"chat {path}: cannot be written ({error.strerror})") from None


def _replace(path: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
        written = Path(file.name)
        try:
            file.write(content)
            file.flush()
            written.replace(path)
        except BaseException:
            written.unlink()
            raise


def _turn_entry(turn: Turn) -> dict[str, Any]:
    entry: dict[str, Any] = {"role": turn.role, "content": turn.content}
    if turn.images:
        entry["images"] = [image_entry(image) for image in turn.images]
    if turn.audios:
        entry["audios"] = [audio_entry(audio) for audio in turn.audios]
    if turn.tool_calls:
        entry["tool_calls"] = list(turn.tool_calls)
    if turn.pinned:
        entry["pinned"] = True
    return entry


def read_chat(path: Path) -> SavedChat:
    """What was written; anything else is refused by the name of the field."""
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"chat {path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise InvalidRequest(f"chat {path}: is not a saved conversation (no JSON)") from None
    if not isinstance(entry, dict) or "brim_chat" not in entry:
        raise InvalidRequest(f"chat {path}: is not a saved conversation (brim_chat is missing)")
    if entry["brim_chat"] != VERSION:
        raise InvalidRequest(f"chat {path}: brim_chat is {entry['brim_chat']!r}; this version of Brim reads {VERSION}")
    try:
        return _read(_Fields(entry))
    except InvalidRequest as error:
        raise InvalidRequest(f"chat {path}: {error}") from None


@dataclass(frozen=True, slots=True)
class _Fields:
    """A JSON object whose fields are asked for by name and type."""

    found: Mapping[str, Any]

    def get(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        value = self.found.get(name, default)
        if value is None and default is None and name in _OPTIONAL:
            return None
        if not isinstance(value, kind):
            raise InvalidRequest(f"{name} is {value!r:.60}; the file is damaged")
        return value

    def text(self, name: str) -> Any:
        """A text, or None where it may be missing."""
        found = self.get(name, str)
        if found is not None:
            check_text(name, found)
        return found

    def objects(self, name: str) -> tuple[Any, ...]:
        found = tuple(self.get(name, list, []))
        check_objects(name, found)
        return found


_OPTIONAL = ("system", "summary", "rolling_threshold", "low_water", "params")


def _read(fields: _Fields) -> SavedChat:
    threshold, low_water = fields.get("rolling_threshold", int), fields.get("low_water", int)
    check_marks(threshold, low_water)
    params = fields.get("params", dict)
    turns = [_read_turn(entry, number) for number, entry in enumerate(fields.get("turns", list))]
    if turns and turns[0].role != "user":
        raise InvalidRequest(f"turns: the first is of the {turns[0].role}; a conversation begins with the user")
    conversation = Conversation(
        system=fields.text("system"),
        tools=fields.objects("tools"),
        exchanges=exchanges_of(turns),
        summary=fields.text("summary"),
    )
    strategy = fields.get("strategy", str)
    return SavedChat(conversation, threshold, low_water, strategy, None if params is None else params_of(params))


def _read_turn(entry: Any, number: int) -> Turn:
    try:
        if not isinstance(entry, dict):
            raise InvalidRequest(f"it is {type(entry).__name__}, not an object")
        fields = _Fields(entry)
        role = fields.get("role", str)
        if role not in ROLES:
            raise InvalidRequest(f"role is {role!r}; it must be one of {', '.join(ROLES)}")
        return Turn(
            role,
            fields.text("content"),
            tuple(image_of(image) for image in fields.get("images", list, [])),
            fields.objects("tool_calls"),
            fields.get("pinned", bool, False),
            tuple(audio_of(audio) for audio in fields.get("audios", list, [])),
        )
    except InvalidRequest as error:
        raise InvalidRequest(f"turn {number}: {error}") from None
