"""The commands that the parsers are given: a plan with its defaults, and one with every setting turned that fits."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from brim.errors import InvalidRequest
from brim.planning.devices import find_devices
from brim.planning.engines import ENGINES, Algorithm, EngineCommand, EngineRules, PlannedDraft, Sizes, rule
from brim.planning.placement.record import Adapters, Placement
from brim.records.model import Dtype, MediaType
from brim.units import GIB

PLAIN = Sizes(
    model="Qwen/Qwen2.5-VL-7B-Instruct",
    dtype=Dtype.BF16,
    checkpoint="bf16",
    max_len=16384,
    max_seqs=64,
    concurrency=8,
    batch_tokens=2048,
    block_tokens=16,
    kv_tokens=131072,
    kv_dtype=Dtype.BF16,
    kv_bytes=16 * GIB,
    usable_bytes=80 * GIB,
    free_bytes=79 * GIB,
    spare_bytes=2 * GIB,
    weights_bytes=40 * GIB,
    media=frozenset({MediaType.IMAGE}),
    processor_limits_pixels=True,
)
TURNED: dict[str, dict[str, Any]] = {
    "defaults": {},
    "on a CPU": {"on_cpu": True},
    "fp8 cache": {"kv_dtype": Dtype.FP8},
    "int8 cache": {"kv_dtype": Dtype.INT8},
    "16-bit cache": {"kv_dtype": Dtype.FP16},
    "bf16 cache": {"checkpoint_kv": Dtype.FP8},
    **{
        f"{name} weights": {"weights": name}
        for name in ("fp8", "fp8-tensor", "fp8-block", "int8", "awq", "mxfp4", "q8_0", "q4_0", "q4_k_m", "iq3_xxs")
    },
    "fp16 weights": {"weights": "fp16", "dtype": Dtype.FP16, "kv_dtype": Dtype.FP16},
    "fp32 weights": {"checkpoint": "fp32", "dtype": Dtype.FP32},
    "images": {"images_per_prompt": 4, "image_pixels": 1 << 20, "image_tokens": 1338},
    "no images": {"images_per_prompt": 0},
    "ranks": {"ranks": 4},
    "stages": {"ranks": 2, "placement": Placement(pipeline=4)},
    "replicas": {"ranks": 2, "placement": Placement(replicas=3)},
    "experts": {"ranks": 2, "placement": Placement(expert_parallel=True)},
    "replicas that share experts": {"placement": Placement(replicas=4, expert_parallel=True)},
    "stages of replicas": {"ranks": 2, "placement": Placement(pipeline=2, replicas=2, expert_parallel=True)},
    "experts in host memory": {"placement": Placement(cpu_experts=12)},
    "layers in host memory": {"placement": Placement(gpu_layers=20)},
    "adapters": {"placement": Placement(adapters=Adapters(rank=64, count=4))},
    "host KV": {"ranks": 2, "placement": Placement(host_kv_bytes=96 * GIB)},
    "no graphs": {"graphs": False},
    "states": {"state_bytes": 4 * GIB},
    "a shared device": {"free_bytes": 50 * GIB},
    "other blocks": {"block_tokens": 64},
    "prompts in chunks": {"prompt_chunk": 1024, "growing_segments": True},
    **{
        f"{algorithm} draft": {
            "draft": PlannedDraft(model="org/draft", algorithm=algorithm, tokens=4, weights_bytes=GIB)
        }
        for algorithm in Algorithm
    },
}
_GGUF = {"dtype": Dtype.FP16, "kv_dtype": Dtype.FP16}  # what llama.cpp stores its cache in
GGUF: dict[str, dict[str, Any]] = {
    "a GGUF file": {"model": "/models/qwen2.5-vl-7b-Q4_K_M.gguf", "checkpoint": "q4_k_m", **_GGUF},
    "a GGUF file with its projector": {
        "model": "/models/big-Q4_K_M-00001-of-00003.gguf",
        "checkpoint": "q4_k_m",
        "projector": "/models/mmproj-F16.gguf",
        **_GGUF,
    },
    "a GGUF file without images": {
        "model": "/models/a.gguf",
        "checkpoint": "gguf",
        "projector": "/models/mmproj-F16.gguf",
        "images_per_prompt": 0,
        **_GGUF,
    },
    "a quant of a repository": {"model": "org/name-GGUF:Q4_K_M", "checkpoint": "q4_k_m", **_GGUF},
}


def check_placement(engine: EngineRules, sizes: Sizes) -> None:
    """Refuse what the table of capabilities refuses."""
    refusal = rule(
        engine,
        find_devices("64GiB")[0],
        weights="bf16",
        kv_dtype=Dtype.BF16,
        ranks=sizes.ranks,
        placement=sizes.placement,
    ).refusal
    if refusal:
        raise InvalidRequest(refusal)


@functools.cache
def commands(engine: str) -> dict[str, EngineCommand]:
    """The commands of an engine, without those that it refuses."""
    found = {}
    for name, turned in (TURNED | GGUF if engine == "llama.cpp" else TURNED).items():
        sizes = replace(PLAIN, block_tokens=ENGINES[engine].block_tokens)
        try:
            check_placement(ENGINES[engine], replace(sizes, **turned))
            found[name] = ENGINES[engine].command(replace(sizes, **turned))
        except InvalidRequest:
            continue
    return found
