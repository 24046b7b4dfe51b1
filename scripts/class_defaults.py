"""Write the class defaults that configs rely on, from the installed `transformers`.

    python scripts/class_defaults.py

`transformers` leaves a field out of a nested config where it equals the default of its class, and configs older than a
field do not have it. Kept are the fields that Brim's readers look at, with the defaults as they are declared: what a
class derives from other fields is not one.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from brim.model.config import MULTIMODAL, TEXT
from brim.model.families.multimodal import INTERNVL_TEXT, KIMI_TEXT, MISTRAL_TEXT

MODEL = Path(__file__).parents[1] / "src" / "brim" / "model"
TARGET = MODEL / "class_defaults.json"
PARTS = ("thinker_config", "talker_config", "text_config", "vision_config", "audio_config")
DECIDED_BY_READERS = {"tie_word_embeddings"}
# Language models by themselves, and those that a config may choose where its class leaves the choice open.
DECODERS = (*TEXT, *INTERNVL_TEXT, *KIMI_TEXT, *MISTRAL_TEXT)


def main() -> None:
    names = read_names()
    nested: dict[str, dict[str, str]] = {}
    defaults: dict[str, dict[str, Any]] = {}
    for kind in MULTIMODAL:
        if kind in CONFIG_MAPPING:
            add_class(CONFIG_MAPPING[kind], names, nested, defaults)
            defaults[kind] = declared_defaults(CONFIG_MAPPING[kind], names)
    for kind in DECODERS:
        if kind in CONFIG_MAPPING:
            defaults[kind] = declared_defaults(CONFIG_MAPPING[kind], names)
    written_with = {"transformers": {"version": transformers.__version__}}
    TARGET.write_text(as_text({"nested": nested, "defaults": defaults, "written_with": written_with}))
    print(f"{TARGET}: {len(nested)} classes with parts, defaults of {len(defaults)}")


def as_text(tables: dict[str, dict[str, Any]]) -> str:
    """JSON with a line for each class."""
    sections = []
    for title, classes in sorted(tables.items()):
        lines = [f"  {json.dumps(kind)}: {json.dumps(classes[kind], sort_keys=True)}" for kind in sorted(classes)]
        sections.append(f" {json.dumps(title)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(sections) + "\n}\n"


def read_names() -> set[str]:
    """Every name that a reader might look for: the words in quotes in the readers' source."""
    sources = [*MODEL.glob("families/*.py"), *MODEL.glob("towers/*.py")]
    return {name for source in sources for name in re.findall(r'"([A-Za-z_]\w+)"', source.read_text())}


def add_class(
    kind: type[PretrainedConfig],
    names: set[str],
    nested: dict[str, dict[str, str]],
    defaults: dict[str, dict[str, Any]],
) -> None:
    """A class with parts: which class each part has ("auto:" where the part may say so itself), and their defaults."""
    parts = nested.setdefault(kind.model_type, {})
    for part in PARTS:
        inner = kind.sub_configs.get(part)
        if inner is None:
            continue
        usual = CONFIG_MAPPING[getattr(kind(), part).model_type] if inner is AutoConfig else inner
        parts[part] = ("auto:" if inner is AutoConfig else "") + usual.model_type
        defaults[usual.model_type] = declared_defaults(usual, names)
        if any(deeper in usual.sub_configs for deeper in PARTS):
            add_class(usual, names, nested, defaults)


def declared_defaults(kind: type[PretrainedConfig], names: set[str]) -> dict[str, Any]:
    common = {field.name for field in dataclasses.fields(PretrainedConfig)} | DECIDED_BY_READERS
    found = {}
    for field in dataclasses.fields(kind):
        if field.name in common or field.name not in names or field.name in kind.sub_configs:
            continue
        value = field.default_factory() if field.default is dataclasses.MISSING else field.default  # type: ignore[misc]
        found[field.name] = list(value) if isinstance(value, tuple) else value
    return found


if __name__ == "__main__":
    main()
