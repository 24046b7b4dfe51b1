"""The form that an answer must have: any text, a JSON object, or JSON of a schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brim.serve.problems import invalid
from brim.serve.requests.fields import RequestFields, check_depth

FORMATS = ("text", "json_object", "json_schema")
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def read_format(form: RequestFields | None, *, flat: bool = False) -> Mapping[str, Any] | None:
    """The schema of an answer, None where any text will do.

    `flat`: name and schema stand beside the type, as in `/v1/responses`, and not inside of `json_schema`.
    """
    if form is None:
        return None
    kind = form.choice("type", FORMATS, "")
    if not kind:
        raise invalid(form.path("type"), f"it must be one of {', '.join(FORMATS)}", "missing_required_parameter")
    schema: Mapping[str, Any] | None = None
    if kind == "json_object":
        schema = ANY_OBJECT
    elif kind == "json_schema":
        schema = _schema(form, flat)
    form.refuse_others()
    return schema


def _schema(form: RequestFields, flat: bool) -> Mapping[str, Any]:
    inner = form if flat else form.inner("json_schema")
    if inner is None or inner.text("name") is None:
        raise invalid(form.path("json_schema"), "it needs a name and a schema", "missing_required_parameter")
    inner.text("description")
    inner.flag("strict")
    inner.inner("schema")  # it must be an object
    schema: Mapping[str, Any] | None = inner.raw("schema")
    inner.refuse_others()
    if schema is None:
        return ANY_OBJECT
    check_depth(schema, inner.path("schema"))
    return schema
