"""Brim's worker in real vLLM: sized, kept, and the same tokens as without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.hearing import AUDIO, write_model
from tests.vllm.starts import MARK, MODEL
from tests.vllm.tiny_configs import LATENTS, SEVERAL_GROUPS

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="make test-vllm installs it")

WORKER = "brim.vllm.BrimWorker"
SMALL = {"budget": "64MiB", "canary": "4MiB", "store": False}
PINNED_BYTES = 16 << 20
_SECONDS = 1800


def started(
    given: dict[str, Any], module: str = "tests.vllm.starts", **environment: str
) -> subprocess.CompletedProcess[str]:
    """A process of its own: vLLM leaves much behind."""
    own = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **environment}
    command = [sys.executable, "-m", module, json.dumps(given)]
    root = Path(__file__).parents[2]
    return subprocess.run(
        command, env={**os.environ, **own}, cwd=root, capture_output=True, text=True, timeout=_SECONDS, check=False
    )


def result(given: dict[str, Any], module: str = "tests.vllm.starts", **environment: str) -> dict[str, Any]:
    ended = started(given, module, **environment)
    marked = [line for line in ended.stdout.splitlines() if line.startswith(MARK)]
    assert marked, ended.stdout[-2000:] + ended.stderr[-4000:]
    found: dict[str, Any] = json.loads(marked[0].removeprefix(MARK))
    return found


@cache
def plain(ranks: int = 1) -> dict[str, Any]:
    """Stock vLLM, with a size that is enough."""
    return result({"kv_cache_memory_bytes": PINNED_BYTES, "tensor_parallel_size": ranks}, **bound(ranks))


def bound(ranks: int) -> dict[str, str]:
    """vLLM binds ranks to NUMA nodes unless it is told where they run."""
    return {"VLLM_CPU_OMP_THREADS_BIND": "0|1"} if ranks > 1 else {}


def sized(worker: str = WORKER, **settings: Any) -> dict[str, Any]:
    return {"worker_cls": worker, "additional_config": {"brim": {**SMALL, **settings}}}


def test_a_proven_size_is_kept_and_stored_and_tokens_are_those_of_plain_vllm(tmp_path: Path) -> None:
    given = sized(store=str(tmp_path / "fits"), report=str(tmp_path / "fit.json"))
    first, second = result(given), result(given)
    (report,), (again,) = first["reports"], second["reports"]
    assert first["tokens"] == second["tokens"] == plain()["tokens"]
    assert (report["kept"], report["from_store"]) == (True, False)
    assert (again["kept"], again["from_store"], again["kv_tokens"]) == (True, True, report["kv_tokens"])
    assert [one["outcome"] for one in report["attempts"]] == ["proven"]
    assert report["kv_bytes"] + report["canary_bytes"] < 64 << 20
    assert json.loads((tmp_path / "fit.json").read_text()) == again


def untrained(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A model with random weights, asked by token ids."""
    (folder / "config.json").write_text(json.dumps(config))
    ids = [{"prompt_token_ids": [5 + number % 7 for number in range(length)]} for length in (3, 90, 300)]
    return {"model": str(folder), "load_format": "dummy", "skip_tokenizer_init": True, "prompts": ids}


@pytest.mark.parametrize("layers", SEVERAL_GROUPS)
def test_layers_of_several_kinds_have_the_size_that_vllm_says_and_its_tokens(layers: str, tmp_path: Path) -> None:
    made = untrained(SEVERAL_GROUPS[layers], tmp_path)
    found, stock = result({**sized(), **made}), result({"kv_cache_memory_bytes": PINNED_BYTES, **made})
    (report,) = found["reports"]
    null_block = ceil(found["capacity"] / found["blocks"])
    assert report["kept"]
    assert 0 <= found["capacity"] - report["kv_tokens"] <= null_block
    assert found["tokens"] == stock["tokens"]


def test_a_cache_of_latents_is_sized(tmp_path: Path) -> None:
    vllm = find_spec("vllm")
    assert vllm is not None
    if not (Path(str(vllm.origin)).parent / "v1/attention/backends/mla/cpu_mla.py").is_file():
        pytest.skip("this version has no MLA on the CPU")
    made = untrained(LATENTS, tmp_path)
    found, stock = result({**sized(), **made}), result({"kv_cache_memory_bytes": PINNED_BYTES, **made})
    assert found["reports"][0]["kept"]
    assert found["tokens"] == stock["tokens"]


def test_the_longest_audio_is_part_of_the_fit(tmp_path: Path) -> None:
    prompts = [{"prompt": f"<|audio_bos|>{AUDIO}<|audio_eos|>It is", "hertz": hertz} for hertz in (220, 440)]
    longer = {"max_model_len": 1024, "max_num_batched_tokens": 1024}
    made = {"model": write_model(tmp_path), "load_format": "dummy", "prompts": [*prompts, "Once"], **longer}
    found, stock = result({**sized(), **made}), result({"kv_cache_memory_bytes": PINNED_BYTES, **made})
    (report,) = found["reports"]
    (encoder,) = (item for item in report["items"] if item["name"] == "encoder")
    assert report["kept"]
    assert encoder["measured_bytes"] > 1 << 20
    assert found["tokens"] == stock["tokens"]


def test_a_rebuild_is_warmed_up_with_new_rows() -> None:
    """Those of the worst steps would be captured as what they were: prefills."""
    found = result(sized("tests.vllm.new_rows.Worker"))
    assert found["tokens"] == plain()["tokens"]
    assert found["reports"][0]["kept"]


