"""The requests of `/tokenize` and `/detokenize`: what is counted, and tokens that become text again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brim.serve.problems import invalid
from brim.serve.requests import types as t
from brim.serve.requests.chat import count_messages
from brim.serve.requests.dialogue import MESSAGES, Dialogue, Message, dialogue_of
from brim.serve.requests.sampling import token_id
from brim.serve.requests.template import TemplateFields
from brim.serve.requests.tools import TOOL_CHOICE, TOOLS, Tool, ToolChoice, requested_tools


def _known(value: int, path: str, model: t.ServedModel) -> int:
    if not 0 <= value < model.vocab:
        raise invalid(path, f"token {value!r:.40} is not in the vocabulary (0 to {model.vocab - 1})")
    return value


TOKEN_ID = t.JsonType((int,), _known, token_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedPrompt(t.JsonObject):
    prompt: str = t.required(t.TEXT)
    add_special_tokens: bool = t.optional(t.FLAG, default=True)
    return_token_strs: bool = t.optional(t.FLAG, default=False)
    model: str | None = t.optional(t.MODEL_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedChat(TemplateFields):
    messages: tuple[Message, ...] = t.required(MESSAGES)
    model: str | None = t.optional(t.MODEL_NAME)
    tools: tuple[Tool, ...] = t.optional(TOOLS, default=())
    tool_choice: ToolChoice = t.optional(TOOL_CHOICE, default="auto")
    parallel_tool_calls: bool = t.optional(t.FLAG, default=True)
    add_special_tokens: bool = t.optional(t.FLAG, default=False)  # besides those that the template writes
    return_token_strs: bool = t.optional(t.FLAG, default=False)
    UNSUPPORTED = ("prompt",)


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """A text, or a chat (then `text` is None)."""

    text: str | None
    dialogue: Dialogue | None
    special: bool
    with_texts: bool  # each token as the tokenizer writes it


@dataclass(frozen=True, slots=True, kw_only=True)
class DetokenizeBody(t.JsonObject):
    tokens: tuple[int, ...] = t.required(t.listed(TOKEN_ID, most=lambda model: model.longest))
    model: str | None = t.optional(t.MODEL_NAME)


def read_tokenize(found: Mapping[str, t.Json], model: t.ServedModel) -> TokenizeRequest:
    """A prompt, or the messages of a chat."""
    if found.get("prompt") is not None:
        prompt = TokenizedPrompt.read_body(found, model)
        return TokenizeRequest(prompt.prompt, None, prompt.add_special_tokens, prompt.return_token_strs)
    count_messages(found, model, rolls=False)
    body = TokenizedChat.read_body(found, model)
    tools = requested_tools(body.tools, body.tool_choice, body.parallel_tool_calls)
    dialogue = dialogue_of(body.messages, tools.tools, model.limits, "messages", body.template(body.messages))
    return TokenizeRequest(None, dialogue, body.add_special_tokens, body.return_token_strs)


def tokenize_schema(model: t.ServedModel) -> t.Schema:
    return {"anyOf": [TokenizedPrompt.openapi(model), TokenizedChat.openapi(model)]}
