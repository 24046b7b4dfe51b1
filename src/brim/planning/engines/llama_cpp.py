"""llama.cpp. The context is divided among slots; a step is a micro-batch; GPUs share the layers; a CPU has all."""

from __future__ import annotations

from brim.errors import InvalidRequest
from brim.model.kv import KvStorage
from brim.model.quantisers.gguf_mixes import MIXES
from brim.planning.activation import AttentionKind
from brim.planning.engines.record import PLAIN, Algorithm, EngineRules, PlannedDraft, Sizes
from brim.planning.engines.split import Split
from brim.planning.engines.writing import media_notes, option, switch
from brim.records.model import Dtype, MediaType
from brim.units import round_up

_CELLS = 256  # the context of a slot is padded to these
_SMALLEST_BATCH = 2048  # its own default for the logical batch, which micro-batches are cut from
_KV = {Dtype.BF16: "bf16", Dtype.FP16: "f16", Dtype.INT8: "q8_0"}
_FILES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32", "mxfp4": "MXFP4", **{name: name.upper() for name in MIXES}}
_GGUF_NEEDED = "llama.cpp runs GGUF files: put a GGUF repository or file of {} in its place"
_DRAFTS = {
    Algorithm.DRAFT_MODEL: "draft-simple",
    Algorithm.EAGLE3: "draft-eagle3",
    Algorithm.DFLASH: "draft-dflash",
    Algorithm.DSPARK: "draft-dspark",
}


def _flags(sizes: Sizes) -> list[str]:
    slots = max(1, sizes.concurrency)
    kv = _KV[sizes.kv_dtype]
    fused = sizes.attention is AttentionKind.FUSED
    if not fused and sizes.kv_dtype is Dtype.INT8:
        raise InvalidRequest("engine llama.cpp has no int8 KV cache with eager attention; leave out attn or kv-dtype")
    return [
        *option("--ctx-size", round_up(sizes.max_len, _CELLS) * slots),
        *option("--parallel", slots),
        *option("--batch-size", max(_SMALLEST_BATCH, sizes.batch_tokens)),
        *option("--ubatch-size", sizes.batch_tokens),
        *option("--cache-type-k", kv),
        *option("--cache-type-v", kv),
        *option("--flash-attn", "on" if fused else "off"),
        *option("--n-gpu-layers", _gpu_layers(sizes)),
        *option("--n-cpu-moe", sizes.placement.cpu_experts or None),
        *option("--fit", "off"),
        *(option("--device", "none") if sizes.on_cpu else _devices(sizes.ranks)),
        *(switch("--no-mmproj", True) if _without_images(sizes) else option("--mmproj", sizes.projector)),
        *option("--image-max-tokens", sizes.image_tokens if MediaType.IMAGE in sizes.media else None),
        *(_speculation(sizes.draft, kv, 0 if sizes.on_cpu else 999) if sizes.draft else []),
    ]


def _without_images(sizes: Sizes) -> bool:
    return MediaType.IMAGE in sizes.media and sizes.images_per_prompt == 0


def _gpu_layers(sizes: Sizes) -> int:
    """All of them, however many there are, or none, or as many as were placed there."""
    placed = sizes.placement.gpu_layers
    return 0 if sizes.on_cpu else 999 if placed is None else placed


def _devices(ranks: int) -> list[str]:
    if ranks == 1:
        return option("--split-mode", "none")
    return [*option("--split-mode", "layer"), *option("--tensor-split", ",".join(["1"] * ranks))]


def _speculation(draft: PlannedDraft, kv: str, gpu_layers: int) -> list[str]:
    return [
        *option("--spec-type", _DRAFTS[draft.algorithm]),
        *option("--spec-draft-hf" if _on_hub(draft.model) else "--spec-draft-model", draft.model),
        *option("--spec-draft-n-max", draft.tokens),
        *option("--spec-draft-ngl", gpu_layers),
        *option("--spec-draft-type-k", kv),
        *option("--spec-draft-type-v", kv),
    ]


def _model(sizes: Sizes) -> list[str]:
    stored = _FILES.get(sizes.weights or sizes.checkpoint)
    if not _on_hub(sizes.model):
        return option("--model", sizes.model)
    return option("--hf-repo", f"{sizes.model}:{stored}" if stored and ":" not in sizes.model else sizes.model)


def _on_hub(model: str) -> bool:
    return model.count("/") == 1 and not model.startswith((".", "/", "~")) and not model.lower().endswith(".gguf")


def _is_gguf(model: str) -> bool:
    """A file, or a quant of a repository; what has neither is a model that was converted by nobody yet."""
    return model.lower().endswith(".gguf") or ":" in model or "gguf" in model.lower()


def _notes(sizes: Sizes) -> list[str]:
    graphs = "llama.cpp captures no graphs where GGML_CUDA_DISABLE_GRAPHS=1 is set"
    models = [sizes.model, *([sizes.draft.model] if sizes.draft else [])]
    return [
        *[_GGUF_NEEDED.format(one) for one in models if not _is_gguf(one)],
        *([] if sizes.graphs or sizes.on_cpu else [graphs]),
        *media_notes(sizes, "llama.cpp", images=_without_images(sizes), pixels=True),
    ]


LLAMA_CPP = EngineRules(
    name="llama.cpp",
    version="b11549",
    block_tokens=_CELLS,
    storage=lambda step: KvStorage(window_slack=step, q8_0=True),
    slack_percent=10,
    note="allocates the context of every slot up front, padded to 256 tokens, and a scale for 32 values of int8",
    launch=("llama-server",),
    model=_model,
    flags=_flags,
    notes=_notes,
    kv_dtypes=(Dtype.BF16, Dtype.FP16, Dtype.INT8),
    other_kv_dtypes=frozenset({Dtype.BF16, Dtype.FP16, Dtype.INT8}),
    formats=frozenset(_FILES) - frozenset(PLAIN),
    drafts=_DRAFTS,
    attentions=frozenset(AttentionKind),
    default_step=512,
    cuts_batches=True,
    slots_divide_context=True,
    split=Split.LAYER,
)
