"""Responses that nobody waits for: queued, polled, followed, cancelled; and what one was given to, page by page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip("torch")
pytest.importorskip("llguidance")
pytest.importorskip("starlette")

from tests.integration.marked_models import marked_engine, saying
from tests.integration.served import SECONDS, Served, served, wait

KEYS = ("first-key", "second-key")
LONG = "word " * 60


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with (
        marked_engine(tmp_path_factory.mktemp("marked")) as engine,
        served(engine, threads=True, api_keys=KEYS, max_queue=4) as found,
    ):
        yield found
        assert found.is_empty()


def respond(api: Served, **fields: Any) -> dict[str, Any]:
    found = api.post("/v1/responses", {"input": "Paris?", **fields})
    assert found.status_code == 200, found.text
    body: dict[str, Any] = found.json()
    return body


def polled(api: Served, name: str) -> dict[str, Any]:
    def found() -> dict[str, Any]:
        body: dict[str, Any] = api.get(f"/v1/responses/{name}").json()
        return body

    wait(lambda: found()["status"] not in ("queued", "in_progress"))
    return found()


def endless(api: Served, **fields: Any) -> dict[str, Any]:
    """An answer that runs until the end of the context."""
    ends = {str(one): -100 for one in api.engine.loaded.eos_ids}
    return respond(api, background=True, logit_bias=ends, **fields)


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n") if line.startswith("data: ")]


def test_an_answer_is_queued_and_found_when_it_is_done(api: Served) -> None:
    with saying(api, "It is warm."):
        queued = respond(api, background=True, metadata={"a": "b"}, text={"verbosity": "low"})
        assert (queued["status"], queued["background"], queued["output"]) == ("queued", True, [])
        done = polled(api, queued["id"])
    assert (done["status"], done["metadata"]) == ("completed", {"a": "b"})
    assert done["brim"]["warnings"][0].startswith("verbosity: "), "what it said is stored with it"
    assert done["output"][0]["content"][0]["text"] == "It is warm."
    assert done["usage"]["output_tokens"] > 0
    with saying(api, "Yes."):
        assert respond(api, input="And now?", previous_response_id=queued["id"])["status"] == "completed"
    entries = [one for one in api.log if one["path"] == "/v1/responses" and one["status"] == 200]
    assert any(one["completion_tokens"] == done["usage"]["output_tokens"] for one in entries), (
        "its line comes at its end"
    )


def test_an_answer_belongs_to_its_key(api: Served) -> None:
    name = endless(api)["id"]
    others = {"authorization": f"Bearer {KEYS[1]}"}
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        found = httpx.request(method, f"{api.url}/v1/responses/{name}{path}", headers=others)
        assert (found.status_code, found.json()["error"]["code"]) == (404, "not_found")
    assert api.post(f"/v1/responses/{name}/cancel").json()["status"] == "cancelled"


def test_one_that_is_cancelled_ends_where_it_is_and_gives_back_what_it_held(api: Served) -> None:
    name = endless(api)["id"]
    wait(lambda: api.get(f"/v1/responses/{name}").json()["status"] == "in_progress")
    (item,) = api.get(f"/v1/responses/{name}/input_items").json()["data"]
    assert item["content"][0]["text"] == "Paris?"
    again = api.post("/v1/responses", {"input": "Paris?", "background": True, "request_id": name})
    assert (again.status_code, again.json()["error"]["param"]) == (400, "request_id")
    found = api.post(f"/v1/responses/{name}/cancel").json()
    assert (found["id"], found["status"], found["error"]) == (name, "cancelled", None)
    assert api.is_empty()
    assert api.get(f"/v1/responses/{name}").json() == api.post(f"/v1/responses/{name}/cancel").json() == found
    deleted = endless(api)["id"]
    assert api.client().delete(f"/v1/responses/{deleted}").status_code == 200
    assert api.get(f"/v1/responses/{deleted}").status_code == 404
    assert api.is_empty()


def test_a_stream_is_left_and_taken_up_again(api: Served) -> None:
    with saying(api, LONG):
        body = {"input": "Paris?", "background": True, "stream": True}
        with api.client() as client, client.stream("POST", "/v1/responses", json=body) as response:
            lines = response.iter_lines()
            first = next(json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: "))
        name = first["response"]["id"]  # the client has left
        done = polled(api, name)
        whole = events(api.get(f"/v1/responses/{name}?stream=true").text)
        rest = events(api.get(f"/v1/responses/{name}?stream=true&starting_after=5").text)
    assert (first["type"], done["status"]) == ("response.created", "completed")
    assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
    assert whole[0] == first
    assert whole[-1]["type"] == "response.completed"
    assert whole[-1]["response"] == done
    assert rest == whole[6:]
    assert "".join(one.get("delta", "") for one in whole) == LONG


def test_a_prompt_that_cannot_be_answered_fails_where_it_is_looked_for(api: Served) -> None:
    queued = respond(api, background=True, input="long " * 2000)
    found = polled(api, queued["id"])
    assert (found["status"], found["error"]["code"]) == ("failed", "context_length_exceeded")
    assert "tokens" in found["error"]["message"]


def test_background_answers_have_places_like_any_other(api: Served) -> None:
    names = [endless(api)["id"] for _ in range(8)]
    full = api.post("/v1/responses", {"input": "Paris?", "background": True})
    assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
    with httpx.Client(base_url=api.url, headers={"authorization": f"Bearer {KEYS[1]}"}, timeout=SECONDS) as other:
        found = other.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
        )
    assert found.status_code == 200, "a client that has none of the places gets one"
    ends = [api.post(f"/v1/responses/{name}/cancel").json() for name in names]
    failed = [one for one in ends if one["status"] == "failed"]
    assert [one["error"]["code"] for one in failed] == ["displaced"]
    assert api.is_empty()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"background": True, "store": False}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"include": ["everything"]}, "include[0]"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
    ],
)
def test_what_cannot_be_is_refused(api: Served, body: dict[str, Any], param: str) -> None:
    found = api.post("/v1/responses", {"input": "Paris?", **body})
    assert (found.status_code, found.json()["error"]["param"]) == (400, param)


def test_fields_of_other_clients_are_taken_and_said_back(api: Served) -> None:
    with saying(api, "Yes."):
        found = respond(
            api,
            include=["reasoning.encrypted_content", "message.input_image.image_url"],
            reasoning={"effort": "low", "summary": "auto"},
            text={"verbosity": "low"},
            max_tool_calls=3,
            prompt_cache_key="a",
            truncation="auto",
        )
    assert found["reasoning"] == {"effort": "low", "summary": "auto"}
    assert (found["max_tool_calls"], found["prompt_cache_key"], found["truncation"]) == (3, "a", "auto")
    assert found["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    assert found["output"][0]["content"][0]["logprobs"] == []
    refused = api.post(f"/v1/responses/{found['id']}/cancel")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "response_id")
    unkept = api.get(f"/v1/responses/{found['id']}?stream=true")
    assert (unkept.status_code, unkept.json()["error"]["param"]) == (400, "stream")


def test_input_items_are_listed_in_pages(api: Served) -> None:
    given = [{"role": "user", "content": f"{number}"} for number in range(5)]
    with saying(api, "Yes."):
        first = respond(api, input=given)
        second = respond(api, input="And now?", previous_response_id=first["id"])

    def page(name: str, **query: Any) -> Any:
        with api.client() as client:
            return client.get(f"/v1/responses/{name}/input_items", params=query).json()

    def texts(found: Any) -> list[str]:
        return [one["content"][0]["text"] for one in found["data"]]

    assert texts(page(first["id"])) == ["4", "3", "2", "1", "0"]
    start = page(first["id"], order="asc", limit=2)
    assert (texts(start), start["has_more"], start["object"]) == (["0", "1"], True, "list")
    assert start["last_id"] == start["data"][-1]["id"]
    rest = page(first["id"], order="asc", after=start["last_id"])
    assert (texts(rest), rest["has_more"]) == (["2", "3", "4"], False)
    assert texts(page(second["id"], order="asc")) == ["0", "1", "2", "3", "4", "Yes.", "And now?"]
    for query, param in (
        ({"limit": 0}, "limit"),
        ({"order": "up"}, "order"),
        ({"after": "x"}, "after"),
        ({"b": 1}, "b"),
    ):
        assert page(first["id"], **query)["error"]["param"] == param


def test_a_drain_waits_for_them(tmp_path_factory: pytest.TempPathFactory) -> None:
    with (
        marked_engine(tmp_path_factory.mktemp("marked")) as engine,
        served(engine, threads=True, drain_seconds=SECONDS) as found,
    ):
        with saying(found, LONG):
            respond(found, background=True)
            found.server.stop()
            found.thread.join(SECONDS)
        assert found.ended == [0]
        (entry,) = [one for one in found.log if one["path"] == "/v1/responses"]
        assert (entry["status"], entry["finish_reasons"]) == (200, ["stop"])