def test_memory_taken_after_the_measurement_shrinks_the_size() -> None:
    (report,) = result(sized("tests.vllm.neighbour.Worker"))["reports"]
    outcomes = [one["outcome"] for one in report["attempts"]]
    sizes = [one["kv_tokens"] for one in report["attempts"]]
    assert outcomes[0] == "out-of-memory"
    assert outcomes[-1] == "proven"
    assert sizes == sorted(sizes, reverse=True)
    assert report["kept"]


@pytest.mark.parametrize(("axis", "alike"), [("tensor_parallel_size", 2), ("pipeline_parallel_size", 1)])
def test_two_ranks_have_one_size(axis: str, alike: int) -> None:
    """Stages compute what one rank does; tensor parallelism adds in another order."""
    found = result({**sized(), axis: 2}, **bound(2))
    assert found["tokens"] == plain(alike)["tokens"]
    assert len(found["reports"]) == 2
    assert len({report["kv_tokens"] for report in found["reports"]}) == 1
    assert all(report["kept"] for report in found["reports"])


@pytest.mark.parametrize(
    "drafted", [{"method": "ngram", "prompt_lookup_max": 3}, {"method": "draft_model", "model": str(MODEL)}]
)
def test_drafts_are_made_and_verified_in_the_fit(drafted: dict[str, Any]) -> None:
    drafting = sized("tests.vllm.drafting.Worker")
    found = result({**drafting, "speculative_config": {"num_speculative_tokens": 3, **drafted}})
    assert found["tokens"] == plain()["tokens"]
    assert found["reports"][0]["kept"]


def test_a_drafter_with_little_room_in_a_step_is_part_of_the_fit() -> None:
    drafted = {"method": "draft_model", "model": str(MODEL), "num_speculative_tokens": 3}
    found = result({**sized(), "speculative_config": drafted, "max_num_batched_tokens": 256})
    assert found["tokens"] == plain()["tokens"]
    assert found["reports"][0]["kept"]


def test_adapters_are_part_of_the_fit_and_gone_after_it() -> None:
    adapters = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    found = result({**sized(), **adapters})
    assert found["tokens"] == plain()["tokens"]
    assert found["adapters"] == [[]]
    assert found["reports"][0]["kept"]


def test_prompts_scored_in_pieces_have_the_scores_of_plain_vllm() -> None:
    found = result(sized("tests.vllm.small_pieces.Worker"))
    flat = [[row for place in prompt for row in place] for prompt in found["scores"]]
    stock = [[row for place in prompt for row in place] for prompt in plain()["scores"]]
    assert [[row[:2] for row in prompt] for prompt in flat] == [[row[:2] for row in prompt] for prompt in stock]
    for ours, theirs in zip(flat, stock, strict=True):
        assert [row[2] for row in ours] == pytest.approx([row[2] for row in theirs], abs=1e-3)


def test_prompts_that_are_cut_take_less_when_they_are_scored_as_stock_vllm_does() -> None:
    """Of two prompts in a step: logits, scores in fp32, and the scores of the one before."""
    whole, cut = (
        result({**sized(score_in_pieces=False), **limit}) for limit in ({}, {"long_prefill_token_threshold": 128})
    )
    assert cut["tokens"] == whole["tokens"] == plain()["tokens"]
    assert activation(cut) < activation(whole) // 2


def activation(found: dict[str, Any]) -> int:
    (report,) = found["reports"]
    return next(item["measured_bytes"] for item in report["items"] if item["name"] == "activation")


def test_compiled_code_has_the_name_that_it_has_in_plain_vllm() -> None:
    script = (
        "from vllm.config import VllmConfig; from brim.vllm.worker import _as_stock;"
        " given = VllmConfig(additional_config={'brim': {'canary': '1GiB'}});"
        f" print('{MARK}', VllmConfig().compute_hash(), _as_stock(given).compute_hash(), given.compute_hash())"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=_SECONDS, check=True)
    (marked,) = (line for line in ended.stdout.splitlines() if line.startswith(MARK))
    plain_name, ours, by_settings = marked.split()[1:]
    assert plain_name == ours != by_settings


def test_a_pinned_size_is_validated_only() -> None:
    found = result({**sized(), "kv_cache_memory_bytes": PINNED_BYTES})
    (report,) = found["reports"]
    assert found["blocks"] == plain()["blocks"]
    assert (report["limited_by"], report["kept"], len(report["attempts"])) == ("given", True, 1)


def test_a_pinned_size_that_does_not_fit_stops_the_start() -> None:
    ended = started({**sized(), "kv_cache_memory_bytes": 63 << 20})
    assert ended.returncode != 0
    assert "no KV cache size passed validation" in ended.stdout + ended.stderr


def test_off_is_stock_vllm() -> None:
    found = result({**sized(), "kv_cache_memory_bytes": PINNED_BYTES}, BRIM="off")
    assert found == {**plain(), "reports": [None]}


def test_a_version_that_lacks_a_name_is_refused_or_left_to_stock_vllm() -> None:
    worker, pinned = "tests.vllm.lacking.Worker", {"kv_cache_memory_bytes": PINNED_BYTES}
    ended = started({**sized(worker), **pinned})
    assert ended.returncode != 0
    assert "this vLLM lacks v1.worker.gpu_worker.Worker.gone" in ended.stdout + ended.stderr
    assert result({**sized(worker, on_refusal="stock"), **pinned}) == {**plain(), "reports": [None]}
