"""Traced curves on disk, by fingerprint: of the model's dimensions, the phase, and the versions that were traced.

Writing is atomic (a temporary file, then a rename), so that parallel processes never see half an entry. An entry that
does not read back as what was written is dropped and traced again, never trusted. Reading needs no torch.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from brim.records.model import ModelSpec
from brim.records.trace import ActivationCurve, CurvePoint, Phase
from brim.trace.versions import traced_with

_SHIPPED = Path(__file__).with_name("curves.json")


def fingerprint(spec: ModelSpec, phase: Phase) -> str:
    """A digest of what decides a curve: the family's code and the dimensions, whatever file they came from."""
    parts = [spec.family, str(spec.dtype), str(phase), spec.hidden, spec.vocab, spec.logits_softcap]
    parts += [spec.layer_input_width, spec.wide_residual]
    parts += [(repr(layer.mixer), repr(layer.feed_forward), count) for layer, count in spec.layer_groups]
    if phase is Phase.VISION:
        parts += [(tower.hidden, tower.intermediate, tower.layers, tower.merge, tower.output) for tower in spec.towers]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


class CurveStore:
    """A folder of curves."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, spec: ModelSpec, phase: Phase, versions: str) -> Path:
        digest = hashlib.sha256(f"{fingerprint(spec, phase)} {versions}".encode()).hexdigest()[:32]
        return self._folder / f"{digest}.json"

    def read(self, spec: ModelSpec, phase: Phase) -> ActivationCurve | None:
        """The curve of a model for the versions installed; None where there is none, or what is there is damaged."""
        versions = traced_with()
        if not versions:
            return None
        try:
            raw = json.loads(self._path(spec, phase, versions).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return _verified(raw, fingerprint(spec, phase))

    def write(self, spec: ModelSpec, curve: ActivationCurve) -> Path:
        """Keep a curve."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(spec, curve.phase, curve.versions)
        body = _body(curve, fingerprint(spec, curve.phase))
        with tempfile.NamedTemporaryFile("w", dir=self._folder, suffix=".tmp", delete=False, encoding="utf-8") as file:
            json.dump({**body, "checksum": _checksum(body)}, file)
        Path(file.name).replace(path)
        return path


def shipped_curve(spec: ModelSpec, phase: Phase) -> ActivationCurve | None:
    """The curve that comes with Brim for a model of the catalogue's dimensions."""
    return _verified(_shipped().get(fingerprint(spec, phase)), fingerprint(spec, phase))


@cache
def _shipped() -> dict[str, Any]:
    try:
        found = json.loads(_SHIPPED.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found if isinstance(found, dict) else {}


def sealed(spec: ModelSpec, curve: ActivationCurve) -> dict[str, Any]:
    """A curve as an entry of the shipped file."""
    body = _body(curve, fingerprint(spec, curve.phase))
    return {**body, "checksum": _checksum(body)}


def _body(curve: ActivationCurve, print_: str) -> dict[str, Any]:
    return {"fingerprint": print_, **asdict(curve), "points": [list(asdict(p).values()) for p in curve.points]}


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def _verified(raw: Any, print_: str) -> ActivationCurve | None:
    """An entry as a curve, if it is exactly what was written for this fingerprint."""
    if not isinstance(raw, dict) or raw.get("fingerprint") != print_:
        return None
    body = {name: value for name, value in raw.items() if name != "checksum"}
    if raw.get("checksum") != _checksum(body):
        return None
    points = tuple(CurvePoint(*point) for point in body["points"])
    return ActivationCurve(
        body["model"], Phase(body["phase"]), body["unit"], points, body["held_back_error"], body["versions"]
    )
