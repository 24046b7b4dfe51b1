"""The bodies of answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from brim.serve.lifecycle import ServerState
from brim.serve.requests.types import NULL, Schema

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
ANYTHING: Schema = {}
OBJECT: Schema = {"type": "object"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}


def one_of(values: Iterable[Any]) -> Schema:
    return {"enum": list(values)}


def listed(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def optional(schema: Schema) -> Schema:
    return either(schema, NULL)


def given(properties: Mapping[str, Schema], optionally: Mapping[str, Schema] | None = None) -> Schema:
    """All of these fields are there, and perhaps others."""
    return {"type": "object", "properties": {**properties, **(optionally or {})}, "required": list(properties)}


REASONS = ("stop", "length", "deadline")
_CACHED = given({"cached_tokens": COUNT})
_THOUGHT = given({"reasoning_tokens": COUNT})
_OWN = given({}, {"evicted_turns": COUNT, "evicted_tokens": COUNT, "warnings": listed(TEXT)})  # what Brim says
_USAGE = {
    "prompt_tokens": COUNT,
    "completion_tokens": COUNT,
    "total_tokens": COUNT,
    "prompt_tokens_details": _CACHED,
}
_PREDICTED = {"accepted_prediction_tokens": COUNT, "rejected_prediction_tokens": COUNT}
_OF_PROMPT = {
    "prompt_token_ids": optional(listed(COUNT)),
    "prompt_logprobs": optional(listed(optional(OBJECT))),
}
_OF_ANSWER = {
    "stop_reason": optional(either(TEXT, COUNT)),
    "matched_stop": optional(either(TEXT, COUNT)),
    "token_ids": optional(listed(COUNT)),
}
_HEAD = {"id": TEXT, "created": COUNT, "model": TEXT}

PROBLEM = given({"error": given({"message": TEXT, "type": TEXT, "param": optional(TEXT), "code": optional(TEXT)})})
ANTHROPIC_PROBLEM = given({"type": {"const": "error"}, "error": given({"type": TEXT, "message": TEXT})})
HEALTH = given({"status": one_of(map(str, ServerState))}, {"phase": TEXT, "reason": TEXT})
MODEL = given(
    {"id": TEXT, "object": {"const": "model"}, "created": COUNT, "owned_by": TEXT, "root": TEXT},
    {"max_model_len": COUNT, "input_modalities": listed(one_of(["text", "image", "audio"]))},
)
MODELS = given({"object": {"const": "list"}, "data": listed(MODEL)})
TOKENIZED = given(
    {"count": COUNT, "max_model_len": COUNT, "tokens": listed(COUNT), "token_strs": optional(listed(TEXT))}
)
DETOKENIZED = given({"prompt": TEXT})
TOKENIZER_INFO = given({"tokenizer_class": TEXT})
LOAD = given({"server_load": COUNT})
VERSION = given({"version": TEXT})
MEMORY = given(
    {
        "object": {"const": "brim.memory"},
        "device": TEXT,
        "kv": OBJECT,
        "weight_bytes": COUNT,
        "now": optional(OBJECT),
        "leases": optional(listed(OBJECT)),
        "fit": optional(OBJECT),
        "requests": OBJECT,
        "admission": OBJECT,
        "preemption": OBJECT,
        "speculation": optional(OBJECT),
        "health": OBJECT,
    }
)
_CALL = either(
    given({"id": TEXT, "type": {"const": "function"}, "function": given({"name": TEXT, "arguments": TEXT})}),
    given({"id": TEXT, "type": {"const": "custom"}, "custom": given({"name": TEXT, "input": TEXT})}),
)
CHAT = given(
    {
        **_HEAD,
        "object": {"const": "chat.completion"},
        "choices": listed(
            given(
                {
                    "index": COUNT,
                    "message": given(
                        {"role": {"const": "assistant"}, "content": optional(TEXT)},
                        {"reasoning_content": TEXT, "reasoning": TEXT, "tool_calls": listed(_CALL)},
                    ),
                    "logprobs": optional(given({"content": listed(OBJECT)})),
                    "finish_reason": one_of([*REASONS, "tool_calls"]),
                    **_OF_ANSWER,
                }
            )
        ),
        "usage": given({**_USAGE, "completion_tokens_details": given({"reasoning_tokens": COUNT, **_PREDICTED})}),
        **_OF_PROMPT,
    },
    {"brim": _OWN},
)
COMPLETION = given(
    {
        **_HEAD,
        "object": {"const": "text_completion"},
        "choices": listed(
            given(
                {
                    "index": COUNT,
                    "text": TEXT,
                    "logprobs": optional(OBJECT),
                    "finish_reason": one_of(REASONS),
                    **_OF_ANSWER,
                    **_OF_PROMPT,
                }
            )
        ),
        "usage": given(_USAGE),
    },
    {"brim": _OWN},
)
RESPONSE = given(
    {
        "id": TEXT,
        "object": {"const": "response"},
        "created_at": COUNT,
        "model": TEXT,
        "status": one_of(["completed", "incomplete", "in_progress", "queued", "failed", "cancelled"]),
        "error": optional(OBJECT),
        "incomplete_details": optional(given({"reason": TEXT})),
        "output": listed(
            given(
                {
                    "id": TEXT,
                    "type": one_of(["message", "reasoning", "function_call", "custom_tool_call"]),
                    "status": TEXT,
                }
            )
        ),
        "usage": optional(
            given(
                {
                    "input_tokens": COUNT,
                    "input_tokens_details": _CACHED,
                    "output_tokens": COUNT,
                    "output_tokens_details": _THOUGHT,
                    "total_tokens": COUNT,
                }
            )
        ),
        "store": FLAG,
        "background": FLAG,
        "instructions": optional(TEXT),
        "max_output_tokens": optional(COUNT),
        "metadata": ANYTHING,
        "parallel_tool_calls": FLAG,
        "previous_response_id": optional(TEXT),
        "temperature": NUMBER,
        "text": OBJECT,
        "tool_choice": either(TEXT, OBJECT),
        "tools": listed(OBJECT),
        "top_p": NUMBER,
        "truncation": TEXT,
    },
    {"brim": _OWN},
)
DELETED: Schema = given({"id": TEXT, "object": {"const": "response"}, "deleted": {"const": True}})
ITEMS = given(
    {
        "object": {"const": "list"},
        "data": listed(given({"id": TEXT, "type": TEXT})),
        "has_more": FLAG,
        "first_id": optional(TEXT),
        "last_id": optional(TEXT),
    }
)
MESSAGE = given(
    {
        "id": TEXT,
        "type": {"const": "message"},
        "role": {"const": "assistant"},
        "model": TEXT,
        "content": listed(given({"type": one_of(["text", "thinking", "tool_use"])})),
        "stop_reason": one_of(["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]),
        "stop_sequence": optional(TEXT),
        "usage": given(
            dict.fromkeys(
                ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"), COUNT
            )
        ),
    },
    {"brim": _OWN},
)
INPUT_TOKENS = given({"input_tokens": COUNT})
