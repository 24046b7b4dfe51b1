"""What `transformers` fills in where a config leaves a field out.

In: the dict of a config.json. Out: the defaults of its class and of the classes of its parts, nested as the parts are.
The file beside this one is written by `scripts/class_defaults.py`, and a test compares it with the installed library.
Families that only remote code reads are not in it: their defaults are those that their readers know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("class_defaults.json")
_CHOSEN_INSIDE = "auto:"  # the part's own model_type chooses its class; this one where it has none


# Published configs always state these at the top: where one is missing there, something is wrong with the file.
_STATED_AT_THE_TOP = frozenset(
    {
        "hidden_size",
        "intermediate_size",
        "moe_intermediate_size",
        "n_embd",
        "n_head",
        "n_layer",
        "n_routed_experts",
        "num_attention_heads",
        "num_experts",
        "num_experts_per_tok",
        "num_hidden_layers",
        "num_local_experts",
        "vocab_size",
    }
)


def class_defaults(kind: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The defaults behind a config of this type and behind its parts."""
    own = {**_flat_defaults(kind, config), **_own_defaults(kind)}
    optional = {name: value for name, value in own.items() if name not in _STATED_AT_THE_TOP}
    return {**optional, **_parts_defaults(kind, config, absent=False)}


def _flat_defaults(kind: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of the language model where a config has its fields at the top, as older ones do."""
    inner = _table()["nested"].get(kind, {}).get("text_config", _CHOSEN_INSIDE)
    return {} if "text_config" in config or inner.startswith(_CHOSEN_INSIDE) else _own_defaults(inner)


def _own_defaults(kind: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = _table()["defaults"].get(kind, {})
    return found


def _parts_defaults(kind: str, config: Mapping[str, Any], *, absent: bool) -> Mapping[str, Any]:
    """By name of the part. A part of a part may be `absent`, and is then filled in as a whole."""
    parts = _table()["nested"].get(kind, {})
    given = {name: config.get(name, {} if absent else None) for name in parts}
    return {name: _part_defaults(parts[name], part) for name, part in given.items() if isinstance(part, dict)}


def _part_defaults(kind: str, part: Mapping[str, Any]) -> Mapping[str, Any]:
    if kind.startswith(_CHOSEN_INSIDE):
        chosen = part.get("model_type") or kind.removeprefix(_CHOSEN_INSIDE)
        return {"model_type": chosen, **_own_defaults(str(chosen))}
    return {"model_type": kind, **_own_defaults(kind), **_parts_defaults(kind, part, absent=True)}


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    found: Mapping[str, Mapping[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return found
