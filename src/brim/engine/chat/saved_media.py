"""Images and audio of a conversation as entries of a JSON file.

Files are written as they are, with their names where these are known; a path alone is read when it is loaded. What is
in memory is written as the model sees and hears it: an image upright and in colours (PNG), audio as one channel of
floats with its rate.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np

from brim.engine.chat.media_files import MediaFile, held
from brim.engine.media.audio.files import read_audio
from brim.engine.media.reading import read_image
from brim.errors import InvalidRequest

_FILES = (MediaFile, str, Path, bytes)


def image_entry(image: Any) -> dict[str, Any]:
    if isinstance(image, _FILES):
        return _file_entry(image)
    written = io.BytesIO()
    read_image(image, 0).save(written, format="PNG")
    return _file_entry(written.getvalue())


def audio_entry(audio: Any) -> dict[str, Any]:
    if isinstance(audio, _FILES):
        return _file_entry(audio)
    samples, rate = read_audio(audio, 0)
    return {"samples": _base64(np.asarray(samples, "<f4").tobytes()), "rate": rate}


def _file_entry(file: MediaFile | str | Path | bytes) -> dict[str, Any]:
    if isinstance(file, MediaFile):
        return {"path": file.path, "base64": _base64(file.content)}
    return {"base64": _base64(file)} if isinstance(file, bytes) else {"path": str(Path(file).absolute())}


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def image_of(entry: Any) -> Any:
    return _file_of(entry, "images")


def audio_of(entry: Any) -> Any:
    if not isinstance(entry, dict) or "samples" not in entry:
        return _file_of(entry, "audios")
    try:
        written, rate = base64.b64decode(entry["samples"], validate=True), int(entry["rate"])
        return np.frombuffer(written, "<f4"), rate
    except (TypeError, KeyError, ValueError, OverflowError):
        raise InvalidRequest("audios: one has no samples and rate; the file is damaged") from None


def _file_of(entry: Any, field: str) -> Any:
    path = entry.get("path") if isinstance(entry, dict) else None
    if isinstance(path, str) and "base64" not in entry:
        (file,) = held([path], field)
        return file
    try:
        content = base64.b64decode(entry["base64"], validate=True)
        return MediaFile(path, content) if isinstance(path, str) else content
    except (TypeError, KeyError, ValueError):
        raise InvalidRequest(f"{field}: one is neither a path nor base64; the file is damaged") from None
