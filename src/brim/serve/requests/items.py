"""The items of `/v1/responses` as messages of a chat.

In: messages, calls, their outputs and reasoning, as OpenAI writes them one beside the other. Out: messages as
`/v1/chat/completions` takes them, each at the place of the item that it comes from: calls and reasoning belong to the
assistant's message that they stand beside.
"""

from __future__ import annotations

from typing import Any

from brim.serve.problems import invalid
from brim.serve.requests.fields import RequestFields, entries

Json = dict[str, Any]
ROLES = ("system", "developer", "user", "assistant")
ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning")
PART_TYPES = ("input_text", "input_image", "input_audio")
_TEXT_PARTS = ("input_text", "output_text")
_OF_AN_OUTPUT = ("id", "status")  # an item of an answer that is sent back has these
_PHASES = ("phase",)  # of messages


def messages_of(items: list[Any], path: str) -> list[RequestFields]:
    """Messages, to be read as those of a chat are."""
    messages: list[tuple[str, Json]] = []
    thought = ""
    for item in entries(items, path):
        kind = item.text("type") or "message"
        match kind:
            case "message":
                made = _message(item)
            case "function_call":
                made = _call(item)
            case "function_call_output":
                made = _output(item)
            case "reasoning":
                thought += _reasoning(item)
                continue
            case _:
                said = f"{kind!r:.40} is not supported; {', '.join(ITEM_TYPES)} are"
                raise invalid(item.path("type"), said, "unsupported_value")
        if made["role"] == "assistant" and thought:
            made["reasoning_content"], thought = thought, ""
        if "tool_calls" in made and messages and messages[-1][1]["role"] == "assistant":
            messages[-1][1].setdefault("tool_calls", []).extend(made["tool_calls"])
            continue
        messages.append((item.path("")[:-1], made))
    return [RequestFields(message, where) for where, message in messages]


def _message(item: RequestFields) -> Json:
    role = item.choice("role", ROLES, "")
    if not role:
        raise invalid(item.path("role"), f"it must be one of {', '.join(ROLES)}", "missing_required_parameter")
    content = item.raw("content")
    if isinstance(content, list):
        content = [_part(part) for part in entries(content, item.path("content"))]
    elif not isinstance(content, str):
        raise invalid(item.path("content"), "must be a string or a list of parts", "missing_required_parameter")
    item.leave_out((*_OF_AN_OUTPUT, *_PHASES))
    item.refuse_others()
    return {"role": role, "content": content}


def _part(part: RequestFields) -> Json:
    kind = part.text("type")
    made: Json
    if kind in _TEXT_PARTS:
        made = {"type": "text", "text": part.needed_text("text")}
        part.leave_out(["annotations", "logprobs"])
    elif kind == "input_image":
        url = part.text("image_url")
        if url is None:
            raise invalid(part.path("image_url"), "it needs a data URI", "missing_required_parameter")
        made = {"type": "image_url", "image_url": {"url": url}}
        part.leave_out(["detail"])
    elif kind == "input_audio":
        made = {"type": kind, kind: part.raw(kind)}
    else:
        said = f"{kind!r:.40} is not supported; {', '.join(PART_TYPES)} are"
        raise invalid(part.path("type"), said, "unsupported_value")
    part.refuse_others()
    return made


def _call(item: RequestFields) -> Json:
    name, arguments, number = (item.needed_text(field) for field in ("name", "arguments", "call_id"))
    item.leave_out(_OF_AN_OUTPUT)
    item.refuse_others()
    call = {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _output(item: RequestFields) -> Json:
    number, output = item.needed_text("call_id"), item.raw("output")
    if isinstance(output, list):
        output = [_part(part) for part in entries(output, item.path("output"))]
    elif not isinstance(output, str):
        raise invalid(item.path("output"), "must be a string or a list of parts", "missing_required_parameter")
    item.leave_out(_OF_AN_OUTPUT)
    item.refuse_others()
    return {"role": "tool", "tool_call_id": number, "content": output}


def _reasoning(item: RequestFields) -> str:
    parts = entries(item.items("content") or [], item.path("content"))
    item.leave_out((*_OF_AN_OUTPUT, "summary", "encrypted_content"))
    item.refuse_others()
    return "".join(part.text("text") or "" for part in parts)
