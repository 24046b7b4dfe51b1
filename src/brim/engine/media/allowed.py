"""How large the media of a request may be: images by pixels, audio by seconds."""

from __future__ import annotations

from dataclasses import dataclass

from brim.engine.media.audio.limits import AudioLimits
from brim.engine.media.limits import ImageLimits


@dataclass(frozen=True, slots=True)
class AllowedMedia:
    """Limits of each kind; None where the model takes none of it, or nobody checks."""

    images: ImageLimits | None = None
    audios: AudioLimits | None = None

    def lowered(self, call_patches: int | None = None, audio_frames: int | None = None) -> AllowedMedia:
        """The same, with smaller limits where an encoder has found them."""
        images, audios = self.images, self.audios
        if images is not None and call_patches is not None:
            images = images.lowered(call_patches)
        if audios is not None and audio_frames is not None:
            audios = audios.lowered(audio_frames)
        return AllowedMedia(images, audios)


UNCHECKED = AllowedMedia()
