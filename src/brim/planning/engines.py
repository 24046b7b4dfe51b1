"""Serving engines as a plan sees them: what they store beyond the model's minimum, and the plan as their flags.

Engines are described with their default behaviour. The flags are those that affect memory; the others are up to the
operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import floor

from brim.errors import InvalidRequest
from brim.model.kv import KvStorage
from brim.planning.activation import AttentionKind
from brim.records.model import Dtype
from brim.units import MIB, ceil_div, round_up

_VLLM_FORMATS = frozenset(
    {
        *("fp8", "fbgemm_fp8", "awq", "gptq", "auto-round", "bitsandbytes", "compressed-tensors"),
        *("modelopt", "modelopt_fp4", "mxfp4", "quark", "torchao"),
    }
)
_HIGHEST_FRACTION = 0.97  # vLLM 0.26 ran at 0.975 on an H200 and crashed under load at 0.98


@dataclass(frozen=True, slots=True)
class Sizes:
    """The solved numbers, for turning into flags."""

    model: str
    max_len: int
    max_seqs: int  # requests of max_len that fit
    running: int  # requests of any length that a step is planned for
    batch_tokens: int
    kv_tokens: int
    kv_bytes: int
    kv_dtype: Dtype
    ranks: int
    graphs: bool
    usable_bytes: int
    spare_bytes: int  # what the engine must not use: canary, graphs, neighbours
    weights_bytes: int
    draft: str | None
    images_per_prompt: int | None


@dataclass(frozen=True, slots=True)
class Engine:
    """How an engine differs from the model's own minimum."""

    name: str
    block_tokens: int
    storage: Callable[[int], KvStorage]  # by the tokens of a step
    slack_percent: int  # what its allocator reserves beyond the peak of a step
    flags: Callable[[Sizes], list[str]]
    note: str
    attention: AttentionKind = AttentionKind.FUSED
    kv_dtypes: tuple[Dtype, ...] = (Dtype.BF16, Dtype.FP16, Dtype.FP8)
    launch: tuple[str, ...] = ()  # the command that the model and the flags go behind
    quantised: frozenset[str] = frozenset()  # stored formats that it runs, by `quant_method`
    default_step: int = 8192
    slots_divide_context: bool = False


def _fraction(sizes: Sizes) -> float:
    """The memory fraction for an engine that sizes its cache by one."""
    share = 1 - sizes.spare_bytes / sizes.usable_bytes
    return floor(max(0.05, min(_HIGHEST_FRACTION, share)) * 1000) / 1000


def _brim_flags(sizes: Sizes) -> list[str]:
    flags = ["--kv-tokens", str(sizes.kv_tokens), "--max-len", str(sizes.max_len)]
    flags += ["--max-seqs", str(sizes.running), "--batch-tokens", str(sizes.batch_tokens)]
    flags += ["--kv-dtype", str(sizes.kv_dtype)]
    flags += ["--tp", str(sizes.ranks)] if sizes.ranks > 1 else []
    return flags + ([] if sizes.graphs else ["--no-graphs"])  # its engine has no draft models yet


def _vllm_flags(sizes: Sizes) -> list[str]:
    flags = ["--gpu-memory-utilization", f"{_fraction(sizes):.3f}", "--max-model-len", str(sizes.max_len)]
    flags += ["--max-num-seqs", str(sizes.running), "--max-num-batched-tokens", str(sizes.batch_tokens)]
    flags += ["--kv-cache-dtype", "fp8_e4m3"] if sizes.kv_dtype is Dtype.FP8 else []
    flags += ["--tensor-parallel-size", str(sizes.ranks)] if sizes.ranks > 1 else []
    flags += [] if sizes.graphs else ["--enforce-eager"]
    flags += ["--limit-mm-per-prompt", f'{{"image": {sizes.images_per_prompt}}}'] if sizes.images_per_prompt else []
    return flags + (["--speculative-config", f'{{"model": "{sizes.draft}"}}'] if sizes.draft else [])


