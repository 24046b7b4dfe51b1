"""How large the media of a request may be: images by pixels, audio by seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from brim.engine.media.audio.limits import AudioLimits
from brim.engine.media.limits import ImageLimits


@dataclass(frozen=True, slots=True)
class AllowedMedia:
    """Limits of each kind; None where the model takes none of it, or nobody checks."""

    images: ImageLimits | None = None
    audios: AudioLimits | None = None

    def lowered(self, call_patches: int) -> AllowedMedia:
        """The same, with a smaller limit of images where an encoder has found one."""
        return self if self.images is None else replace(self, images=self.images.lowered(call_patches))


UNCHECKED = AllowedMedia()
