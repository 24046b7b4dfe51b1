"""Media of a prompt, prepared on the host (`Media`), and what a tower makes of a part of them (`Features`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


class MediaKind(StrEnum):
    """What a part of a prompt is that is not text, by the name of the argument that brings it."""

    IMAGE = "images"
    AUDIO = "audios"
    VIDEO = "videos"


@dataclass(frozen=True, slots=True, eq=False)
class MediaPart:
    """The input of one call of a tower (an image, a tile of one, an audio), on the host, and its number of tokens."""

    inputs: Mapping[str, torch.Tensor]
    tokens: int
    kind: MediaKind = MediaKind.IMAGE
    digest: bytes = b""  # of what it shows, where it is known


@dataclass(frozen=True, slots=True, eq=False)
class PromptMedia:
    """The media of a prompt, on the host."""

    parts: tuple[MediaPart, ...]  # in the order of their tokens
    places: np.ndarray  # int64: the place in the prompt of every media token, in order
    positions: np.ndarray | None = None  # int64 [3, prompt]: where M-RoPE sees each token of the prompt
    rope_shift: int = 0  # what is added to the place of a token behind the prompt
    digests: tuple[bytes, ...] = ()  # of what each part shows, or sounds like

    @property
    def ends(self) -> np.ndarray:
        """Media tokens up to the end of each part."""
        return np.cumsum([part.tokens for part in self.parts])


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """The output of a tower for a part: a row for each of its tokens."""

    rows: torch.Tensor
    deep: tuple[torch.Tensor, ...] = ()  # what is added to the first layers' output at the same places

    def __getitem__(self, some: slice) -> Features:
        return Features(self.rows[some], tuple(level[some] for level in self.deep))
