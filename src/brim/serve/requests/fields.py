"""A JSON object whose fields are taken by name and type; what nobody took is refused at the end.

A field that is null counts as absent, as in OpenAI's API.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from brim.serve.problems import Problem, invalid
from brim.suggest import did_you_mean, shown, suggestions

Json = Any
_MOST = sys.float_info.max  # an integer may be larger, and is no number that can be counted with
MOST_LEVELS = 64  # of a schema, or of the arguments of a call


def parse_object(body: bytes, *, release_gil: bool = False) -> Mapping[str, Json]:
    """The object in a request's body. `release_gil`: other threads may run while it is parsed, which takes longer."""
    try:
        found = json.loads(body, **(_TURNS if release_gil else {}))
    except RecursionError:
        raise Problem(400, "the body is nested too deeply", code="invalid_json") from None
    except (UnicodeDecodeError, ValueError) as error:
        raise Problem(400, f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(found, dict):
        raise Problem(400, f"the body must be a JSON object, not {_kind(found)}", code="invalid_json")
    return found


def _integer(digits: str) -> int:
    return int(digits)


def _number(digits: str) -> float:
    return float(digits)


def _object(found: dict[str, Json]) -> dict[str, Json]:
    return found


_TURNS: Mapping[str, Any] = {"parse_int": _integer, "parse_float": _number, "object_hook": _object}


class RequestFields:
    """One object, at a path inside of the request."""

    def __init__(self, found: Mapping[str, Json], path: str = "") -> None:
        self._found = found
        self._path = path
        self._taken: set[str] = set()

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def raw(self, name: str) -> Json:
        """Whatever it is; None where it is absent."""
        self._taken.add(name)
        return self._found.get(name)

    def given(self, *names: str) -> dict[str, Json]:
        """Those of them that are there."""
        return {name: value for name in names if (value := self.raw(name)) is not None}

    def text(self, name: str) -> str | None:
        value: str | None = self._typed(name, str, "a text")
        return value

    def needed_text(self, name: str) -> str:
        found = self.text(name)
        if found is None:
            raise invalid(self.path(name), "it is missing", "missing_required_parameter")
        return found

    def items(self, name: str) -> list[Json] | None:
        value: list[Json] | None = self._typed(name, list, "a list")
        return value

    def integer(self, name: str, least: int, most: int) -> int | None:
        value: int | None = self._typed(name, int, "an integer")
        if value is not None and not least <= value <= most:
            raise invalid(self.path(name), f"{value} is not from {least} to {most}")
        return value

    def number(self, name: str, above: float) -> float | None:
        value: float | None = self._typed(name, (int, float), "a number")
        if value is not None and not above < value <= _MOST:
            raise invalid(self.path(name), f"{value!r:.40} must be a number above {above:g}")
        return None if value is None else float(value)

    def flag(self, name: str) -> bool:
        value = self.raw(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise invalid(self.path(name), f"it must be true or false, not {_kind(value)}", "invalid_type")
        return value

    def choice(self, name: str, allowed: Iterable[str], default: str) -> str:
        value = self.text(name)
        if value is None:
            return default
        if value not in allowed:
            raise invalid(self.path(name), f"{value!r:.40} is not one of {', '.join(allowed)}")
        return value

    def inner(self, name: str) -> RequestFields | None:
        value = self._typed(name, dict, "an object")
        return None if value is None else RequestFields(value, self.path(name))

    def _typed(self, name: str, kind: Any, said: str) -> Any:
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise invalid(self.path(name), f"it must be {said}, not {_kind(value)}", "invalid_type")
        return value

    def leave_out(self, harmless: Iterable[str]) -> None:
        """These change nothing about an answer."""
        self._taken.update(harmless)

    def refuse_others(self, not_yet: Iterable[str] = ()) -> None:
        """Nothing is ignored in silence: what was not taken is refused."""
        for name, value in self._found.items():
            if name in self._taken or (value is None and name in not_yet):
                continue
            path = self.path(shown(name))
            if name in not_yet:
                raise invalid(path, "it is not supported yet; leave it out", "unsupported_parameter")
            meant = did_you_mean(suggestions(name, sorted(self._taken)))
            raise invalid(path, f"there is no such field; {meant}leave it out", "unknown_parameter")


def entries(values: Iterable[Json], path: str) -> list[RequestFields]:
    """A list of objects."""
    found = []
    for number, value in enumerate(values):
        if not isinstance(value, dict):
            raise invalid(f"{path}[{number}]", f"it must be an object, not {_kind(value)}", "invalid_type")
        found.append(RequestFields(value, f"{path}[{number}]"))
    return found


_KINDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "an integer", float: "a number"}


def _kind(value: Json) -> str:
    return "null" if value is None else _KINDS[type(value)]


def check_depth(value: Json, path: str) -> None:
    """Refuse what templates and grammars, which call themselves for each level, could not read."""
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise invalid(path, f"it is nested more than {MOST_LEVELS} levels deep; make it flatter")
