"""Types of JSON values, and objects of declared fields: each says how it is read and what its schema is.

In: what a client wrote, and the model that is served. Out: records, or a `Problem` that names the field by its path and
says what to do; and the same declaration as a JSON schema, for the OpenAPI document. A field that is null counts as
absent, as in OpenAI's API, and nothing is ignored in silence: a field that nobody declared is refused, or the answer
warns of it where the server is lenient.

Knows no endpoint and no field: those are declared where they are used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from functools import cache
from typing import Any, ClassVar, Generic, Self, TypeVar

from brim.model.tasks import ModelTask
from brim.serve.problems import Problem, invalid
from brim.serve.requests.answer_warnings import warn
from brim.serve.settings import RequestLimits
from brim.suggest import did_you_mean, shown, suggestions

Json = Any
Schema = dict[str, Any]
Value = TypeVar("Value")
NULL: Schema = {"type": "null"}
MOST_LEVELS = 64  # of a schema, or of the arguments of a call
_MISSING = "missing_required_parameter"
_LARGEST = sys.float_info.max  # an integer may be larger, and is no number that can be counted with
_KINDS = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    type(None): "null",
}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a body depends on besides itself: the model's name, its vocabulary, and what it takes."""

    name: str | None = None  # None: any name will do
    vocab: int = 1 << 31
    longest: int = 1 << 31  # tokens of one request, prompt and answer
    images: bool = True
    audio: bool = True
    lenient: bool = False  # unknown fields are ignored, and the answer says so
    task: ModelTask = ModelTask.GENERATE
    limits: RequestLimits = field(default_factory=RequestLimits)


@dataclass(frozen=True, slots=True)
class JsonType(Generic[Value]):
    """A type: which of JSON's kinds it takes (none: any), how a value of them is read, and the schema."""

    kinds: tuple[type, ...]
    convert: Callable[[Json, str, ServedModel], Value]
    schema: Callable[[ServedModel], Schema]
    missing: str = "it is missing"

    def read(self, value: Json, path: str, model: ServedModel) -> Value:
        if int in self.kinds and float not in self.kinds:
            value = as_integer(value)
        if self.kinds and type(value) not in self.kinds:
            wanted = "a number" if float in self.kinds else " or ".join(_KINDS[kind] for kind in self.kinds)
            raise invalid(path, f"it must be {wanted}, not {_KINDS[type(value)]}", "invalid_type")
        return self.convert(value, path, model)


def as_integer(value: Json) -> Json:
    """5.0 is an integer, for JSON schemas and for clients that know one kind of number; anything else stays."""
    return int(value) if type(value) is float and value.is_integer() else value


def plain(schema: Schema, *kinds: type) -> JsonType[Any]:
    """Values of these kinds, as they are."""
    return JsonType(kinds, lambda value, path, model: value, lambda model: schema)


TEXT: JsonType[str] = plain({"type": "string"}, str)
FLAG: JsonType[bool] = plain({"type": "boolean"}, bool)
OBJECT: JsonType[dict[str, Any]] = plain({"type": "object"}, dict)
ANYTHING = plain({})


def _served(value: str, path: str, model: ServedModel) -> str:
    if model.name not in (None, value):
        said = f"{path}: there is no '{value:.60}' here; this server has '{model.name}'"
        raise Problem(404, said, param=path, code="model_not_found")
    return value


MODEL_NAME = JsonType(
    (str,), _served, lambda model: {"type": "string"} if model.name is None else {"enum": [model.name]}
)


def text(most: int | None = None) -> JsonType[str]:
    """A text that is not empty."""

    def convert(value: str, path: str, model: ServedModel) -> str:
        if not value:
            raise invalid(path, "it is empty", _MISSING)
        if most is not None and len(value) > most:
            raise invalid(path, f"it has {len(value)} characters; at most {most} are taken")
        return value

    limit = {} if most is None else {"maxLength": most}
    return JsonType((str,), convert, lambda model: {"type": "string", "minLength": 1, **limit})


def integer(least: int, most: int) -> JsonType[int]:
    def convert(value: int, path: str, model: ServedModel) -> int:
        if not least <= value <= most:
            raise invalid(path, f"{value} is not from {least} to {most}")
        return value

    return JsonType((int,), convert, lambda model: {"type": "integer", "minimum": least, "maximum": most})


def number(above: float) -> JsonType[float]:
    def convert(value: float, path: str, model: ServedModel) -> float:
        if not above < value <= _LARGEST:
            raise invalid(path, f"{value!r:.40} must be a number above {above:g}")
        return float(value)

    return JsonType((int, float), convert, lambda model: {"type": "number", "exclusiveMinimum": above})


