"""The form that an answer must have, as a grammar of its text: None for any text.

Clients say it in many ways: OpenAI's `response_format` (`FLAT_FORMAT`: name and schema stand beside the type, as in
`/v1/responses`, and not inside of `json_schema`), vLLM's `structured_outputs` and its older `guided_…`, SGLang's
`regex`, `ebnf` and `json_schema`. Each is read here as the same `Grammar`; `one_form` refuses more than one of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from brim.engine.requests.grammar import Grammar
from brim.serve.parse.structural_tags import grammar_of, quoted, structural_tag
from brim.serve.problems import invalid
from brim.serve.requests import types as t

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
MOST_CHOICES = 1024
_OBJECTS: t.Schema = {"type": "array", "items": {"type": "object"}}
_NO_SPACES = ""  # as a pattern


@dataclass(frozen=True, slots=True)
class AnswerForm:
    grammar: Grammar
    field: str  # where it was written


def _schema(found: t.Json, path: str, model: t.ServedModel) -> t.Json:
    t.check_depth(found, path)
    return found


def _schema_text(found: str, path: str, model: t.ServedModel) -> Mapping[str, Any]:
    parsed = _parsed(found, path)
    t.check_depth(parsed, path)
    return parsed


def _parsed(text: str, path: str) -> dict[str, Any]:
    """The object in a text: clients of vLLM and SGLang send some fields so."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid(path, f"it is a text that is not JSON ({error!s:.100}); send an object") from None
    if not isinstance(found, dict):
        raise invalid(path, "the JSON in it is no object; send one", "invalid_type")
    return found


SCHEMA = t.JsonType((dict,), _schema, t.OBJECT.schema)
SCHEMA_OR_TEXT = t.either(SCHEMA, t.JsonType((str,), _schema_text, t.text().schema))
REGEX = t.JsonType(
    (str,), lambda value, path, model: Grammar.regex(t.text().convert(value, path, model)), t.text().schema
)
RULES = t.JsonType((str,), lambda value, path, model: grammar_of(t.text().convert(value, path, model)), t.text().schema)
_CHOICES = t.listed(t.text(), least=1, most=lambda model: MOST_CHOICES)
CHOICES = t.JsonType(
    (list,),
    lambda value, path, model: Grammar.lark("start: " + " | ".join(map(quoted, _CHOICES.convert(value, path, model)))),
    _CHOICES.schema,
)


def _tags(found: Mapping[str, Any], path: str, model: t.ServedModel) -> Grammar:
    t.check_depth(found, path)
    return structural_tag(found, path)


def _tags_text(found: str, path: str, model: t.ServedModel) -> Grammar:
    return _tags(_parsed(found, path), path, model)


STRUCTURAL_TAG = t.either(t.JsonType((dict,), _tags, t.OBJECT.schema), t.JsonType((str,), _tags_text, t.text().schema))


@dataclass(frozen=True, slots=True)
class NamedSchema(t.JsonObject):
    name: str = t.required(t.TEXT)
    schema: Mapping[str, Any] | None = t.optional(SCHEMA)
    description: str | None = t.optional(t.TEXT)
    strict: bool = t.optional(t.FLAG, default=False)

    @property
    def value(self) -> Grammar:
        return Grammar.json_schema(ANY_OBJECT if self.schema is None else self.schema)


@dataclass(frozen=True, slots=True)
class TagFormat(t.JsonObject):
    """A structural tag beside its type; `structural_tag` says what its fields are."""

    structures: t.Json = t.optional(t.JsonType((list,), _schema, lambda model: _OBJECTS))
    triggers: t.Json = t.optional(t.plain({"type": "array", "items": {"type": "string"}}, list))
    at_least_one: bool = t.optional(t.FLAG, default=False)
    format: t.Json = t.optional(SCHEMA)

    @property
    def value(self) -> Grammar:
        names = ("structures", "triggers", "at_least_one", "format")
        return structural_tag({name: getattr(self, name) for name in names}, "response_format")


def _format(of_schema: type[t.JsonObject]) -> t.JsonType[Grammar | None]:
    kinds = {
        "text": t.meaning(None),
        "json_object": t.meaning(Grammar.json_schema(ANY_OBJECT)),
        "json_schema": of_schema,
        "structural_tag": TagFormat,
    }
    return t.tagged(kinds, code="invalid_value")


FORMAT = _format(t.wrapped("json_schema", t.record(NamedSchema, needs="a name and a schema")))
FLAT_FORMAT = _format(NamedSchema)


@dataclass(frozen=True, slots=True)
class StructuredOutputs(t.JsonObject):
    """As in vLLM."""

    json: Mapping[str, Any] | None = t.optional(SCHEMA_OR_TEXT)
    regex: Grammar | None = t.optional(REGEX)
    choice: Grammar | None = t.optional(CHOICES)
    grammar: Grammar | None = t.optional(RULES)
    json_object: bool | None = t.optional(t.FLAG)
    structural_tag: Grammar | None = t.optional(STRUCTURAL_TAG)
    whitespace_pattern: str | None = t.optional(t.TEXT)
    disable_any_whitespace: bool = t.optional(t.FLAG, default=False)
    disable_additional_properties: bool = t.optional(
        t.only(False, "say additionalProperties in the schema"), default=False
    )
    IGNORED = ("backend",)

    def forms(self, path: str) -> list[AnswerForm]:
        schema = ANY_OBJECT if self.json is None and self.json_object else self.json
        spaces = _NO_SPACES if self.disable_any_whitespace else self.whitespace_pattern
        by_schema = None if schema is None else Grammar.json_schema(schema, spaces)
        found = {
            "json": by_schema,
            "regex": self.regex,
            "choice": self.choice,
            "grammar": self.grammar,
            "structural_tag": self.structural_tag,
        }
        some = given_forms({f"{path}.{name}": one for name, one in found.items()})
        if not some:
            raise invalid(path, "one of json, regex, choice, grammar, json_object and structural_tag is needed")
        return some


def given_forms(found: Mapping[str, Grammar | None]) -> list[AnswerForm]:
    return [AnswerForm(one, field) for field, one in found.items() if one is not None]


def one_form(found: Iterable[AnswerForm]) -> AnswerForm | None:
    """The form that was asked for; an answer follows one only."""
    forms = list(found)
    if len(forms) > 1:
        said = f"it is given beside {forms[0].field}, and an answer follows one of them; leave the other out"
        raise invalid(forms[1].field, said)
    return forms[0] if forms else None