def _sglang_flags(sizes: Sizes) -> list[str]:
    static = (sizes.weights_bytes + sizes.kv_bytes) / sizes.usable_bytes
    flags = ["--mem-fraction-static", f"{floor(max(0.05, min(_HIGHEST_FRACTION, static)) * 1000) / 1000:.3f}"]
    flags += ["--context-length", str(sizes.max_len), "--max-running-requests", str(sizes.running)]
    flags += ["--chunked-prefill-size", str(sizes.batch_tokens), "--max-total-tokens", str(sizes.kv_tokens)]
    flags += ["--kv-cache-dtype", "fp8_e4m3"] if sizes.kv_dtype is Dtype.FP8 else []
    flags += ["--tp-size", str(sizes.ranks)] if sizes.ranks > 1 else []
    flags += [] if sizes.graphs else ["--disable-cuda-graph"]
    return flags + (["--speculative-draft-model-path", sizes.draft] if sizes.draft else [])


def _lightllm_flags(sizes: Sizes) -> list[str]:
    flags = ["--max_total_token_num", str(sizes.kv_tokens), "--max_req_total_len", str(sizes.max_len)]
    flags += ["--running_max_req_size", str(sizes.running), "--batch_max_tokens", str(sizes.batch_tokens)]
    flags += ["--tp", str(sizes.ranks)] if sizes.ranks > 1 else []
    return flags + ([] if sizes.graphs else ["--disable_cudagraph"])


def _max_flags(sizes: Sizes) -> list[str]:
    flags = ["--device-memory-utilization", f"{_fraction(sizes):.3f}", "--max-length", str(sizes.max_len)]
    flags += ["--max-batch-size", str(sizes.running), "--max-batch-input-tokens", str(sizes.batch_tokens)]
    return flags + (["--devices", "gpu:" + ",".join(map(str, range(sizes.ranks)))] if sizes.ranks > 1 else [])


def _tgi_flags(sizes: Sizes) -> list[str]:
    flags = ["--max-total-tokens", str(sizes.max_len), "--max-input-tokens", str(max(1, sizes.max_len - 1))]
    flags += ["--max-batch-prefill-tokens", str(sizes.batch_tokens), "--max-batch-total-tokens", str(sizes.kv_tokens)]
    flags += ["--max-concurrent-requests", str(sizes.running), "--cuda-memory-fraction", f"{_fraction(sizes):.3f}"]
    flags += ["--kv-cache-dtype", "fp8_e4m3fn"] if sizes.kv_dtype is Dtype.FP8 else []
    return flags + (["--num-shard", str(sizes.ranks)] if sizes.ranks > 1 else [])


def _llama_cpp_flags(sizes: Sizes) -> list[str]:
    parallel = max(1, sizes.max_seqs)
    flags = ["--ctx-size", str(round_up(sizes.max_len, 256) * parallel), "--parallel", str(parallel)]
    flags += ["--batch-size", str(sizes.batch_tokens), "--ubatch-size", str(min(sizes.batch_tokens, 2048))]
    flags += ["--n-gpu-layers", "999", "--flash-attn", "on"]
    kv = {Dtype.BF16: "bf16", Dtype.FP16: "f16", Dtype.INT8: "q8_0"}[sizes.kv_dtype]
    flags += ["--cache-type-k", kv, "--cache-type-v", kv]
    flags += ["--split-mode", "row"] if sizes.ranks > 1 else []
    return flags + (["--model-draft", sizes.draft] if sizes.draft else [])


def _trtllm_flags(sizes: Sizes) -> list[str]:
    free = max(1, sizes.usable_bytes - sizes.weights_bytes)
    share = floor(max(0.05, min(_HIGHEST_FRACTION, sizes.kv_bytes / free)) * 1000) / 1000
    flags = ["--kv_cache_free_gpu_memory_fraction", f"{share:.3f}", "--max_seq_len", str(sizes.max_len)]
    flags += ["--max_batch_size", str(sizes.running), "--max_num_tokens", str(sizes.batch_tokens)]
    return flags + (["--tp_size", str(sizes.ranks)] if sizes.ranks > 1 else [])


