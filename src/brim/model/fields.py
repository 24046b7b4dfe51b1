"""Typed reading of a raw config dict: every wrong value becomes an `InvalidConfig` that names the field.

In: a dict as JSON gave it, and the defaults of the class that reads it where the config relies on them. Out: integers,
booleans, text and lists that are what they claim, within sane bounds. A JSON null counts as absent, except where a
family asks for the difference (`is_null`); it is never replaced by a class's default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from brim.errors import InvalidConfig

LARGEST_DIMENSION = 1 << 24  # wider than any layer, longer than any vocabulary
LARGEST_LAYER_COUNT = 4096
LARGEST_EXPERT_COUNT = 1 << 16
LARGEST_RATIO = 1024  # of one width to another
LARGEST_CONTEXT = 1 << 31

NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})

_REQUIRED: Any = object()


class ConfigFields:
    """A config dict, or a dict inside one, with the path to it for messages.

    `defaults` stand behind what the config says; those of a dict inside this one are under its name.
    """

    def __init__(self, raw: Mapping[str, Any], path: str = "", defaults: Mapping[str, Any] = NO_DEFAULTS) -> None:
        self._raw = raw
        self._path = path
        self._defaults = defaults

    def __contains__(self, name: str) -> bool:
        return self.raw(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def where(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def is_null(self, name: str) -> bool:
        """True where the config (or the class behind it) says null, as opposed to saying nothing."""
        place = self._raw if name in self._raw else self._defaults
        return name in place and place[name] is None

    def raw(self, name: str) -> Any:
        """The value as it is: the config's own, else the class's default."""
        return self._raw[name] if name in self._raw else self._defaults.get(name)

    def stated(self, name: str) -> Any:
        """The config's own value, without what its class would fill in."""
        return self._raw.get(name)

    def __len__(self) -> int:
        return len(self._raw)

    def first(self, names: tuple[str, ...]) -> str:
        """The first of several spellings that is present, in the config before the defaults; else the first of all."""
        for place in (self._raw, self._defaults):
            for name in names:
                if place.get(name) is not None:
                    return name
        return names[0]

    def integer(
        self, *names: str, default: int | None = _REQUIRED, minimum: int = 1, maximum: int = LARGEST_DIMENSION
    ) -> int:
        """An integer under the first of the spellings that is present."""
        name = self.first(names)
        value = self.raw(name)
        if value is None:
            if default is _REQUIRED or default is None:
                raise InvalidConfig(self.where(name), "missing", "add it, or point to the model's own config.json")
            return default
        return self._checked_integer(name, value, minimum, maximum)

    def optional_integer(self, *names: str, minimum: int = 1, maximum: int = LARGEST_DIMENSION) -> int | None:
        name = self.first(names)
        value = self.raw(name)
        return None if value is None else self._checked_integer(name, value, minimum, maximum)

    def layer_count(self, *names: str, default: int | None = _REQUIRED) -> int:
        return self.integer(*names, default=default, maximum=LARGEST_LAYER_COUNT)

    def _checked_integer(self, name: str, value: Any, minimum: int, maximum: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidConfig(self.where(name), f"must be an integer, not {_described(value)}")
        if not minimum <= value <= maximum:
            raise InvalidConfig(self.where(name), f"is {_described(value)}, outside {minimum} to {maximum}")
        return value

    def divisor(self, *names: str, of: int, what: str, default: int | None = _REQUIRED) -> int:
        """An integer that divides another one, such as key-value heads the attention heads."""
        found = self.integer(*names, default=default)
        if of % found:
            raise InvalidConfig(self.where(self.first(names)), f"is {found}, which does not divide {of} {what}")
        return found

    def ratio(self, *names: str, default: float = _REQUIRED) -> float:
        """A positive number that widths are multiplied by."""
        name = self.first(names)
        value = self.raw(name)
        if value is None:
            if default is _REQUIRED:
                raise InvalidConfig(self.where(name), "missing", "add it, or point to the model's own config.json")
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise InvalidConfig(self.where(name), f"must be a number, not {_described(value)}")
        if not 1 / LARGEST_RATIO <= value <= LARGEST_RATIO:
            span = f"1/{LARGEST_RATIO} to {LARGEST_RATIO}"
            raise InvalidConfig(self.where(name), f"is {_described(value)}, outside {span}")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InvalidConfig(self.where(name), f"must be true or false, not {_described(value)}")
        return value

    def text(self, name: str, default: str = "") -> str:
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise InvalidConfig(self.where(name), f"must be text, not {_described(value)}")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of integers; empty when absent."""
        return tuple(self._checked_integer(name, item, 0, LARGEST_CONTEXT) for item in self._list(name))

    def pair(self, name: str, default: tuple[int, int]) -> tuple[int, int]:
        """Two positive integers."""
        if name not in self:
            return default
        found = self._list(name)
        if len(found) != 2:
            raise InvalidConfig(self.where(name), f"must be two numbers, not {len(found)}")
        first, second = (self._checked_integer(name, item, 1, LARGEST_DIMENSION) for item in found)
        return first, second

    def count(self, name: str, default: int, maximum: int) -> int:
        """How many entries a list has."""
        if name not in self:
            return default
        found = len(self._list(name))
        if found > maximum:
            raise InvalidConfig(self.where(name), f"has {found} entries, more than {maximum}")
        return found

    def edge(self, name: str, default: int | None = _REQUIRED) -> int:
        """An edge length that some configs write as a number and some as a pair; the longer of a pair."""
        if isinstance(self.raw(name), list):
            pair = self.integers(name)
            if not pair or min(pair) < 1:
                raise InvalidConfig(self.where(name), "must be a positive integer or a pair of them")
            return self._checked_integer(name, max(pair), 1, LARGEST_DIMENSION)
        return self.integer(name, default=default)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of text; empty when absent."""
        items = self._list(name)
        for item in items:
            if not isinstance(item, str):
                raise InvalidConfig(self.where(name), f"must be a list of text, but holds {_described(item)}")
        return tuple(items)

    def per_layer(self, name: str, layers: int) -> tuple[Any, ...]:
        """A list with an entry for every layer; longer lists (for prediction layers behind) are cut."""
        items = self._list(name)
        if len(items) < layers:
            raise InvalidConfig(self.where(name), f"has {len(items)} entries for {layers} layers")
        return tuple(items[:layers])

    def _list(self, name: str) -> list[Any]:
        value = self.raw(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise InvalidConfig(self.where(name), f"must be a list, not {_described(value)}")
        return value

    def child(self, *names: str) -> ConfigFields:
        """A dict inside this one; empty when absent."""
        name = self.first(names)
        value, behind = self.raw(name), self._defaults.get(name)
        if value is None:
            return ConfigFields({}, self.where(name))
        if not isinstance(value, dict):
            raise InvalidConfig(self.where(name), f"must be an object, not {_described(value)}")
        return ConfigFields(
            self._raw.get(name, {}), self.where(name), behind if isinstance(behind, dict) else NO_DEFAULTS
        )

    def children(self, name: str) -> tuple[ConfigFields, ...]:
        """A list of dicts; empty when absent."""
        found = []
        for index, item in enumerate(self._list(name)):
            if not isinstance(item, dict):
                raise InvalidConfig(self.where(name), f"entry {index} must be an object, not {_described(item)}")
            found.append(ConfigFields(item, f"{self.where(name)}[{index}]"))
        return tuple(found)

    def merged(self, **values: Any) -> ConfigFields:
        """These fields with some of them set: for what a config says one level up."""
        return ConfigFields({**self._raw, **values}, self._path, self._defaults)

    def behind(self, **defaults: Any) -> ConfigFields:
        """These fields with other defaults behind those they have."""
        return ConfigFields(self._raw, self._path, {**defaults, **self._defaults})


def _described(value: Any) -> str:
    """A value for a message: short, whatever it is."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**15:
        return f"a number of about 10^{len(str(abs(value))[:400]) - 1}" if abs(value) < 10**400 else "a huge number"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
