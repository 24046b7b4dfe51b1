"""The bodies of requests: each table lists the fields that a reader in `brim.serve.requests` takes (a test checks)."""

from __future__ import annotations

from dataclasses import dataclass

from brim.engine.front.validation import MOST_PRIORITY
from brim.engine.requests.params import MAX_ALTERNATIVES, MAX_BIAS, MAX_IDS, MAX_STOP_LENGTH, MAX_STOPS
from brim.model.catalogue import entries
from brim.planning.devices import catalogue
from brim.planning.engines import ENGINES
from brim.serve.openapi.words import (
    ANYTHING,
    FLAG,
    NOTHING,
    OBJECT,
    TEXT,
    Schema,
    decimals_below,
    either,
    listed,
    number_of,
    one_of,
    taken,
)
from brim.serve.requests import plan as planned
from brim.serve.requests.answer_format import FORMATS
from brim.serve.requests.dialogue import ROLES
from brim.serve.requests.generation import MOST_TOKENS, NOT_YET, TRUNCATION
from brim.serve.requests.items import ROLES as ITEM_ROLES
from brim.serve.requests.media import AUDIO_FORMATS
from brim.serve.requests.metadata import KEY_LENGTH, MOST_PAIRS, VALUE_LENGTH
from brim.serve.requests.responses_api import INCLUDED
from brim.serve.requests.responses_api import NOT_YET as RESPONSES_NOT_YET
from brim.serve.requests.sampling import AS_THEY_ARE, HARMLESS
from brim.serve.requests.tools import MODES, MOST_TOOLS, NAME_LENGTH
from brim.serve.settings import DEFAULT_MESSAGES

SOME_TEXT: Schema = {"type": "string", "minLength": 1}
TOKENS: Schema = {"type": "integer", "minimum": 1, "maximum": MOST_TOKENS}
_METADATA: Schema = {
    "type": "object",
    "maxProperties": MOST_PAIRS,
    "propertyNames": {"maxLength": KEY_LENGTH},
    "additionalProperties": {"type": "string", "maxLength": VALUE_LENGTH},
}
_LIST: Schema = {"type": "array"}
_PARAMETERS: Schema = {  # any schema, as far as calls are written by it
    "type": "object",
    "properties": {
        "properties": {"type": "object", "additionalProperties": {"properties": {"enum": _LIST}}},
        "required": _LIST,
    },
}
_AUDIO_URI: Schema = {"type": "string", "pattern": "^data:audio/wav;base64,"}


@dataclass(frozen=True, slots=True)
class Facts:
    """What bodies depend on: the model's name, its vocabulary, and what it takes besides text."""

    model: str
    vocab: int = 1 << 31
    images: bool = True
    audio: bool = True
    remote: bool = False  # images may be URLs
    messages: int = DEFAULT_MESSAGES  # the most of a conversation

    @property
    def token(self) -> Schema:
        return {"type": "integer", "minimum": 0, "maximum": self.vocab - 1}

    @property
    def image(self) -> Schema:
        """Where an image is."""
        return {"type": "string", "pattern": "^(data:|https://)" if self.remote else "^data:"}


def chat(facts: Facts) -> Schema:
    return taken(
        {
            "messages": listed(_message(facts), minItems=1, maxItems=facts.messages),
            "max_tokens": TOKENS,
            "max_completion_tokens": TOKENS,
            "logprobs": FLAG,
            "top_logprobs": {"type": "integer", "minimum": 0, "maximum": MAX_ALTERNATIVES},
            "truncation": one_of(TRUNCATION),
            "modalities": {"const": ["text"]},
            "response_format": _format(flat=False),
            **_tools(flat=False),
            **_sampling(facts),
            **_common(facts),
            **dict.fromkeys(NOT_YET, NOTHING),
        },
        ["messages"],
    )


