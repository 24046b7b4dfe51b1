"""The form that an answer must have, as the schema of its JSON: None for any text.

`FLAT_FORMAT`: name and schema stand beside the type, as in `/v1/responses`, and not inside of `json_schema`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brim.serve.requests import types as t

AnswerSchema = Mapping[str, Any]
ANY_OBJECT: AnswerSchema = {"type": "object"}


def _schema(found: AnswerSchema, path: str, model: t.ServedModel) -> AnswerSchema:
    t.check_depth(found, path)
    return found


SCHEMA: t.JsonType[AnswerSchema] = t.JsonType((dict,), _schema, t.OBJECT.schema)


@dataclass(frozen=True, slots=True)
class NamedSchema(t.JsonObject):
    name: str = t.required(t.TEXT)
    schema: AnswerSchema | None = t.optional(SCHEMA)
    description: str | None = t.optional(t.TEXT)
    strict: bool = t.optional(t.FLAG, default=False)

    @property
    def value(self) -> AnswerSchema:
        return ANY_OBJECT if self.schema is None else self.schema


def _format(of_schema: type[t.JsonObject]) -> t.JsonType[AnswerSchema | None]:
    kinds = {"text": t.meaning(None), "json_object": t.meaning(ANY_OBJECT), "json_schema": of_schema}
    return t.tagged(kinds, code="invalid_value")


FORMAT = _format(t.wrapped("json_schema", t.record(NamedSchema, needs="a name and a schema")))
FLAT_FORMAT = _format(NamedSchema)