def choice(allowed: Iterable[str], code: str = "invalid_value") -> JsonType[str]:
    names = list(allowed)

    def convert(value: str, path: str, model: ServedModel) -> str:
        if value not in names:
            raise invalid(path, f"{value!r:.40} is not one of {', '.join(names)}", code)
        return value

    return JsonType((str,), convert, lambda model: {"enum": names})


def only(supported: Json, said: str) -> JsonType[Any]:
    """A field of which one value is supported."""

    def convert(value: Json, path: str, model: ServedModel) -> Json:
        if (type(value), value) != (type(supported), supported):
            raise invalid(path, f"{said}; leave it out", "unsupported_value")
        return value

    return JsonType((), convert, lambda model: {"const": supported})


def without_effect(said: str) -> JsonType[Any]:
    """A field of another server that means nothing here: the answer says so."""

    def convert(value: Json, path: str, model: ServedModel) -> None:
        warn(path, f"{said}; it has no effect here")

    return JsonType((), convert, lambda model: {})


def listed(
    of: JsonType[Value], *, least: int = 0, most: Callable[[ServedModel], int] | None = None
) -> JsonType[tuple[Value, ...]]:
    def convert(value: list[Json], path: str, model: ServedModel) -> tuple[Value, ...]:
        if len(value) < least:
            raise invalid(path, "at least one is needed", _MISSING)
        if most is not None and len(value) > most(model):
            raise invalid(path, f"it has {len(value)}; at most {most(model)} may be given")
        return tuple(of.read(one, f"{path}[{place}]", model) for place, one in enumerate(value))

    def schema(model: ServedModel) -> Schema:
        bounds = ({"minItems": least} if least else {}) | ({} if most is None else {"maxItems": most(model)})
        return {"type": "array", "items": of.schema(model), **bounds}

    return JsonType((list,), convert, schema)


def either(*types: JsonType[Any]) -> JsonType[Any]:
    """One of several types, told apart by JSON's kinds."""
    by_kind = {kind: one for one in types for kind in one.kinds}
    return JsonType(
        tuple(by_kind),
        lambda value, path, model: by_kind[type(value)].convert(value, path, model),
        lambda model: {"anyOf": [one.schema(model) for one in types]},
    )


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


# -- objects -----------------------------------------------------------------------------------------------------------


def required(of: JsonType[Any]) -> Any:
    return field(metadata={"type": of})


def optional(of: JsonType[Any], default: Any = None) -> Any:
    return field(default=default, metadata={"type": of})


@dataclass(frozen=True, slots=True)
class JsonObject:
    """An object of a request. A subclass is a dataclass whose fields are declared by `required` and `optional`."""

    IGNORED: ClassVar[tuple[str, ...]] = ()  # fields that change nothing about an answer
    UNSUPPORTED: ClassVar[tuple[str, ...]] = ()  # fields of OpenAI's API that are refused by what they are
    ONE_NEEDED: ClassVar[tuple[str, ...]] = ()  # of these optional fields, at least one

    @property
    def value(self) -> Any:
        """What a field of this type is read as."""
        return self

    @classmethod
    def read_body(cls, found: Mapping[str, Json], model: ServedModel, path: str = "", tag: str = "") -> Self:
        """`tag` is a field that was read before: it says that the object is one of these."""
        declared = _declared(cls)
        values: dict[str, Any] = {}
        others: list[str] = []
        for name, value in found.items():
            of = declared.types.get(name)
            if of is None:
                if name != tag and name not in cls.IGNORED:
                    others.append(name)
            elif value is not None:
                values[name] = of.read(value, _inside(path, name), model)
        for name in declared.needed:
            if name not in values:
                raise invalid(_inside(path, name), declared.types[name].missing, _MISSING)
        if cls.ONE_NEEDED and all(values.get(name) in (None, declared.defaults[name]) for name in cls.ONE_NEEDED):
            raise invalid(_inside(path, cls.ONE_NEEDED[0]), "it is missing", _MISSING)
        for name in others:
            cls._check_other(name, found[name], path, model)
        return cls(**values)

    @classmethod
    def _check_other(cls, name: str, value: Json, path: str, model: ServedModel) -> None:
        where = _inside(path, shown(name))
        if name not in cls.UNSUPPORTED:
            if model.lenient:
                warn(where, "there is no such field; it was ignored")
                return
            meant = did_you_mean(suggestions(name, sorted({*_declared(cls).types, *cls.IGNORED})))
            raise invalid(where, f"there is no such field; {meant}leave it out", "unknown_parameter")
        if value is not None:
            raise invalid(where, "it is not supported yet; leave it out", "unsupported_parameter")

    @classmethod
    def openapi(cls, model: ServedModel, tag: Schema | None = None, tag_needed: bool = True) -> Schema:
        """The schema; with a `tag`, it has the field `type`."""
        schemas = {name: one.schema(model) for name, one in _declared(cls).types.items()}
        needed = list(_declared(cls).needed)
        if tag is not None:
            schemas, needed = {"type": tag, **schemas}, ["type", *needed] if tag_needed else needed
        properties: Schema = {name: {} for name in cls.IGNORED} | dict.fromkeys(cls.UNSUPPORTED, NULL)
        properties |= {name: one if name in needed else _or_null(one) for name, one in schemas.items()}
        whole: Schema = {"type": "object", "properties": properties, "required": needed}
        if not model.lenient:
            whole["additionalProperties"] = False
        if not cls.ONE_NEEDED:
            return whole
        return {"anyOf": [_with(whole, name, schemas[name]) for name in cls.ONE_NEEDED]}


