"""How the models of each family take audio: mel frames and a mask over them, cut into a part for each audio.

Frames of padding are dropped before a tower sees them, except where it takes one length only (Qwen2-Audio).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from brim.engine.media.parts import MediaKind, MediaPart
from brim.engine.media.tensors import host_tensor
from brim.errors import InvalidRequest

PLACEHOLDER = "audio_token"  # the processor's attribute with what a prompt has for an audio


@dataclass(frozen=True, slots=True)
class AudioFamily:
    """How the models of one kind take audio."""

    tokens: Callable[[int], int]  # that so many mel frames become
    mel_bins: int
    mask: str = "feature_attention_mask"  # the name of the mask over frames in the processor's output
    frames_first: bool = False  # frames before mel bins
    length: int | None = None  # frames that the tower always takes, padding included

    def split(self, inputs: Mapping[str, Any]) -> tuple[MediaPart, ...]:
        """A part for each audio of the processor's output."""
        shape = (None, None, self.mel_bins) if self.frames_first else (None, self.mel_bins, self.length)
        features = host_tensor(inputs, "input_features", shape, MediaKind.AUDIO)
        frames = features.shape[1] if self.frames_first else features.shape[2]
        masks = host_tensor(inputs, self.mask, (features.shape[0], frames), MediaKind.AUDIO, integer=True)
        return tuple(
            self._part(one, mask[None], number)
            for number, (one, mask) in enumerate(zip(torch.split(features, 1), masks, strict=True))
        )

    def blank(self, frames: int) -> MediaPart:
        """An audio of so many frames without a sound in it."""
        padded = frames if self.length is None else self.length
        shape = (1, padded, self.mel_bins) if self.frames_first else (1, self.mel_bins, padded)
        mask = (torch.arange(padded) < frames).long()[None]
        return self._part(torch.zeros(shape), mask, 0)

    def frames(self, part: MediaPart) -> int:
        """Mel frames of an audio, without padding."""
        return int(part.inputs[self.mask].sum())

    def _part(self, features: torch.Tensor, mask: torch.Tensor, number: int) -> MediaPart:
        frames = int(mask.sum())
        if not bool(mask[0, :frames].eq(1).all()):
            raise InvalidRequest(f"audios: {self.mask} of audio {number} is not ones for its frames, then zeros")
        tokens = self.tokens(frames) if frames else 0
        if tokens < 1:
            raise InvalidRequest(f"audios: audio {number} has {frames} mel frames, too few for a token; send more")
        if self.length is None:
            features = features[:, :frames] if self.frames_first else features[:, :, :frames]
            mask = mask[:, :frames]
        return MediaPart({"input_features": features, self.mask: mask}, tokens, MediaKind.AUDIO)


def audio_family_of(config: Any) -> AudioFamily | None:
    """None for a model that takes no audio."""
    audio = getattr(config, "audio_config", None)
    if audio is None:
        return None
    match config.model_type:
        case "qwen2_audio":
            return AudioFamily(_quartered, audio.num_mel_bins, length=2 * audio.max_source_positions)
        case "qwen2_5_omni_thinker":
            return AudioFamily(_quartered, audio.num_mel_bins)
        case "qwen3_omni_moe_thinker":
            return AudioFamily(_in_chunks(2 * audio.n_window), audio.num_mel_bins)
        case "gemma4":  # two convolutions divide the mel bins by four, and the projection behind them counts on it
            bins = audio.subsampling_conv_channels[0]
            return AudioFamily(lambda frames: _halved(_halved(frames)), bins, "input_features_mask", frames_first=True)
    return None


def _halved(frames: int) -> int:
    """A convolution with a stride of two."""
    return (frames + 1) // 2


def _quartered(frames: int) -> int:
    """Such a convolution, and an average of whole pairs."""
    return _halved(frames) // 2


def _in_chunks(length: int) -> Callable[[int], int]:
    """Three such convolutions over each chunk of so many frames, and over the rest."""

    def tokens(frames: int) -> int:
        chunks, rest = divmod(frames, length)
        return chunks * _halved(_halved(_halved(length))) + _halved(_halved(_halved(rest)))

    return tokens