def completion(facts: Facts) -> Schema:
    tokens = listed(facts.token, minItems=1)
    prompt = either(SOME_TEXT, tokens, listed(either(SOME_TEXT, tokens), minItems=1))
    return taken(
        {
            "prompt": prompt,
            "echo": FLAG,
            "logprobs": {"type": "integer", "minimum": 0, "maximum": MAX_ALTERNATIVES},
            "max_tokens": {"type": "integer", "minimum": 0, "maximum": MOST_TOKENS},
            "best_of": TOKENS,
            **_sampling(facts),
            **_common(facts),
            **dict.fromkeys(NOT_YET, NOTHING),
        },
        ["prompt"],
    )


def response(facts: Facts) -> Schema:
    sampling = {name: schema for name, schema in _sampling(facts).items() if name != "n"}
    return taken(
        {
            "input": either(TEXT, listed(_item(facts), minItems=1, maxItems=facts.messages)),
            "instructions": TEXT,
            "max_output_tokens": TOKENS,
            "n": {"const": 1},
            "previous_response_id": TEXT,
            "text": taken({"format": _format(flat=True), "verbosity": NOTHING}),
            "truncation": one_of(TRUNCATION),
            "include": listed(one_of(INCLUDED)),
            "top_logprobs": {"type": "integer", "minimum": 0, "maximum": MAX_ALTERNATIVES},
            **_tools(flat=True),
            **sampling,
            **_common(facts),
            "store": FLAG,
            "stream_options": taken({"include_obfuscation": ANYTHING}),
            **dict.fromkeys(RESPONSES_NOT_YET, NOTHING),
        },
        ["input"],
    )


def tokenize(facts: Facts) -> Schema:
    model = one_of([facts.model])
    prompt = taken({"prompt": TEXT, "add_special_tokens": FLAG, "model": model}, ["prompt"])
    tools = _tools(flat=False)
    messages = taken(
        {
            "messages": listed(_message(facts), minItems=1, maxItems=facts.messages),
            "prompt": NOTHING,
            "model": model,
            **tools,
        },
        ["messages"],
    )
    return either(prompt, messages)


def plan() -> Schema:
    sizes: dict[str, Schema] = {
        name: {"type": "integer", "minimum": 1, "maximum": most} for name, most in planned.SIZES.items()
    }
    chosen: dict[str, Schema] = {
        "model": one_of(entries()),
        "gpu": one_of(device.key for device in catalogue()),
        "kv_dtype": one_of(planned.KV_DTYPES),
        "weights": one_of(planned.WEIGHTS),
        "engine": one_of(ENGINES),
        "graphs": one_of(planned.GRAPHS),
        "ep": FLAG,
    }
    return taken({**chosen, **sizes}, ["model", "gpu"])


def _sampling(facts: Facts) -> dict[str, Schema]:
    bias = {
        "type": "object",
        "propertyNames": {"pattern": decimals_below(facts.vocab)},
        "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
        "maxProperties": MAX_IDS,
    }
    stop = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
    numbers = {name: FLAG if name == "ignore_eos" else number_of(name) for name in AS_THEY_ARE}
    return {
        **numbers,
        "stop": either(stop, listed(stop, maxItems=MAX_STOPS)),
        "stop_token_ids": listed(facts.token, maxItems=MAX_IDS),
        "logit_bias": bias,
    }


def _common(facts: Facts) -> dict[str, Schema]:
    return {
        "model": one_of([facts.model]),
        "stream": FLAG,
        "stream_options": taken({"include_usage": FLAG, "include_obfuscation": ANYTHING}),
        "deadline_seconds": {"type": "number", "exclusiveMinimum": 0},
        "priority": {"type": "integer", "minimum": -MOST_PRIORITY, "maximum": MOST_PRIORITY},
        "metadata": _METADATA,
        **dict.fromkeys(HARMLESS, ANYTHING),
    }


def _message(facts: Facts) -> Schema:
    function = taken({"name": SOME_TEXT, "arguments": either(TEXT, OBJECT)}, ["name"])
    call = taken({"function": function, "id": TEXT, "type": ANYTHING, "index": ANYTHING}, ["function"])
    shared = {
        "role": one_of(ROLES),
        "name": TEXT,
        "tool_call_id": TEXT,
        "reasoning_content": TEXT,
        "refusal": ANYTHING,
        "annotations": ANYTHING,
        "audio": NOTHING,
        "function_call": NOTHING,
    }
    content = either(TEXT, listed(_part(facts)))
    calls = listed(call, minItems=1)
    return either(
        taken({**shared, "content": content, "tool_calls": listed(call)}, ["role", "content"]),
        taken({**shared, "content": content, "tool_calls": calls}, ["role", "tool_calls"]),
    )


