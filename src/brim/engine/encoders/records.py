"""What an encoder is told when it starts (`EncoderSource`), and what it says when it is ready (`TowerFacts`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

MOST_PARTS = 64  # of one batch, however small they are


@dataclass(frozen=True, slots=True)
class TowerFacts:
    """A tower that has run its worst batch."""

    budgets: dict[str, int]  # by kind of media: the elements of a batch that was run
    call_patches: int | None  # of the largest image in it; None: it takes none
    audio_frames: int | None  # of the longest audio
    rows: int  # features of the largest batch
    part_rows: int  # and of the largest part
    width: int  # elements of a feature, all levels together
    levels: int  # of an image: 1, and one more for each of the decoder's first layers that gets its own; of audio 1
    dtype: str
    input_bytes: int  # of the largest batch
    weight_bytes: int
    predicted_bytes: int | None  # of the process, from a trace; None: it could not be traced
    promised_bytes: int
    held_bytes: int  # by the process from now on
    peak_bytes: int  # of the worst batch, beyond the weights
    reserved_bytes: int = 0  # of what is held: by torch's allocator
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> TowerFacts:
        values = {field.name: found[field.name] for field in fields(cls)}
        return cls(**{**values, "warnings": tuple(found["warnings"])})


@dataclass(frozen=True, slots=True)
class EncoderSource:
    """A tower to run, and where."""

    model: str | dict[str, Any]  # as the engine was given it
    load_format: str
    dtype: str
    device: str
    seed: int
    max_length: int | None  # of a request; None: the model's context
    max_batch_tokens: int
    max_image_pixels: int | None
    max_audio_seconds: int | None
    batch: int  # largest images in one call of the tower
    reserve_bytes: int | None = None  # the most that its process may hold; None: what the worst batch takes
    lease: str | None = None  # the device in the ledger of leases; None: nobody else sizes itself there
    role: str = "encoder"
    holds: bool = True  # what the worst batch took; False: it is given back, as by programs that hold nothing
    proven: TowerFacts | None = None  # of the process that this one takes the place of

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> EncoderSource:
        values = {field.name: found[field.name] for field in fields(cls)}
        proven = values["proven"]
        return cls(**{**values, "proven": None if proven is None else TowerFacts.from_json(proven)})
