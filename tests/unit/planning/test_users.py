"""Plans for users: how many run at once, and whether memory can be read fast enough for them."""

from __future__ import annotations

import json

import pytest

import brim
from brim.cli.main import run
from brim.errors import InvalidRequest
from brim.model.source import load_model
from brim.model.weights import weight_bytes
from brim.planning.gpus.cards import BANDWIDTH_GB, CARDS


def test_all_users_run_and_the_bandwidth_allows_it() -> None:
    plan = brim.plan("llama-3.1-8b", gpu="h200", max_len=8192, users=200, mean_len=2048, tokens_per_second=20)
    found = plan.users
    assert found is not None
    assert (found.at_once, found.bandwidth_allows) == (200, True)
    spec = load_model("llama-3.1-8b")
    embeddings = spec.vocab * spec.hidden * 2
    kv = 200 * 2048 * plan.kv_bytes_per_token
    assert found.read_bytes == weight_bytes(spec).total_bytes - embeddings + kv
    assert found.most_tokens_per_second == pytest.approx(4800e9 / found.read_bytes)
    assert plan.max_seqs == 200


def test_users_that_wait_and_a_bandwidth_that_is_too_low() -> None:
    found = brim.plan("qwen3-8b", gpu="l4", users=100, mean_len=2048, tokens_per_second=50).users
    assert found is not None
    assert 0 < found.at_once < 100
    assert found.bandwidth_allows is False
    unknown = brim.plan("qwen3-8b", gpu="24GiB", users=4, mean_len=1024, tokens_per_second=50).users
    assert unknown is not None
    assert (unknown.most_tokens_per_second, unknown.bandwidth_allows) == (None, None)


def test_of_a_mixture_a_step_reads_the_experts_of_a_token_at_least() -> None:
    found = brim.plan("qwen3-30b-a3b", gpu="h200", users=1, mean_len=128).users
    assert found is not None
    assert found.read_bytes < weight_bytes(load_model("qwen3-30b-a3b")).total_bytes // 6


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"users": 4}, "users is given without mean-len"),
        ({"tokens_per_second": 4}, "users is not given"),
        ({"users": 4, "mean_len": 512, "concurrency": 4}, "leave out concurrency"),
    ],
)
def test_what_is_missing_is_named(asked: dict[str, int], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        brim.plan("qwen3-8b", gpu="h100", **asked)


def test_the_command_with_and_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "qwen3-8b", "--users", "200", "--mean-len", "2k", "--tokens-per-second", "20"]
    assert run([*words, "--gpu", "h200"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "200 of 200 users with 2,048 tokens on average run at once" in said
    assert "the bandwidth allows 20" in said
    assert run([*words, "--json"]) == 0
    options = json.loads(capsys.readouterr().out)["options"]
    for one in (options[0], options[-1]):
        flags = dict(zip(one["flags"][::2], one["flags"][1::2], strict=True))
        formats = {"weights": flags.get("--weights"), "kv_dtype": flags.get("--kv-dtype")}
        found = brim.plan("qwen3-8b", gpu=flags["--gpu"], users=200, mean_len=2048, trace=False, **formats).users
        assert found is not None
        assert found.at_once == 200


def test_bandwidths_are_of_cards_of_the_catalogue() -> None:
    assert set(BANDWIDTH_GB) <= {card.key for card in CARDS}