def _part(facts: Facts) -> Schema:
    parts = [taken({"type": {"const": "text"}, "text": TEXT}, ["type", "text"])]
    if facts.images:
        url = taken({"url": facts.image, "detail": ANYTHING}, ["url"])
        parts.append(taken({"type": {"const": "image_url"}, "image_url": url}, ["type", "image_url"]))
    if facts.audio:
        url = taken({"url": _AUDIO_URI}, ["url"])
        parts += [_audio(), taken({"type": {"const": "audio_url"}, "audio_url": url}, ["type", "audio_url"])]
    return either(*parts)


def _audio() -> Schema:
    """The same for chats and responses."""
    file = taken({"data": SOME_TEXT, "format": one_of(AUDIO_FORMATS)}, ["data", "format"])
    return taken({"type": {"const": "input_audio"}, "input_audio": file}, ["type", "input_audio"])


def _tools(flat: bool) -> dict[str, Schema]:
    name = {"type": "string", "minLength": 1, "maxLength": NAME_LENGTH}
    function = {"name": name, "description": TEXT, "parameters": _PARAMETERS, "strict": FLAG}
    kind: Schema = {"const": "function"}
    named = taken({"name": TEXT}, ["name"])
    if flat:
        tool = taken({"type": kind, **function}, ["type", "name"])
        choice = taken({"type": kind, "name": TEXT}, ["type", "name"])
    else:
        tool = taken({"type": kind, "function": taken(function, ["name"])}, ["type", "function"])
        choice = taken({"type": kind, "function": named}, ["type", "function"])
    return {
        "tools": listed(tool, maxItems=MOST_TOOLS),
        "tool_choice": either(one_of(MODES), choice),
        "parallel_tool_calls": FLAG,
    }


def _format(flat: bool) -> Schema:
    plain, schema = FORMATS[:-1], FORMATS[-1]
    inner = {"name": TEXT, "schema": OBJECT, "description": TEXT, "strict": FLAG}
    kind: Schema = {"const": schema}
    if flat:
        of_schema = taken({"type": kind, **inner}, ["type", "name"])
    else:
        of_schema = taken({"type": kind, schema: taken(inner, ["name"])}, ["type", schema])
    return either(taken({"type": one_of(plain)}, ["type"]), of_schema)


def _item(facts: Facts) -> Schema:
    of_output = {"id": ANYTHING, "status": ANYTHING}
    text = taken(
        {"type": one_of(["input_text", "output_text"]), "text": TEXT, "annotations": ANYTHING, "logprobs": ANYTHING},
        ["type", "text"],
    )
    kind: Schema = {"const": "input_image"}
    image = taken({"type": kind, "image_url": facts.image, "detail": ANYTHING}, ["type", "image_url"])
    parts = [text, *([image] if facts.images else []), *([_audio()] if facts.audio else [])]
    content = either(TEXT, listed(either(*parts)))
    call = {"type": {"const": "function_call"}, "name": SOME_TEXT, "arguments": TEXT, "call_id": TEXT}
    output = {"type": {"const": "function_call_output"}, "call_id": TEXT, "output": content}
    thought = taken({"type": ANYTHING, "text": TEXT}, ["text"])
    return either(
        taken(
            {
                "type": {"const": "message"},
                "role": one_of(ITEM_ROLES),
                "content": content,
                "phase": ANYTHING,
                **of_output,
            },
            ["role", "content"],
        ),
        taken({**call, **of_output}, list(call)),
        taken({**output, **of_output}, list(output)),
        taken(
            {
                "type": {"const": "reasoning"},
                "content": listed(thought),
                "summary": ANYTHING,
                "encrypted_content": ANYTHING,
                **of_output,
            },
            ["type"],
        ),
    )
