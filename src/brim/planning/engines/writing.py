"""Small parts that commands are written with."""

from __future__ import annotations

import json
from collections.abc import Mapping

from brim.planning.engines.record import PLAIN, Sizes
from brim.records.model import Dtype, MediaType
from brim.units import ceil_div

_FRACTION_STEPS = 10_000  # of a memory fraction: less than a canary on any device
TORCH_NAMES = {Dtype.BF16: "bfloat16", Dtype.FP16: "float16", Dtype.FP32: "float32"}


def option(name: str, value: object | None) -> list[str]:
    """An option with its value; nothing where there is no value."""
    return [] if value is None else [name, str(value)]


def switch(name: str, on: bool) -> list[str]:
    return [name] if on else []


def as_json(value: object) -> str:
    return json.dumps(value)


def several(ranks: int) -> int | None:
    """The number of GPUs, where there are several."""
    return ranks if ranks > 1 else None


def at_least(part_bytes: int, whole_bytes: int) -> str:
    """A memory fraction, rounded up: it holds the part."""
    return _fraction(ceil_div(part_bytes * _FRACTION_STEPS, whole_bytes))


def at_most(part_bytes: int, whole_bytes: int) -> str:
    """A memory fraction, rounded down: it leaves the rest."""
    return _fraction(part_bytes * _FRACTION_STEPS // whole_bytes)


def _fraction(steps: int) -> str:
    return f"{steps / _FRACTION_STEPS:.4f}"


def converted(sizes: Sizes, names: Mapping[str, str]) -> str | None:
    """The engine's name of the format that it makes from plain weights while it loads them."""
    if sizes.new_weights is None or sizes.checkpoint not in PLAIN:
        return None
    return names.get(sizes.new_weights)


def plain_weights(sizes: Sizes, names: Mapping[Dtype, str] = TORCH_NAMES) -> str | None:
    """The engine's name of a plain type that it must be told."""
    return names[sizes.other_plain_weights] if sizes.other_plain_weights else None


def other_kv(sizes: Sizes, names: Mapping[Dtype, str]) -> str | None:
    """The engine's name of the KV type, where it is not what the engine would take by itself."""
    same = sizes.kv_dtype is sizes.own_kv_dtype and sizes.kv_dtype is not Dtype.FP8
    return None if same else names[sizes.kv_dtype]


def media_notes(sizes: Sizes, engine: str, *, images: bool = False, pixels: bool = False) -> list[str]:
    """A limit that the plan counts on and the command cannot say; `images` and `pixels`: it can say those."""
    limits = []
    if MediaType.IMAGE in sizes.media and sizes.images_per_prompt is not None and not images:
        limits.append(f"{sizes.images_per_prompt} images in a prompt (images-per-prompt)")
    if MediaType.IMAGE in sizes.media and sizes.image_pixels is not None and not pixels:
        limits.append(f"images of {sizes.image_pixels:,} pixels (image-pixels)")
    if MediaType.AUDIO in sizes.media and sizes.audio_seconds is not None:
        limits.append(f"{sizes.audio_seconds} s of audio (audio-seconds)")
    return [f"{engine} has no option for a limit of {limit}: see to it where requests come in" for limit in limits]
