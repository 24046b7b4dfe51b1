"""The OpenAPI document against the server: schemathesis makes requests of it, good and bad, and judges the answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")
pytest.importorskip("schemathesis")

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

from brim.engine.requests.params import SamplingParams
from brim.serve.openapi.document import document
from brim.serve.problems import Problem
from brim.serve.requests.chat import ChatBody, read_chat
from brim.serve.requests.completion import CompletionBody, read_completion
from brim.serve.requests.messages import CountTokensBody, MessagesBody, read_count_tokens, read_messages
from brim.serve.requests.plan import PlanQuery
from brim.serve.requests.responses_api import ResponseBody, read_response
from brim.serve.requests.sampling import decimals_below
from brim.serve.requests.tokenize import DetokenizeBody, read_tokenize, tokenize_schema
from brim.serve.requests.types import JsonObject, ServedModel
from tests.integration.served import Served, served
from tests.integration.test_chat import engine_of

KEY = "a-key"
MODEL = ServedModel("m", longest=100)
NEEDED = {
    "messages": [{"role": "user", "content": "a"}],
    "prompt": "a",
    "input": "a",
    "max_tokens": 5,
    "model": "llama-3.1-8b",
    "gpu": "h200",
    "tokens": [1, 2],
}
# What a schema cannot say: how fields agree with each other, with the context, and with what is stored.
RELATED = {
    "best_of",
    "",
    "continue_final_message",
    "echo",
    "ebnf",
    "grammar",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "ignore_eos",
    "input",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "min_tokens",
    "n",
    "previous_response_id",
    "prompt",
    "reasoning_effort",
    "json_schema",
    "regex",
    "response_format",
    "stop_token_ids",
    "stream_options",
    "structured_outputs",
    "text.format",
    "tool_choice",
    "tools",
    "top_logprobs",
}
OPERATIONS = [
    (path, method)
    for path, found in document(ServedModel("tiny", images=False, audio=False), keys=True)["paths"].items()
    for method in found
    if method != "parameters"
]


@pytest.fixture(scope="module")
def api() -> Iterator[Served]:
    engine = engine_of(copy=51, kv_tokens=2048)
    with served(engine, threads=True, api_keys=(KEY,), max_queue=60) as found:
        yield found
        assert found.is_empty()


@cache
def schema_of(url: str) -> Any:
    return schemathesis.openapi.from_url(f"{url}/openapi.json", headers={"Authorization": f"Bearer {KEY}"})


def tried(api: Served, path: str, method: str, examples: int) -> None:
    """Requests for one endpoint, and what schemathesis thinks of the answers."""
    operation = schema_of(api.url)[path][method.upper()]
    modes = list(schemathesis.GenerationMode)
    cases = st.one_of([operation.as_strategy(generation_mode=mode) for mode in modes])

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def ask(case: Any) -> None:
        positive = case.meta is not None and case.meta.generation.mode.is_positive
        headers = {} if "Authorization" in case.headers else {"Authorization": f"Bearer {KEY}"}
        if positive and method == "post":
            headers["X-Deadline-Seconds"] = "0.1"
        response = case.call(headers=headers)
        if positive and response.status_code == 504:
            return  # a busy machine: the deadline passed while the prompt was made
        case.validate_response(response, excluded_checks=[positive_data_acceptance])
        if positive and response.status_code == 400:
            error = response.json()["error"]
            named = error["param"] or "" if "param" in error else error["message"].partition(":")[0]  # Anthropic's
            assert re.split(r"[\[.]", named)[0] in {one.split(".")[0] for one in RELATED}, error

    ask()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/detokenize"])
def test_the_server_does_what_its_document_says(api: Served, path: str) -> None:
    tried(api, path, "post", examples=4)


@pytest.mark.soak
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_the_same_for_all_of_it_for_a_long_time(api: Served, path: str, method: str) -> None:
    tried(api, path, method, examples=300)


@pytest.mark.parametrize(
    ("schema", "read"),
    [
        (ChatBody.openapi(MODEL), lambda body: read_chat(body, MODEL)),
        (CompletionBody.openapi(MODEL), lambda body: read_completion(body, MODEL)),
        (ResponseBody.openapi(MODEL), lambda body: read_response(body, MODEL, lambda name: None)),
        (MessagesBody.openapi(MODEL), lambda body: read_messages(body, MODEL)),
        (CountTokensBody.openapi(MODEL), lambda body: read_count_tokens(body, MODEL)),
        (PlanQuery.openapi(MODEL), lambda body: PlanQuery.read_body(body, MODEL)),
        (DetokenizeBody.openapi(MODEL), lambda body: DetokenizeBody.read_body(body, MODEL)),
        *((one, lambda body: read_tokenize(body, MODEL)) for one in tokenize_schema(MODEL)["anyOf"]),
    ],
)
def test_the_document_lists_the_fields_that_are_read(schema: Any, read: Any) -> None:
    """Each field of the document is known to the reader, may be null unless it is needed, and there are no others."""
    body = {name: NEEDED[name] for name in schema["required"]}
    assert read(body)
    for name, listed in schema["properties"].items():
        if name in schema["required"]:
            with pytest.raises(Problem) as refused:
                read(body | {name: None})
            assert refused.value.code == "missing_required_parameter"
            assert refused.value.param in (name, "messages"), "/tokenize takes messages where it has no prompt"
        else:
            assert read(body | {name: None}) == read(body)
            assert listed == {} or listed == {"type": "null"} or {"type": "null"} in listed["anyOf"], name
    with pytest.raises(Problem, match="there is no such field"):
        read(body | {"surprise": None})


@pytest.mark.parametrize("body", [ChatBody, CompletionBody, ResponseBody, MessagesBody])
def test_what_is_not_supported_is_refused_by_name_unless_it_is_null(body: type[JsonObject]) -> None:
    schema = body.openapi(MODEL)
    for name in body.UNSUPPORTED:
        assert schema["properties"][name] == {"type": "null"}
        with pytest.raises(Problem, match=f"^{name}: it is not supported yet") as refused:
            body.read_body({one: NEEDED[one] for one in schema["required"]} | {name: 1}, MODEL)
        assert refused.value.code == "unsupported_parameter"


@given(st.integers(1, 3000))
def test_decimals_below_a_limit(limit: int) -> None:
    pattern = re.compile(decimals_below(limit))
    assert all(bool(pattern.search(str(number))) == (number < limit) for number in range(0, 3100, 7))
    assert pattern.search(str(limit - 1))
    assert not pattern.search(str(limit))
    assert not pattern.search("")


def test_ranges_are_those_of_the_sampling_parameters() -> None:
    """A default that its own range refused would never be accepted."""
    chat = ChatBody.openapi(MODEL)["properties"]
    for name, value in asdict(SamplingParams()).items():
        if name in chat and isinstance(value, int | float) and not isinstance(value, bool):
            (schema, _) = chat[name]["anyOf"]
            assert schema.get("minimum", value) <= value <= schema.get("maximum", value), name
