"""Encoders for an engine: whether a model has towers at all, which processes run them, and how much they keep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.engine.encoders.areas import type_of
from brim.engine.encoders.pool import Encoders
from brim.engine.encoders.records import EncoderSource, TowerFacts
from brim.engine.encoders.tower import towers_of
from brim.engine.media.parts import MediaKind
from brim.engine.settings import PROCESS, EngineSettings
from brim.engine.weights.builtin import BUILTIN_NAME, lacks_weights
from brim.engine.weights.load import LoadedModel, max_positions, read_model
from brim.errors import InvalidRequest
from brim.units import MIB

MOST_CACHE_BYTES = 512 * MIB  # by default


@dataclass(frozen=True, slots=True)
class EncoderPlace:
    """Where an encoder runs, and what it tells its neighbours there."""

    device: str  # as torch writes it
    lease: str | None = None  # the device in the ledger of leases; None: nobody sizes itself there
    owner: str = ""  # behind the name of the towers, for readers of the ledger: "of 4711"


def start_encoders(
    model: str | Path | dict[str, Any] | LoadedModel,
    settings: EngineSettings,
    places: tuple[EncoderPlace, ...],
    *,
    load_format: str,
    dtype: str,
    seed: int,
    holds: bool = True,
) -> Encoders | None:
    """Start them, as the settings say; None where the engine encodes by itself, or the model has no towers.

    `holds` is False where a benchmark wants to see what happens if the worst batch's memory is given back.
    """
    if settings.encoder != PROCESS:
        return None
    if model == BUILTIN_NAME:
        return None
    if isinstance(model, LoadedModel):
        raise InvalidRequest("encoder 'process': give the model as a name or a folder, which other processes can load")
    load_format = "dummy" if lacks_weights(model) else load_format
    _, config = read_model(model, load_format)
    kinds = towers_of(config)
    if not kinds:
        return None
    return Encoders(
        EncoderSource(
            model=str(model) if isinstance(model, Path) else model,
            load_format=load_format,
            dtype=dtype,
            device=place.device,
            seed=seed,
            max_length=settings.max_length or max_positions(config.get_text_config(decoder=True)),
            max_batch_tokens=settings.max_batch_tokens,
            max_image_pixels=settings.max_image_pixels,
            max_audio_seconds=settings.max_audio_seconds,
            batch=settings.encoder_batch,
            reserve_bytes=settings.encoder_reserve,
            lease=place.lease,
            role=_role(kinds, place),
            holds=holds,
        )
        for place in places
    )


def role_of(model: str, load_format: str, place: EncoderPlace) -> str | None:
    """The role there of an encoder that another rank starts; None: the model has no towers."""
    _, config = read_model(model, "dummy" if lacks_weights(model) else load_format)
    kinds = towers_of(config)
    return _role(kinds, place) if kinds else None


def _role(kinds: tuple[MediaKind, ...], place: EncoderPlace) -> str:
    return f"{encoder_name(kinds)} {place.owner}".strip()


def encoder_name(kinds: tuple[MediaKind, ...]) -> str:
    """What neighbours call an encoder of these media."""
    return " and ".join({MediaKind.IMAGE: "vision", MediaKind.AUDIO: "audio"}[kind] for kind in kinds) + " encoder"


def cache_rows(settings: EngineSettings, facts: TowerFacts, max_length: int) -> int:
    """Features that are kept: those of a full batch of the longest prompts, as far as the budget goes."""
    row_bytes = facts.width * type_of(facts.dtype).itemsize
    if settings.feature_cache is not None:
        rows = settings.feature_cache // row_bytes
    else:
        rows = min(MOST_CACHE_BYTES // row_bytes, settings.max_batch * max_length)
    if rows < facts.part_rows:
        raise InvalidRequest(
            f"feature_cache: {rows * row_bytes:,} bytes are {rows:,} features and the largest image or audio has "
            f"{facts.part_rows:,}; give at least {facts.part_rows * row_bytes:,}"
        )
    return rows
