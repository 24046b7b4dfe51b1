"""Images and audio of messages, as they were sent: they are decoded where the tokens are made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from brim.engine.media.audio.encoded import ENCODED_FORMATS
from brim.serve.problems import Problem, invalid
from brim.serve.requests import types as t

AUDIO_FORMATS = ("wav", *ENCODED_FORMATS)
CACHE_HINTS = ("cache_control",)  # prefixes are found again without being told
_AUDIO_URI = re.compile(r"data:audio/(?:x-|vnd\.)?([a-z0-9.+-]+);base64,", re.IGNORECASE)
_NAMES = {"wave": "wav", "mpeg": "mp3", "opus": "ogg", "vorbis": "ogg"}  # of formats in data URIs, where they differ


@dataclass(frozen=True, slots=True)
class Image:
    """An image as it was sent, a data URI or a URL, and where: for the message if it is refused."""

    uri: str
    path: str
    kind: ClassVar[str] = "image"  # as templates call it

    @property
    def remote(self) -> bool:
        """Whether it has to be fetched."""
        return self.uri[:8].lower() == "https://"

    def moved(self, uris: Mapping[str, str]) -> Image:
        return replace(self, uri=uris.get(self.uri, self.uri))


@dataclass(frozen=True, slots=True)
class Audio:
    """An audio file as it was sent, in base64, and where."""

    written: str
    path: str
    kind: ClassVar[str] = "audio"

    def moved(self, uris: Mapping[str, str]) -> Audio:
        return self  # it is never fetched


Media = Image | Audio


def _image(uri: str, path: str, model: t.ServedModel) -> Image:
    found = Image(uri, path)
    if not uri.startswith("data:") and not found.remote:
        raise _not_fetched(path, "only data URIs are taken, and https where the server has --allow-remote-media")
    if found.remote and not model.limits.remote_media:
        raise _not_fetched(path, "this server fetches nothing (that needs --allow-remote-media)")
    return found


def _audio(uri: str, path: str, model: t.ServedModel) -> Audio:
    if not uri.startswith("data:"):
        raise _not_fetched(path, "audio is not fetched", "the audio itself, as data:audio/wav;base64,…")
    begin = _AUDIO_URI.match(uri)
    if begin is None:
        raise invalid(path, "a data URI must begin like data:audio/wav;base64,")
    form = begin[1].lower()
    _audio_format(_NAMES.get(form, form), path, model)
    return Audio(uri[begin.end() :], path)


def _audio_format(form: str, path: str, model: t.ServedModel) -> str:
    if form not in AUDIO_FORMATS:
        raise invalid(
            path,
            f"{form!r:.40} is not supported; {', '.join(AUDIO_FORMATS)} are: convert it (ffmpeg -i FILE audio.wav)",
            "unsupported_value",
        )
    return form


def _audio_file(written: str, path: str, model: t.ServedModel) -> Audio:
    return Audio(t.text().convert(written, path, model), path)


def _not_fetched(path: str, why: str, instead: str = "the image itself, as data:image/png;base64,…") -> Problem:
    return Problem(400, f"{path}: {why}; send {instead}", param=path, code="remote_url_refused")


def _image_schema(model: t.ServedModel) -> dict[str, str]:
    return {"type": "string", "pattern": "^(data:|https://)" if model.limits.remote_media else "^data:"}


IMAGE = t.JsonType((str,), _image, _image_schema, missing="it needs a data URI")
_AUDIO = t.JsonType(
    (str,), _audio, lambda model: {"type": "string", "pattern": f"^data:audio/({'|'.join(AUDIO_FORMATS)});base64,"}
)
_FILE = t.JsonType((str,), _audio_file, t.text().schema, missing="it needs a file in base64")
_FORMAT = t.JsonType((str,), _audio_format, lambda model: {"enum": list(AUDIO_FORMATS)})


@dataclass(frozen=True, slots=True)
class AudioFile(t.JsonObject):
    data: Audio = t.required(_FILE)
    format: str = t.required(_FORMAT)

    @property
    def value(self) -> Audio:
        return self.data


IMAGE_URL = t.wrapped(
    "image_url", t.record(t.wrapped("url", IMAGE, IGNORED=("detail",)), needs="a url"), IGNORED=CACHE_HINTS
)
AUDIO_URL = t.wrapped("audio_url", t.record(t.wrapped("url", _AUDIO), needs="a url"), IGNORED=CACHE_HINTS)
INPUT_AUDIO = t.wrapped("input_audio", t.record(AudioFile), IGNORED=CACHE_HINTS)


def offered(part: str, model: t.ServedModel) -> bool:
    """Whether a model takes parts of this type."""
    return (model.images or "image" not in part) and (model.audio or "audio" not in part)
