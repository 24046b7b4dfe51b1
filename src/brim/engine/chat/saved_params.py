"""Sampling parameters of a conversation as an entry of a JSON file: those that are not the usual ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from brim.engine.requests.grammar import Grammar, GrammarKind
from brim.engine.requests.params import SamplingParams
from brim.errors import InvalidRequest

_FIELDS = {field.name: field.default for field in fields(SamplingParams)}


def params_entry(params: SamplingParams) -> dict[str, Any]:
    found = {name: getattr(params, name) for name, usual in _FIELDS.items() if getattr(params, name) != usual}
    if params.grammar is not None:
        found["grammar"] = {"kind": str(params.grammar.kind), "text": params.grammar.text}
    return found


def params_of(entry: Mapping[str, Any]) -> SamplingParams:
    """Each value is checked as if it were given in Python."""
    for name in entry:
        if name not in _FIELDS:
            raise InvalidRequest(f"params: {name!r:.40} is no sampling parameter; the file is damaged")
    found = {name: _tuples(value) for name, value in entry.items()}
    if "grammar" in entry:
        found["grammar"] = _grammar(entry["grammar"])
    return SamplingParams(**found)


def _grammar(entry: Any) -> Grammar:
    try:
        return Grammar(GrammarKind(entry["kind"]), entry["text"])
    except (TypeError, KeyError, ValueError):
        raise InvalidRequest("params: grammar has no kind and text; the file is damaged") from None


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
