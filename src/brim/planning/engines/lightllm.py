"""LightLLM. Its KV cache is given in tokens."""

from __future__ import annotations

from brim.model.kv import KvStorage
from brim.planning.engines.by_itself import BareStart, OwnSize
from brim.planning.engines.record import EngineRules, Sizes
from brim.planning.engines.writing import converted, media_notes, option, other_kv, plain_weights, several, switch
from brim.records.model import Dtype, MediaType

_FRACTION, _LENGTH, _CHUNK_TOKENS = 0.9, 16384, 4096  # its defaults
_KV = {Dtype.FP8: "fp8kv_spt"}
_CONVERTS = {"fp8": "vllm-fp8w8a8", "fp8-block": "vllm-fp8w8a8-b128", "int8": "vllm-w8a8"}


def _flags(sizes: Sizes) -> list[str]:
    return [
        *option("--max_total_token_num", sizes.kv_tokens),
        *option("--max_req_total_len", sizes.max_len),
        *option("--running_max_req_size", sizes.max_seqs),
        *option("--graph_max_batch_size", sizes.max_seqs if sizes.graphs else None),
        *option("--mamba_cache_size", sizes.max_seqs if sizes.state_bytes else None),
        *option("--batch_max_tokens", sizes.batch_tokens),
        *option("--chunked_prefill_size", sizes.batch_tokens),
        *option("--llm_kv_type", other_kv(sizes, _KV)),
        *option("--quant_type", converted(sizes, _CONVERTS)),
        *option("--data_type", plain_weights(sizes)),
        *option("--tp", several(sizes.ranks)),
        *switch("--disable_cudagraph", not sizes.graphs),
        *switch("--disable_vision", _without_images(sizes)),
    ]


def _without_images(sizes: Sizes) -> bool:
    return MediaType.IMAGE in sizes.media and sizes.images_per_prompt == 0


def _notes(sizes: Sizes) -> list[str]:
    scales = "lightllm reads the scales of an fp8 KV cache from a file: add --kv_quant_calibration_config_path"
    return [
        "lightllm reads a directory: put the one that holds the model in place of a hub id",
        *([scales] if sizes.kv_dtype is Dtype.FP8 else []),
        *media_notes(sizes, "lightllm", images=_without_images(sizes)),
    ]


def by_itself(start: BareStart) -> OwnSize:
    """What is free behind the weights but for a tenth of the device, in which a step of the most tokens is tried."""
    length = start.max_len or _LENGTH
    step = start.step_bytes(start.batch_tokens or min(length, 2 * _CHUNK_TOKENS + 256))
    left = int(start.device.usable_bytes * (1 - _FRACTION))
    return OwnSize(
        kv_bytes=start.free_bytes - start.weights_bytes - left,
        fraction=_FRACTION,
        activation_bytes=step,
        max_len=length,
        holds_a_step=step <= left,
    )


LIGHTLLM = EngineRules(
    name="lightllm",
    version="main",
    block_tokens=1,
    storage=lambda _: KvStorage(keeps_window=False),
    slack_percent=32,
    note="keeps every token in sliding layers too",
    launch=("python", "-m", "lightllm.server.api_server"),
    model=lambda sizes: ["--model_dir", sizes.model],
    flags=_flags,
    notes=_notes,
    converts=_CONVERTS,
    formats=frozenset({"awq", "gptq"}),
    replicates_kv_heads=False,
    by_itself=by_itself,
)
