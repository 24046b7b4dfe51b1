"""The tests of `brim serve` with the official client, against two replicas behind Ray Serve."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("ray.serve")
pytest.importorskip("openai")

import httpx
import openai

from brim.model.packaged import packaged_folder
from tests.integration.test_chat import model
from tests.integration.test_serve import (  # noqa: F401 - run here too, with the fixtures below
    KEYS,
    PLACES,
    test_a_bad_request_is_refused_with_its_reason,
    test_a_chat_is_answered,
    test_a_conversation_rolls_where_that_was_asked_for,
    test_a_deadline_ends_an_answer_where_it_is,
    test_a_prompt_is_echoed_and_scored,
    test_a_scored_prompt_is_streamed_as_it_is_answered,
    test_a_streamed_chat_is_the_same_in_pieces,
    test_an_image_to_a_text_model_is_refused,
    test_audio_to_a_text_model_is_refused,
    test_bodies_that_are_not_json,
    test_cached_tokens_are_counted_and_not_shared_between_keys,
    test_completions_of_texts_and_tokens,
    test_events_are_as_the_protocol_wants_them,
    test_models_are_listed,
    test_sampling_is_as_asked,
    test_the_log_has_a_line_for_each_request_and_no_text,
    test_tools_and_their_results_reach_the_template,
)
from tests.ray.cluster import OnRay, deploy


class Conforming(OnRay):
    """As the tests of one server see theirs."""

    def is_empty(self) -> bool:
        return self.is_idle()


@pytest.fixture(scope="module")
def tiny(on_ray: OnRay, tmp_path_factory: pytest.TempPathFactory) -> Conforming:
    """The same weights as the engine of those tests, from files."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    shutil.copytree(packaged_folder("brim-tiny"), folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    model("llama", 7).model.save_pretrained(folder)
    options = "--served-model-name tiny --memory 256MiB --canary 1MiB --kv-tokens 2048 --max-len 512 --max-seqs 4 "
    options += f"--max-queue {PLACES - 4} --max-body 200000 --dtype fp32 --batch-tokens 128 --no-graphs "
    options += " ".join(f"--api-key {key}" for key in KEYS)
    found = Conforming(on_ray.url, on_ray.logs, KEYS[0])
    deploy(found, {"model": str(folder), "replicas": 2, "options": options})
    return found


@pytest.fixture
def client(tiny: Conforming) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{tiny.url}/v1", api_key=KEYS[0], max_retries=0) as made:
        yield made


def test_a_key_is_needed_everywhere_but_for_health(tiny: Conforming) -> None:
    for path in ("/v1/models", "/metrics", "/v1/memory", "/v1/chat/completions", "/nowhere"):
        found = httpx.get(tiny.url + path)
        assert (found.status_code, found.json()["error"]["code"]) == (401, "invalid_api_key")
    found = httpx.get(tiny.url + "/health").json()
    assert found["status"] == "ready"
    assert list(found["replicas"].values()) == ["ready", "ready"]


def test_a_stored_response_is_found_wherever_it_is(client: Any) -> None:
    made = [client.responses.create(model="tiny", input=f"Number {n}.", max_output_tokens=8) for n in range(4)]
    for one in made:
        assert client.responses.retrieve(one.id).output_text == one.output_text
        went_on = client.responses.create(
            model="tiny", input="And then?", previous_response_id=one.id, max_output_tokens=8
        )
        assert went_on.previous_response_id == one.id
    client.responses.delete(made[0].id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made[0].id)
    with pytest.raises((openai.NotFoundError, openai.BadRequestError)):
        client.responses.create(model="tiny", input="And?", previous_response_id=made[0].id)


def test_the_page_and_the_document_are_there(tiny: Conforming) -> None:
    assert "<html" in tiny.get("/").text
    assert tiny.get("/page/main.js").headers["content-type"].startswith("text/javascript")
    assert "/v1/chat/completions" in tiny.get("/openapi.json").json()["paths"]
