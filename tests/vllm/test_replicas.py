"""Replicas of a mixture of experts in real vLLM: they share every step, so they are sized together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.starts import MARK
from tests.vllm.test_server import free_port

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="make test-vllm installs it")

WORKERS = "tests.vllm.replicas_on_cpu"
PINNED_BYTES = 16 << 20
SIZES = {"budget": "64MiB", "canary": "4MiB", "store": False}
_SECONDS = 600
_CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def replicas(folder: Path, given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each replica answers. All stay until the last one has answered: they share every step."""
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    shared = {"model": str(folder), "load_format": "dummy", "skip_tokenizer_init": True, "wait": True}
    port = free_port()
    running = [
        _started(folder, index, {**shared, **one, "prompts": _prompts(index)}, len(given), port)
        for index, one in enumerate(given)
    ]
    try:
        return [_answer(process, folder / f"{index}.log") for index, process in enumerate(running)]
    finally:
        for process in running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _prompts(index: int) -> list[dict[str, list[int]]]:
    """The second replica has fewer, so it also runs steps in which it has nothing to do."""
    return [{"prompt_token_ids": [3, 4, 5, 6, 7 + one]} for one in range(12 if index == 0 else 3)]


def _started(folder: Path, index: int, given: dict[str, Any], count: int, port: int) -> subprocess.Popen[bytes]:
    environment = {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, range(count))),
        "VLLM_DP_SIZE": str(count),
        "VLLM_DP_RANK": str(index),
        "VLLM_DP_RANK_LOCAL": str(index),
        "VLLM_DP_MASTER_IP": "127.0.0.1",
        "VLLM_DP_MASTER_PORT": str(port),
    }
    with (folder / f"{index}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.vllm.starts", json.dumps(given)],
            env={**os.environ, **environment},
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _answer(process: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        _, marked, rest = log.read_text(errors="replace").partition(MARK)
        if marked and "\n" in rest:
            found: dict[str, Any] = json.loads(rest.partition("\n")[0])
            return found
        if ended:
            break
        time.sleep(0.5)
    raise AssertionError(log.read_text(errors="replace")[-6000:])


def sized(worker: str, **settings: Any) -> dict[str, Any]:
    return {"worker_cls": f"{WORKERS}.{worker}", "additional_config": {"brim": {**SIZES, **settings}}}


@pytest.mark.parametrize("experts", [False, True])
def test_replicas_have_one_size_and_the_tokens_of_plain_vllm(tmp_path: Path, experts: bool) -> None:
    parallel = {"enable_expert_parallel": experts}
    plain = {"worker_cls": f"{WORKERS}.Stock", "kv_cache_memory_bytes": PINNED_BYTES, **parallel}
    expected = replicas(tmp_path, [plain, plain])
    found = replicas(tmp_path, [{**sized("Worker"), **parallel}, {**sized("Worker", budget="48MiB"), **parallel}])
    assert [one["tokens"] for one in found] == [one["tokens"] for one in expected]
    (first,), (second,) = [one["reports"] for one in found]
    assert first["kv_tokens"] == second["kv_tokens"]
    assert second["free_bytes"] < 4 << 20 < 16 << 20 < first["free_bytes"]
    assert (first["kept"], second["kept"]) == (True, True)


def test_memory_that_one_replica_loses_shrinks_all(tmp_path: Path) -> None:
    found = replicas(tmp_path, [sized("TakenFrom")] * 2)
    (first,), (second,) = [one["reports"] for one in found]
    assert [one["outcome"] for one in first["attempts"]] == ["out-of-memory", "proven"]
    assert [one["kv_tokens"] for one in first["attempts"]] == [one["kv_tokens"] for one in second["attempts"]]
    assert (first["kept"], second["kept"]) == (True, True)
