"""The tables of cosines and sines that engines compute for every position when they load a model.

In: the raw config of a language model, and its layers. Out: bytes. Configs spell scaling in two ways (`rope_scaling`,
and `rope_parameters`, which may hold one entry per kind of layer); a config with neither rotates plainly, unless its
family has no rotary embedding at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from brim.records.model import Attention, LatentAttention, LayerSpec, Mixer

_WITHOUT_ROTATION = frozenset({"gpt_bigcode", "granitemoehybrid", "nemotron_h"})
_ELEMENT_BYTES = 2  # engines run models in bf16 or fp16
_LARGEST_FACTOR = 4096
_PER_AXIS = 4  # tables of models that count positions on several axes reach four times as far


def position_table_bytes(config: Mapping[str, Any], layers: Iterable[LayerSpec], positions: int) -> int:
    """All tables of a model: layers that rotate alike share one."""
    if str(config.get("model_type")) in _WITHOUT_ROTATION:
        return 0
    width = max((_rotated_width(layer.mixer) for layer in layers), default=0)
    return sum(
        _rows(scaling, positions)
        * int(width * _share(config, scaling))  # a cosine and a sine for every pair of elements
        * _ELEMENT_BYTES
        for scaling in _scalings(config)
    )


def _rotated_width(mixer: Mixer | None) -> int:
    """The width of a head that rotation works on, where all of it is rotated."""
    match mixer:
        case Attention():
            return mixer.head_dim
        case LatentAttention():
            return mixer.rope_dim
        case _:
            return 0


def _scalings(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """One entry for each table."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    entries = [one for one in found.values() if isinstance(one, dict)] if isinstance(found, dict) else []
    if entries:
        yield from entries
        return
    yield found if isinstance(found, dict) else {}
    if config.get("model_type") == "gemma3_text":  # sliding layers rotate unscaled, with a base of their own
        yield {}


def _share(config: Mapping[str, Any], scaling: Mapping[str, Any]) -> float:
    share = scaling.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    return float(share) if isinstance(share, (int, float)) and 0 < share <= 1 else 1.0


def _rows(scaling: Mapping[str, Any], positions: int) -> int:
    """How many positions a table holds."""
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    factor = scaling.get("factor")
    factor = float(factor) if isinstance(factor, (int, float)) and 0 < factor <= _LARGEST_FACTOR else 1.0
    original = scaling.get("original_max_position_embeddings")
    original = original if isinstance(original, int) and 0 < original <= positions else positions
    if "mrope_section" in scaling:
        return positions * _PER_AXIS
    if kind == "linear":
        return int(positions * factor)
    if kind == "yarn":
        return int(original * factor)
    if kind == "longrope":
        return positions + original
    return positions
