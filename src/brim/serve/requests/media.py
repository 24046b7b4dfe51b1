"""Images and audio of messages, as they were sent: they are decoded where the tokens are made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from brim.serve.problems import Problem, invalid
from brim.serve.requests.fields import RequestFields

AUDIO_FORMATS = ("wav",)
_AUDIO_URI = re.compile(r"data:audio/(?:x-|vnd\.)?([a-z0-9.+-]+);base64,", re.IGNORECASE)
_NAMES = {"wave": "wav"}  # of formats in data URIs, where they differ


@dataclass(frozen=True, slots=True)
class Image:
    """An image as it was sent, a data URI or a URL, and where: for the message if it is refused."""

    uri: str
    path: str

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

    def moved(self, uris: Mapping[str, str]) -> Audio:
        return self  # it is never fetched


def read_image(part: RequestFields) -> Image:
    """`{"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}`."""
    where, uri, path = _url(part, "image_url")
    found = Image(uri, path)
    if not uri.startswith("data:") and not found.remote:
        raise not_fetched(path, "only data URIs are taken, and https where the server has --allow-remote-media")
    where.leave_out(["detail"])
    where.refuse_others()
    return found


def read_audio(part: RequestFields) -> Audio:
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


def read_audio_url(part: RequestFields) -> Audio:
    """`{"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,…"}}`."""
    where, uri, path = _url(part, "audio_url")
    if not uri.startswith("data:"):
        raise not_fetched(path, "audio is not fetched", "the audio itself, as data:audio/wav;base64,…")
    begin = _AUDIO_URI.match(uri)
    if begin is None:
        raise invalid(path, "a data URI must begin like data:audio/wav;base64,")
    form = begin[1].lower()
    _check_format(path, _NAMES.get(form, form))
    where.refuse_others()
    return Audio(uri[begin.end() :], path)


def not_fetched(path: str, why: str, instead: str = "the image itself, as data:image/png;base64,…") -> Problem:
    return Problem(400, f"{path}: {why}; send {instead}", param=path, code="remote_url_refused")


def _url(part: RequestFields, name: str) -> tuple[RequestFields, str, str]:
    """(the object around it, the URL, where it is)."""
    where = part.inner(name)
    url = where.text("url") if where is not None else None
    if where is None or url is None:
        raise invalid(part.path(name), "it needs a url", "missing_required_parameter")
    return where, url, where.path("url")


def _check_format(path: str, form: str) -> None:
    if form not in AUDIO_FORMATS:
        raise invalid(
            path,
            f"{form!r:.40} is not supported; {', '.join(AUDIO_FORMATS)} is: convert it (ffmpeg -i FILE audio.wav)",
            "unsupported_value",
        )
