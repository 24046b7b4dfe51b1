"""What is refused before anything is placed, replicas of two ranks, and replicas on two nodes."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("ray.serve")

import brim.ray
from brim.errors import DoesNotFit, InvalidRequest
from brim.ray.arguments import ModelArguments, read_arguments
from brim.ray.placement import check_placement
from tests.ray.cluster import SMALL, OnRay, deploy, message, processes, wait


def test_a_model_that_does_not_fit_its_gpu_is_refused_with_the_plan() -> None:
    began = time.monotonic()
    with pytest.raises(DoesNotFit) as refused:
        brim.ray.app({"model": "llama-3.1-70b", "gpus": 1, "accelerator": "L4", "options": "--load-format dummy"})
    said = str(refused.value)
    assert "llama-3.1-70b does not fit" in said
    assert "GiB missing" in said
    assert "nothing was started" in said
    assert refused.value.missing_bytes is not None
    assert time.monotonic() - began < 5


def test_a_part_of_a_gpu_is_planned_as_a_part() -> None:
    whole = {"model": "llama-3.1-8b", "gpus": 1.0, "plan_for": "l40s", "options": "--load-format dummy --max-len 8k"}
    assert check_placement(ModelArguments(**whole)) is not None
    with pytest.raises(DoesNotFit, match=r"0\.25 of it"):
        check_placement(ModelArguments(**{**whole, "gpus": 0.25}))


def test_ranks_share_a_model() -> None:
    options = "--load-format dummy --max-len 8k"
    chosen = {"model": "llama-3.1-70b", "gpus": 1.0, "accelerator": "H100", "options": options}
    with pytest.raises(DoesNotFit):
        check_placement(ModelArguments(**chosen))
    found = check_placement(ModelArguments(**chosen, tensor_parallel=4))
    assert found is not None
    assert found.ranks == 4


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"replicas": 0}, "replicas: "),
        ({"replica": 2}, "replica: "),
        ({"gpus": 2}, "gpus is 2"),
        ({"min_replicas": 3, "max_replicas": 2}, "max_replicas is 2"),
        ({"min_replicas": 3}, "without max_replicas"),
        ({"options": "--no-such-option"}, "--no-such-option"),
        ({"options": "--host 0.0.0.0"}, "no api-key"),
        ({"models": [{"model": "brim-tiny"}, {"model": "brim-tiny"}]}, "served-model-name"),
        ({"plan_for": "no-such-gpu"}, "no-such-gpu"),
    ],
)
def test_arguments_that_are_wrong_are_refused_by_name(given: dict[str, object], said: str) -> None:
    from brim.errors import InputError

    with pytest.raises(InputError) as refused:
        brim.ray.app(given)
    assert said in str(refused.value)


def test_words_of_a_command_line_are_read() -> None:
    found = read_arguments({"model": "brim-tiny", "replicas": "2", "gpus": "0.5", "frontends": "2"})
    (only,) = found.all_models()
    assert (only.replicas, only.gpus, found.frontends) == (2, 0.5, 2)
    assert only.serve_words() == ["serve", "brim-tiny", "--share", "0.5"]
    with pytest.raises(InvalidRequest):
        read_arguments({"replicas": "two"})


def test_a_replica_of_two_ranks_answers_like_one(on_ray: OnRay) -> None:
    body = {"messages": [message("My name is Ada. What is my name?")], "max_tokens": 12, "temperature": 0}
    deploy(on_ray, {"model": "brim-tiny", "options": SMALL})
    alone = on_ray.post("/v1/chat/completions", body).json()["choices"][0]["message"]
    deploy(on_ray, {"model": "brim-tiny", "options": SMALL + " --max-len 1024", "tensor_parallel": 2})
    wait(lambda: on_ray.get("/v1/models").json()["data"][0]["max_model_len"] == 1024)
    assert len(processes("ray::RankActor")) == 1
    split = on_ray.post("/v1/chat/completions", body).json()["choices"][0]["message"]
    assert split == alone
    body["stream"] = True
    with on_ray.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.read().endswith(b"data: [DONE]\n\n")


def test_two_models_in_one_application(on_ray: OnRay) -> None:
    models = [
        {"model": "brim-tiny", "options": SMALL, "cpus": 0.1},
        {"model": "brim-tiny", "options": SMALL + " --served-model-name other --max-len 512", "cpus": 0.1},
    ]
    deploy(on_ray, {"models": models})
    listed = {one["id"]: one["max_model_len"] for one in on_ray.get("/v1/models").json()["data"]}
    assert listed == {"brim-tiny": 2048, "other": 512}
    for name in listed:
        body = {"model": name, "messages": [message("Hi.")], "max_tokens": 3}
        assert on_ray.post("/v1/chat/completions", body).json()["model"] == name
        assert on_ray.get(f"/v1/models/{name}").json()["id"] == name
    refused = on_ray.post("/v1/chat/completions", {"model": "third", "messages": [message("Hi.")]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
