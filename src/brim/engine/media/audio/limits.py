"""The longest audio that a request may have: the limit for requests, and the audio that the fit's worst step encodes.

In: a model's config, its feature extractor's file if the folder has one, what the user allows, and the context. Out:
`AudioLimits`, and the longest `MediaPart` for a call of the tower. It is silent: silence takes as much memory as sound.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from brim.engine.media.audio.families import AudioFamily
from brim.engine.media.parts import MediaPart
from brim.engine.weights.load import LoadedModel
from brim.errors import InputError, InvalidRequest
from brim.model.config import read_config
from brim.model.jsonfile import read_object
from brim.records.model import MediaType

_SAMPLING_RATE, _HOP_LENGTH = 16_000, 160  # of all feature extractors here, where their file does not say


@dataclass(frozen=True, slots=True)
class AudioLimits:
    """How long an audio may be, in mel frames."""

    frames: int
    source: str  # where the limit comes from
    frames_per_second: float

    @property
    def seconds(self) -> float:
        return self.frames / self.frames_per_second

    def lowered(self, frames: int) -> AudioLimits:
        """The same, with a smaller limit where an encoder has found one."""
        return self if frames >= self.frames else replace(self, frames=frames, source="the encoder's reserve")

    def check_seconds(self, named: str, seconds: float) -> None:
        """Refuse a longer audio: the processor would cut it without a word."""
        if seconds > self.seconds:
            raise InvalidRequest(
                f"{named} lasts {seconds:.2f} seconds, more than the {self.seconds:g} of {self.source}; "
                "send a shorter one, or parts of it"
            )

    def check_frames(self, number: int, frames: int) -> None:
        """Refuse more frames in the processor's output than the fit validated."""
        if frames > self.frames:
            raise InvalidRequest(
                f"audios: audio {number} has {frames} mel frames ({frames / self.frames_per_second:.2f} seconds), more "
                f"than the {self.frames} of {self.source}; send a shorter one, or parts of it"
            )


def find_audio_limits(
    loaded: LoadedModel, family: AudioFamily, max_seconds: float | None, max_length: int
) -> AudioLimits:
    """Those of a loaded model."""
    return audio_limits_of(loaded.full_config, loaded.folder, family, max_seconds, max_length)


def audio_limits_of(
    config: Any, folder: Path | None, family: AudioFamily, max_seconds: float | None, max_length: int
) -> AudioLimits:
    """The user's limit or the model's, whichever is shorter; where the model has none, what fits the context."""
    extractor = _extractor_file(folder)
    per_second = _number(extractor, "sampling_rate", _SAMPLING_RATE) / _number(extractor, "hop_length", _HOP_LENGTH)
    limits = _own_limits(config, family, extractor, per_second)
    if limits is None:
        limits = AudioLimits(_most_frames(family, max_length, 64 * max_length), "the context", per_second)
    if max_seconds is None or max_seconds >= limits.seconds:
        return limits
    return AudioLimits(int(max_seconds * per_second), "max_audio_seconds", per_second)


def longest_part(family: AudioFamily, limits: AudioLimits, most_tokens: int) -> MediaPart | None:
    """The longest audio that makes at most so many tokens; None where every audio is refused."""
    frames = _most_frames(family, most_tokens, limits.frames)
    return family.blank(frames) if frames and family.tokens(frames) else None


def _most_frames(family: AudioFamily, tokens: int, most: int) -> int:
    """The most frames, up to a limit, that become at most so many tokens."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if family.tokens(middle) <= tokens else (low, middle - 1)
    return low


def _extractor_file(folder: Path | None) -> Mapping[str, Any]:
    """The feature extractor's settings, from where `transformers` reads them; empty where there are none."""
    if folder is None:
        return {}
    nested, own = folder / "processor_config.json", folder / "preprocessor_config.json"
    if nested.is_file() and isinstance(found := read_object(nested).get("feature_extractor"), dict):
        return found
    return read_object(own) if own.is_file() else {}


def _own_limits(
    config: Any, family: AudioFamily, extractor: Mapping[str, Any], per_second: float
) -> AudioLimits | None:
    """The length of the tower's input, else the planner's limit, which knows the processor's."""
    if family.length is not None:
        return AudioLimits(family.length, "the model's tower", per_second)
    with suppress(InputError):  # a config the planner does not read
        spec = read_config(config.to_dict(), name="engine", processor=extractor)
        limits = next((tower.limits for tower in spec.towers if tower.media is MediaType.AUDIO), None)
        if limits is not None and limits.max_seconds:
            return AudioLimits(int(limits.max_seconds * per_second), limits.source, per_second)
    return None


def _number(extractor: Mapping[str, Any], name: str, default: int) -> int:
    value = extractor.get(name, default)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default
