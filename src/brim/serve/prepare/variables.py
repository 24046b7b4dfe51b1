"""The variables of a template, from what a request asks for in the words of other APIs.

In: `TemplateSettings`, and the names that a template reads. Out: its variables, and a sentence for each wish that it
does not know: such a wish changes nothing, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from brim.serve.requests.template import TemplateSettings

_SWITCHES = ("enable_thinking", "thinking")
_UNTHINKING = ("none", "minimal")


def template_variables(asked: TemplateSettings, known: Collection[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(variables by name, what has no effect). What the request names itself is not overridden."""
    found: dict[str, Any] = {}
    unknown = [f"chat_template_kwargs.{name:.60}" for name in asked.variables if name not in known]
    thinks = asked.effort not in _UNTHINKING if asked.effort is not None else asked.thinks
    switches = dict.fromkeys(name for name in _SWITCHES if name in known)
    if thinks is not None:
        found |= dict.fromkeys(switches, thinks)
        if asked.effort is not None and "reasoning_effort" in known:
            found["reasoning_effort"] = asked.effort
        if not found:
            unknown.append("reasoning")
    if asked.verbosity is not None:
        if "verbosity" in known:
            found["verbosity"] = asked.verbosity
        else:
            unknown.append("verbosity")
    if asked.documents:
        if "documents" in known:
            found["documents"] = list(asked.documents)
        else:
            unknown.append("documents")
    return found | dict(asked.variables), tuple(
        f"{name}: the model's template does not know it; it has no effect" for name in unknown
    )
