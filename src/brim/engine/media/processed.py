"""A processor's output with the digests of its parts, and how those are found."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import torch

from brim.engine.media.parts import MediaKind, MediaPart

DIGEST_BYTES = 16


class Processed(dict[str, Any]):
    """A processor's output, with the digests of its parts: they take long to find where images are large."""

    def __init__(self, output: Mapping[str, Any], digests: Mapping[MediaKind, tuple[bytes, ...]]) -> None:
        super().__init__(output)
        self.digests = digests


def part_digest(part: MediaPart) -> bytes:
    """Differs where any pixel or mel frame does."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for name, tensor in sorted(part.inputs.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return digest.digest()
