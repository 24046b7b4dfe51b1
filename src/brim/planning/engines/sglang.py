"""SGLang. Its KV cache is given in tokens; the static fraction must leave room for them."""

from __future__ import annotations

from dataclasses import dataclass

from brim.model.kv import KvStorage
from brim.planning.engines.by_itself import BareStart, OwnSize
from brim.planning.engines.record import Algorithm, EngineRules, PlannedDraft, Sizes
from brim.planning.engines.writing import (
    as_json,
    at_least,
    converted,
    media_notes,
    option,
    other_kv,
    plain_weights,
    several,
    switch,
)
from brim.planning.placement.record import StageRule
from brim.records.model import Dtype, LatentAttention, MediaType, TowerSpec
from brim.units import GIB, MIB

_BLOCK_TOKENS = 1
_KV = {Dtype.BF16: "bf16", Dtype.FP8: "fp8_e4m3"}
_CONVERTS = {"fp8": "fp8", "fp8-tensor": "fp8"}
_DRAFTS = {
    Algorithm.DRAFT_MODEL: "STANDALONE",
    Algorithm.EAGLE3: "EAGLE3",
    Algorithm.DFLASH: "DFLASH",
    Algorithm.DSPARK: "DSPARK",
}


def _flags(sizes: Sizes) -> list[str]:
    pages = sizes.block_tokens if sizes.block_tokens != _BLOCK_TOKENS else None
    return [
        *option("--max-total-tokens", sizes.kv_tokens),
        *option("--mem-fraction-static", at_least(sizes.static_bytes, sizes.free_bytes)),
        *option("--context-length", sizes.max_len),
        *option("--max-running-requests", sizes.max_seqs * _replicas_inside(sizes)),
        *option("--max-mamba-cache-size", sizes.max_seqs if sizes.state_bytes else None),
        *option("--chunked-prefill-size", sizes.batch_tokens * _replicas_inside(sizes)),
        *option("--page-size", pages),
        *option("--kv-cache-dtype", other_kv(sizes, _KV)),
        *option("--quantization", converted(sizes, _CONVERTS)),
        *option("--dtype", plain_weights(sizes)),
        *_placement(sizes),
        *switch("--disable-decode-cuda-graph", not sizes.graphs),
        *switch("--disable-prefill-cuda-graph", not sizes.graphs),
        *_media(sizes),
        *(_speculation(sizes.draft) if sizes.draft else []),
    ]


def _placement(sizes: Sizes) -> list[str]:
    """Ranks of all replicas are one group where these share experts: attention is then data parallel inside it."""
    placement, group = sizes.placement, sizes.ranks * _replicas_inside(sizes)
    return [
        *option("--tp-size", several(group)),
        *option("--pp-size", several(placement.pipeline)),
        *option("--dp-size", several(placement.replicas)),
        *switch("--enable-dp-attention", _replicas_inside(sizes) > 1),
        *option("--ep-size", group if placement.expert_parallel else None),
        *switch("--enable-hierarchical-cache", placement.host_kv_bytes > 0),
        *option("--hicache-size", _host_gigabytes(sizes) if placement.host_kv_bytes else None),
    ]


def _replicas_inside(sizes: Sizes) -> int:
    """Replicas inside one group of ranks, among which SGLang divides requests and tokens of a step."""
    return sizes.placement.replicas if sizes.placement.expert_parallel else 1