def _transformers_flags(sizes: Sizes) -> list[str]:
    """Not flags of a command: the fields of the continuous-batching config, and its number of blocks."""
    flags = ["max_batch_tokens=" + str(sizes.batch_tokens), "block_size=256"]
    return [*flags, "num_blocks=" + str(sizes.kv_tokens // 256)]


def _minimum(_: int) -> KvStorage:
    return KvStorage()


ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            "brim",
            16,
            lambda step: KvStorage(window_slack=step),
            10,
            _brim_flags,
            "keeps, in sliding layers, the window and the tokens of a step",
            kv_dtypes=(Dtype.BF16, Dtype.FP16, Dtype.FP8),
        ),
        Engine(
            "vllm",
            16,
            lambda step: KvStorage(window_slack=step),
            32,
            _vllm_flags,
            "keeps, in sliding layers, the window and the tokens of a step",
            launch=("vllm", "serve"),
            quantised=_VLLM_FORMATS,
        ),
        Engine(
            "sglang",
            1,
            lambda step: KvStorage(window_slack=step),
            32,
            _sglang_flags,
            "keeps, in sliding layers, the window and the tokens of a step; its pool ratio is a flag of its own",
        ),
        Engine(
            "lightllm",
            1,
            lambda _: KvStorage(keeps_window=False),
            32,
            _lightllm_flags,
            "keeps every token in sliding layers too",
        ),
        Engine(
            "max",
            128,
            lambda _: KvStorage(keeps_window=False),
            10,
            _max_flags,
            "keeps every token in sliding layers too, in pages of 128",
        ),
        Engine(
            "tgi",
            1,
            lambda _: KvStorage(keeps_window=False, keeps_latent=False),
            32,
            _tgi_flags,
            "keeps every token in sliding layers too, and per-head keys and values for MLA",
        ),
        Engine(
            "llama.cpp",
            256,
            lambda step: KvStorage(window_slack=min(step, 2048)),
            10,
            _llama_cpp_flags,
            "allocates the whole context of every slot up front, padded to 256 tokens",
            kv_dtypes=(Dtype.BF16, Dtype.FP16, Dtype.INT8),
            default_step=512,
            slots_divide_context=True,
        ),
        Engine(
            "trtllm",
            32,
            _minimum,
            10,
            _trtllm_flags,
            "keeps the window in sliding layers, in blocks of 32 tokens",
            kv_dtypes=(Dtype.BF16, Dtype.FP16, Dtype.FP8, Dtype.INT8),
        ),
        Engine(
            "transformers",
            256,
            lambda _: KvStorage(keeps_window=False),
            32,
            _transformers_flags,
            "keeps every token in sliding layers too; models whose class has no fused attention materialise the scores",
            attention=AttentionKind.EAGER,
        ),
    )
}


def find_engine(name: str | None) -> Engine | None:
    """An engine by name; None stands for the model's own minimum."""
    if name is None:
        return None
    if name not in ENGINES:
        raise InvalidRequest(f"engine '{name[:40]}' is not one of {', '.join(ENGINES)}")
    return ENGINES[name]


def engine_for(method: str) -> Engine | None:
    """An engine that runs weights stored in a quantised format; None where Brim knows of none."""
    return next((engine for engine in ENGINES.values() if engine.launch and method in engine.quantised), None)


def graph_bytes(layers: int, captured_step_bytes: int, sizes: int = 35) -> int:
    """CUDA graphs: the first capture, one shared pool as large as the largest captured step, and the nodes.

    The first capture took 70 MiB on an H200 and further ones nothing that the driver reported; the nodes of many
    layers and sizes are an estimate.
    """
    return 70 * MIB + captured_step_bytes + ceil_div(sizes * layers * 16384, MIB) * MIB
