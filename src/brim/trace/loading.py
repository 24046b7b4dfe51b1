"""Any model that a user may name: with Brim's own reader for its family, or from its `transformers` class.

Torch is imported for the second kind only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brim.model import source
from brim.model.families.multimodal import Multimodal
from brim.records.model import ModelSpec


def load_model(name: str) -> ModelSpec:
    """A spec from whatever the user wrote: a path, a name of the catalogue, a hub id."""
    return source.load_model(name, unlisted=read_unlisted)


def read_unlisted(config: Mapping[str, Any]) -> Multimodal:
    """A config of a family that Brim has no reader for."""
    from brim.trace.class_model import read_from_class

    return read_from_class(config)
