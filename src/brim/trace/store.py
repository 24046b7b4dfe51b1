"""Traced curves on disk, by fingerprint: of the model's dimensions, the phase, and the versions that were traced.

A damaged entry is ignored and traced again. Reading needs no torch.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from brim.records.model import ModelSpec
from brim.records.trace import ActivationCurve, CurvePoint, Phase
from brim.sealed import read_entry, seal, unseal, write_entry
from brim.trace.versions import traced_with

_SHIPPED = Path(__file__).with_name("curves.json")


def fingerprint(spec: ModelSpec, phase: Phase, ranks: int = 1) -> str:
    """A digest of what a curve depends on: the family's code and the dimensions."""
    parts = [spec.family, str(spec.dtype), str(phase), spec.hidden, spec.vocab, spec.logits_softcap]
    parts += [spec.layer_input_width, spec.wide_residual]
    parts += [(repr(layer.mixer), repr(layer.feed_forward), count) for layer, count in spec.layer_groups]
    if phase is Phase.VISION:
        parts += [(tower.hidden, tower.intermediate, tower.layers, tower.merge, tower.output) for tower in spec.towers]
    if ranks > 1:
        parts.append(ranks)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


class CurveStore:
    """A folder of curves."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, print_: str, versions: str) -> Path:
        return self._folder / f"{hashlib.sha256(f'{print_} {versions}'.encode()).hexdigest()[:32]}.json"

    def read(self, spec: ModelSpec, phase: Phase, ranks: int = 1) -> ActivationCurve | None:
        """The curve of a model for the versions installed; None where there is none, or what is there is damaged."""
        versions = traced_with()
        if not versions:
            return None
        print_ = fingerprint(spec, phase, ranks)
        return _curve(read_entry(self._path(print_, versions)), print_)

    def write(self, spec: ModelSpec, curve: ActivationCurve) -> Path:
        """Keep a curve."""
        print_ = fingerprint(spec, curve.phase, curve.ranks)
        path = self._path(print_, curve.versions)
        write_entry(path, _body(curve, print_))
        return path


def shipped_curve(spec: ModelSpec, phase: Phase) -> ActivationCurve | None:
    """The curve shipped with Brim for a model of the catalogue."""
    return _curve(unseal(_shipped().get(fingerprint(spec, phase))), fingerprint(spec, phase))


@cache
def _shipped() -> dict[str, Any]:
    try:
        found = json.loads(_SHIPPED.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found if isinstance(found, dict) else {}


def sealed(spec: ModelSpec, curve: ActivationCurve) -> dict[str, Any]:
    """A curve as an entry of the shipped file."""
    return seal(_body(curve, fingerprint(spec, curve.phase)))


def _body(curve: ActivationCurve, print_: str) -> dict[str, Any]:
    return {"fingerprint": print_, **asdict(curve), "points": [list(asdict(p).values()) for p in curve.points]}


def _curve(body: dict[str, Any] | None, print_: str) -> ActivationCurve | None:
    """An entry as a curve, if it was written for this fingerprint."""
    if body is None or body.get("fingerprint") != print_:
        return None
    points = tuple(CurvePoint(*point) for point in body["points"])
    return ActivationCurve(
        body["model"],
        Phase(body["phase"]),
        body["unit"],
        points,
        body["held_back_error"],
        body["versions"],
        body.get("ranks", 1),
    )
