"""What a chat's template is told besides messages and tools: how much to think, and variables of its own.

In: fields that OpenAI, vLLM and SGLang name, in a body or in an object of it. Out: `TemplateSettings`. Which of them a
template knows is found where it is applied (`brim.serve.prepare.variables`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from brim.serve.problems import invalid
from brim.serve.requests import types as t

MOST_VARIABLES = 64
MOST_CHARACTERS = 64 * 1024  # of all variables, as JSON
MOST_DOCUMENTS = 128
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
EFFORT = t.choice(EFFORTS)
VERBOSITY = t.choice(("low", "medium", "high"))
RESERVED = (  # parameters of the function that applies templates, what it takes from the conversation, and functions
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "conversation",
    "cycler",
    "dict",
    "documents",
    "joiner",
    "lipsum",
    "loop",
    "max_length",
    "messages",
    "namespace",
    "padding",
    "raise_exception",
    "range",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "sanitize_control_tokens",
    "self",
    "strftime_now",
    "tokenize",
    "tokenizer_kwargs",
    "tools",
    "truncation",
)


@dataclass(frozen=True, slots=True)
class TemplateSettings:
    """As it was asked for; None, and nothing: the template decides."""

    variables: Mapping[str, Any] = field(default_factory=dict)  # by name, in the words of the template
    effort: str | None = None
    thinks: bool | None = None  # where no effort says so
    verbosity: str | None = None
    documents: tuple[Mapping[str, Any], ...] = ()
    opens_answer: bool = True  # the prompt ends where an answer begins, and not with the last turn
    continues: bool = False  # the answer goes on with the last message


def _variables(found: Mapping[str, Any], path: str, model: t.ServedModel) -> Mapping[str, Any]:
    if len(found) > MOST_VARIABLES:
        raise invalid(path, f"it has {len(found)} variables; at most {MOST_VARIABLES} are taken")
    for name in found:
        if name in RESERVED or name.endswith("_token") or not name.isidentifier():
            raise invalid(f"{path}.{name:.40}", "a template's variables do not have this name; leave it out")
    t.check_depth(found, path)
    _check_size(found, path)
    return found


def _check_size(found: Any, path: str) -> None:
    """Characters of its texts, and one for anything else."""
    size, left = 0, [found]
    while left:
        one = left.pop()
        size += len(one) if isinstance(one, str) else 1
        left.extend([*one, *one.values()] if isinstance(one, dict) else one if isinstance(one, list) else ())
        if size > MOST_CHARACTERS:
            raise invalid(path, f"it has more than {MOST_CHARACTERS} characters; send less")


def _document(found: Mapping[str, Any], path: str, model: t.ServedModel) -> Mapping[str, Any]:
    t.check_depth(found, path)
    return found


_VARIABLES: t.Schema = {
    "type": "object",
    "maxProperties": MOST_VARIABLES,
    "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$", "not": {"pattern": f"^({'|'.join(RESERVED)}|.*_token)$"}},
}
VARIABLES = t.JsonType((dict,), _variables, lambda model: _VARIABLES)
DOCUMENTS = t.listed(t.JsonType((dict,), _document, t.OBJECT.schema), most=lambda model: MOST_DOCUMENTS)


@dataclass(frozen=True, slots=True)
class ReasoningOptions(t.JsonObject):
    """`reasoning`, an object in `/v1/responses` and in chats of routers."""

    effort: str | None = t.optional(EFFORT)
    enabled: bool | None = t.optional(t.FLAG)
    exclude: bool = t.optional(t.FLAG, default=False)  # it is not in the answer
    summary: str | None = t.optional(
        t.choice(("auto", "concise", "detailed"))
    )  # none is made: reasoning is given as it is
    IGNORED = ("generate_summary", "max_tokens")


NO_REASONING = ReasoningOptions()
REASONING: t.JsonType[ReasoningOptions] = t.record(ReasoningOptions)


@dataclass(frozen=True, kw_only=True)  # no slots: a class may have one base that has any
class TemplateFields(t.JsonObject):
    """What chats are told besides messages, wherever they are written."""

    chat_template_kwargs: Mapping[str, Any] | None = t.optional(VARIABLES)
    chat_template: Any = t.optional(
        t.only(
            None,
            "a template is a program, and only the model's own is run here: chat_template_kwargs sets its variables",
        )
    )
    reasoning_effort: str | None = t.optional(EFFORT)
    reasoning: ReasoningOptions = t.optional(REASONING, default=NO_REASONING)
    documents: tuple[Mapping[str, Any], ...] = t.optional(DOCUMENTS, default=())
    add_generation_prompt: bool | None = t.optional(t.FLAG)
    continue_final_message: bool = t.optional(t.FLAG, default=False)

    def template(self, messages: Sequence[Any], verbosity: str | None = None) -> TemplateSettings:
        """`messages` are those that the template will be given."""
        if self.continue_final_message:
            if self.add_generation_prompt:
                said = "the answer goes on with the last message, or begins a new one: leave out add_generation_prompt"
                raise invalid("continue_final_message", said)
            last = messages[-1].entry
            if last["role"] != "assistant" or not last["content"] or last.get("tool_calls"):
                said = "the last message must be the assistant's, with a text to go on with"
                raise invalid("continue_final_message", said)
        effort, own = self.reasoning_effort, self.reasoning.effort
        if None not in (effort, own) and effort != own:
            raise invalid("reasoning_effort", f"it is {effort}, and reasoning.effort is {own}; give one of them")
        return TemplateSettings(
            self.chat_template_kwargs or {},
            effort or own,
            self.reasoning.enabled,
            verbosity,
            self.documents,
            opens_answer=self.add_generation_prompt is not False,
            continues=self.continue_final_message,
        )
