"""Images that were prepared before, found by what was sent: they are neither decoded nor processed again.

In the server's process, for all workers: those are told what a processor has said of an image, and not its pixels,
which stay where they are. Bounded in bytes; what was not used for longest goes first. An image is found by requests of
the same salt only, so nobody can find out by the clock what another has sent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np

from brim.serve.prepare.jobs import Prepared, SeenImage
from brim.serve.requests.dialogue import Dialogue

_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class DialogueImages:
    """A dialogue in which keys stand for the images that are known, and these images."""

    dialogue: Dialogue
    known: dict[str, SeenImage]


class SeenImages:
    """Used in the event loop's thread alone."""

    def __init__(self, most_bytes: int) -> None:
        self.held_bytes = 0
        self._most_bytes = most_bytes
        self._seen: OrderedDict[str, SeenImage] = OrderedDict()

    def find(self, dialogue: Dialogue, keys: dict[str, str]) -> DialogueImages:
        """`keys` has the key of each image's URI."""
        known = {key: self._seen[key] for key in keys.values() if key in self._seen}
        for key in known:
            self._seen.move_to_end(key)
        return DialogueImages(dialogue.with_uris({uri: key for uri, key in keys.items() if key in known}), known)

    def keep(self, key: str, image: SeenImage) -> None:
        if image.size_bytes > self._most_bytes or key in self._seen:
            return
        self._seen[key] = image
        self.held_bytes += image.size_bytes
        while self.held_bytes > self._most_bytes:
            _, oldest = self._seen.popitem(last=False)
            self.held_bytes -= oldest.size_bytes


def keys_of(dialogue: Dialogue, salt: bytes) -> dict[str, str]:
    """A key for each image, by its URI."""
    uris = {image.uri for image in dialogue.images}
    return {uri: f"seen:{blake2b(uri.encode(), key=salt[:64], digest_size=_DIGEST_BYTES).hexdigest()}" for uri in uris}


def with_pixels(prepared: Prepared, images: Sequence[SeenImage]) -> Prepared:
    """A prompt with the pixels of its images in their order; those of a single one are not copied."""
    if not images:
        return prepared
    names = images[0].pixels
    media = dict(prepared.media or {})
    for name in names:
        arrays = [one.pixels[name].array for one in images]
        media[name] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    digests = tuple(digest for one in images for digest in one.digests)
    return replace(prepared, media=media, image_digests=digests, seen=())