def _host_gigabytes(sizes: Sizes) -> int:
    """The host's tier is given for each rank, in whole gigabytes."""
    return max(1, sizes.placement.host_kv_bytes // (sizes.ranks * sizes.placement.devices) // 10**9)


def _media(sizes: Sizes) -> list[str]:
    if MediaType.IMAGE not in sizes.media:
        return []
    images = sizes.images_per_prompt
    pixels = sizes.image_pixels if sizes.processor_limits_pixels else None
    return [
        *option("--limit-mm-data-per-request", None if images is None else as_json({"image": images})),
        *option("--mm-process-config", None if pixels is None else as_json({"image": {"max_pixels": pixels}})),
    ]


def _speculation(draft: PlannedDraft) -> list[str]:
    named = [
        *option("--speculative-algorithm", _DRAFTS[draft.algorithm]),
        *option("--speculative-draft-model-path", draft.model),
    ]
    if draft.algorithm is Algorithm.DFLASH:
        return [*named, *option("--speculative-num-draft-tokens", draft.tokens)]
    if draft.algorithm is Algorithm.DSPARK:
        return [*named, *option("--speculative-dspark-block-size", draft.tokens)]
    return [  # a chain: one candidate a step, and the token that is verified with them
        *named,
        *option("--speculative-num-steps", draft.tokens),
        *option("--speculative-eagle-topk", 1),
        *option("--speculative-num-draft-tokens", draft.tokens + 1),
    ]


@dataclass(frozen=True, slots=True)
class _Class:
    """Devices below a size: tokens of a step, and the largest decode that is captured, on few GPUs and on many."""

    below_bytes: int
    step_tokens: int
    captured: int
    captured_on_many: int


_CLASSES = (
    _Class(20 * GIB, 2048, 8, 8),
    _Class(35 * GIB, 2048, 24, 80),
    _Class(60 * GIB, 4096, 32, 160),
    _Class(160 * GIB, 8192, 256, 512),
)
_LARGEST_CLASS = _Class(0, 16384, 512, 512)
_MANY_RANKS = 4
_METADATA_BYTES = 512 * MIB
_TOKEN_BYTES = 3 * MIB // 2  # kept for a token of a step
_CAPTURED_REQUEST_BYTES = 2 * MIB
_PREFILL_GRAPHS_BYTES, _LATENT_GRAPHS_BYTES = 464 * MIB, 1536 * MIB  # 58 captured prefills of 8 MiB; with MLA
_LEAST_ON_LARGE_BYTES, _LARGE_BYTES = 10 * GIB, 60 * GIB
_VISION_SHARE = 0.95
_USUAL_TOWER = 24 * 1024**2  # layers times width squared, of a tower for which that share is


def by_itself(start: BareStart) -> OwnSize:
    """The static fraction leaves a reserve by the size of the device; what of it weights do not take is for KV."""
    size = start.device.usable_bytes
    kind = next((one for one in _CLASSES if size < one.below_bytes), _LARGEST_CLASS)
    captured = kind.captured if start.ranks < _MANY_RANKS else kind.captured_on_many
    latent = any(isinstance(layer.mixer, LatentAttention) for layer, _ in start.spec.layer_groups)
    reserve = (
        _METADATA_BYTES
        + max(start.batch_tokens or kind.step_tokens, 2048) * _TOKEN_BYTES
        + start.ranks * GIB // 8
        + (captured * _CAPTURED_REQUEST_BYTES if start.graphs else 0)
        + ((_LATENT_GRAPHS_BYTES if latent else _PREFILL_GRAPHS_BYTES) if start.graphs else 0)
    )
    reserve = max(reserve, _LEAST_ON_LARGE_BYTES) if size > _LARGE_BYTES else reserve
    fraction = round(max(0, size - reserve) / size, 3) * _vision_factor(start)
    return OwnSize(
        kv_bytes=int(start.free_bytes * fraction) - start.weights_bytes,
        fraction=round(fraction, 4),
        activation_bytes=reserve,
        max_len=start.max_len or start.spec.max_positions,
    )


def _vision_factor(start: BareStart) -> float:
    towers = [tower for tower in start.spec.towers if tower.media is MediaType.IMAGE]
    return min(map(_tower_factor, towers)) if towers and start.media else 1.0


def _tower_factor(tower: TowerSpec) -> float:
    """A tenth less for each time that a tower is as large again as a usual one."""
    ratio = tower.layers * tower.hidden**2 / _USUAL_TOWER
    return _VISION_SHARE * max(0.8, min(1.05, 1.0 - 0.1 * (ratio - 1.0)))


def _notes(sizes: Sizes) -> list[str]:
    states = "sglang keeps states for its prefix cache too: as many requests as planned run with --disable-radix-cache"
    return [
        *media_notes(sizes, "sglang", images=True, pixels=sizes.processor_limits_pixels),
        *([states] if sizes.state_bytes else []),
        *_host_notes(sizes),
    ]


def _host_notes(sizes: Sizes) -> list[str]:
    if not sizes.placement.host_kv_bytes:
        return []
    each = _host_gigabytes(sizes)
    found = [f"sglang is given the host's tier for each rank, in whole gigabytes: {each} GB"]
    if each * 10**9 <= sizes.kv_bytes:
        found.append("sglang wants a host tier that is larger than the cache on the device: raise host-kv")
    return found


SGLANG = EngineRules(
    name="sglang",
    version="0.5.23",
    block_tokens=_BLOCK_TOKENS,
    storage=lambda step: KvStorage(window_slack=step, packed_sparse=True),
    slack_percent=32,
    note="keeps, in sliding layers, the window and the tokens of a step, and scales beside an indexer's fp8 values",
    launch=("python", "-m", "sglang.launch_server"),
    model=lambda sizes: ["--model-path", sizes.model],
    flags=_flags,
    notes=_notes,
    other_kv_dtypes=frozenset({Dtype.BF16, Dtype.FP8}),
    converts=_CONVERTS,
    formats=frozenset({"fp8-block", "int8", "awq", "gptq", "int4", "nvfp4", "mxfp4"}),
    drafts=_DRAFTS,
    by_itself=by_itself,
    stage_rule=StageRule.LAST,
    towers_everywhere=True,
)