def wrapped(name: str, of: JsonType[Any], *, default: Any = MISSING, **names: tuple[str, ...]) -> type[JsonObject]:
    """An object around one value, which it is read as; `names` are its `IGNORED` and `UNSUPPORTED` fields."""
    declared = required(of) if default is MISSING else optional(of, default)
    own = {"value": property(lambda self: getattr(self, name)), **names}
    return make_dataclass("WrappedValue", [(name, Any, declared)], bases=(JsonObject,), namespace=own, frozen=True)


def meaning(value: Any, **names: tuple[str, ...]) -> type[JsonObject]:
    """An object without fields, which is read as this value."""
    own = {"value": property(lambda self: value), **names}
    return make_dataclass("WrappedValue", [], bases=(JsonObject,), namespace=own, frozen=True)


def record(of: type[JsonObject], needs: str = "") -> JsonType[Any]:
    """An object. `needs` says what must be in it, and is the message where it is missing or lacks any of that."""

    def convert(value: Mapping[str, Json], path: str, model: ServedModel) -> Any:
        if needs and any(value.get(name) is None for name in _declared(of).needed):
            raise invalid(path, f"it needs {needs}", _MISSING)
        return of.read_body(value, model, path).value

    return JsonType((dict,), convert, of.openapi, f"it needs {needs}" if needs else "it is missing")


def tagged(
    kinds: Mapping[str, type[JsonObject]],
    *,
    default: str | None = None,
    code: str = "unsupported_value",
    offered: Callable[[str, ServedModel], bool] = lambda name, model: True,
) -> JsonType[Any]:
    """Objects that their field `type` tells apart. `offered`: which of them the document lists for a model."""

    def convert(value: Mapping[str, Json], path: str, model: ServedModel) -> Any:
        where, name = _inside(path, "type"), value.get("type")
        name = default if name is None else TEXT.read(name, where, model)
        if name is None:
            raise invalid(where, f"it must be one of {', '.join(kinds)}", _MISSING)
        if name not in kinds:
            raise invalid(where, f"{name!r:.40} is not supported; it must be one of {', '.join(kinds)}", code)
        return kinds[name].read_body(value, model, path, tag="type").value

    def schema(model: ServedModel) -> Schema:
        names: dict[type[JsonObject], list[str]] = {}
        for name, kind in kinds.items():
            if offered(name, model):
                names.setdefault(kind, []).append(name)
        return {"anyOf": [kind.openapi(model, {"enum": some}, default not in some) for kind, some in names.items()]}

    return JsonType((dict,), convert, schema)


@dataclass(frozen=True, slots=True)
class DeclaredFields:
    """Of an object: the type of each, those that are needed, and what the others are where they are absent."""

    types: Mapping[str, JsonType[Any]]
    needed: tuple[str, ...]
    defaults: Mapping[str, Any]


def _declared(cls: Any) -> DeclaredFields:
    return _fields_of(cls)


@cache
def _fields_of(cls: Any) -> DeclaredFields:
    found = fields(cls)
    return DeclaredFields(
        {one.name: one.metadata["type"] for one in found},
        tuple(one.name for one in found if one.default is MISSING),
        {one.name: one.default for one in found if one.default is not MISSING},
    )


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _or_null(schema: Schema) -> Schema:
    return schema if not schema else {"anyOf": [schema, NULL]}


def _with(whole: Schema, name: str, schema: Schema) -> Schema:
    """The same, with one more field that is needed."""
    filled = schema | {"minItems": 1} if schema.get("type") == "array" else schema
    return whole | {"properties": whole["properties"] | {name: filled}, "required": [*whole["required"], name]}
