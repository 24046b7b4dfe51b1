"""Images and audio of messages, as they were sent: they are decoded where the tokens are made."""

from __future__ import annotations

import re
from dataclasses import dataclass

from brim.serve.asked.fields import Fields
from brim.serve.problems import Problem, invalid

AUDIO_FORMATS = ("wav",)
_AUDIO_URI = re.compile(r"data:audio/(?:x-|vnd\.)?([a-z0-9.+-]+);base64,", re.IGNORECASE)
_NAMES = {"wave": "wav"}  # of formats in data URIs, where they differ


@dataclass(frozen=True, slots=True)
class Image:
    """An image as it was sent, and where: for the message if it is refused."""

    uri: str
    path: str


@dataclass(frozen=True, slots=True)
class Audio:
    """An audio file as it was sent, in base64, and where."""

    written: str
    path: str


def read_image(part: Fields) -> Image:
    """`{"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}`."""
    where, uri, path = _data_uri(part, "image_url", "data:image/png;base64,…")
    where.leave_out(["detail"])
    where.refuse_others()
    return Image(uri, path)


def read_audio(part: Fields) -> Audio:
    """`{"type": "input_audio", "input_audio": {"data": "…", "format": "wav"}}`."""
    where = part.inner("input_audio")
    if where is None:
        raise invalid(part.path("input_audio"), "it needs data and a format", "missing_required_parameter")
    written, form = where.text("data"), where.text("format")
    if not written:
        raise invalid(where.path("data"), "it needs a file in base64", "missing_required_parameter")
    if form is None:
        raise invalid(where.path("format"), "it is missing", "missing_required_parameter")
    _check_format(where.path("format"), form)
    where.refuse_others()
    return Audio(written, where.path("data"))


def read_audio_url(part: Fields) -> Audio:
    """`{"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,…"}}`."""
    where, uri, path = _data_uri(part, "audio_url", "data:audio/wav;base64,…")
    begin = _AUDIO_URI.match(uri)
    if begin is None:
        raise invalid(path, "a data URI must begin like data:audio/wav;base64,")
    form = begin[1].lower()
    _check_format(path, _NAMES.get(form, form))
    where.refuse_others()
    return Audio(uri[begin.end() :], path)


def _data_uri(part: Fields, name: str, example: str) -> tuple[Fields, str, str]:
    """(the object around it, the URI, where it is)."""
    where = part.inner(name)
    uri = where.text("url") if where is not None else None
    if where is None or uri is None:
        raise invalid(part.path(name), "it needs a url", "missing_required_parameter")
    path = where.path("url")
    if not uri.startswith("data:"):
        raise Problem(
            400,
            f"{path}: only data URIs are taken ({example}): this server fetches nothing; send the "
            f"{name.removesuffix('_url')}",
            param=path,
            code="remote_url_refused",
        )
    return where, uri, path


def _check_format(path: str, form: str) -> None:
    if form not in AUDIO_FORMATS:
        raise invalid(
            path,
            f"{form!r:.40} is not supported; {', '.join(AUDIO_FORMATS)} is: convert it (ffmpeg -i FILE audio.wav)",
            "unsupported_value",
        )
