"""What each engine runs on which devices: one table that decides whether a plan is refused, or gets a note.

In: an engine, a device, the formats of weights and KV cache, a model. Out: a `Ruling`: why not, or what to know.
vLLM's and TensorRT-LLM's rows for fp8 are from their documentation (0.32 and 0.18); the others are what is generally
known of the engines, and nothing but an H200 was tried. A device that is only a size is nobody's, and is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from brim.model.quantisers.weight_formats import GGUF_FORMATS
from brim.planning.engines.record import EngineRules
from brim.planning.gpus.cards import ARCHITECTURES
from brim.planning.placement.record import TENSOR_PARALLEL_ONLY, Feature, Placement
from brim.records.model import GGUF, Dtype, ModelSpec
from brim.records.plan import Device

_WITHOUT_BF16 = frozenset({"pascal", "volta", "turing"})
_FP8 = frozenset({"ada", "hopper", "blackwell", "cdna3", "cdna4", "rdna4", "gaudi"})  # in hardware
_FP4 = {"nvfp4": frozenset({"blackwell"}), "mxfp4": frozenset({"blackwell", "cdna4"})}
_AMPERE_ON = dict.fromkeys(("ampere", "ada", "hopper", "blackwell"), "")
_TURING_ON = {"turing": "", **_AMPERE_ON}
_CDNA3_ON = dict.fromkeys(("cdna3", "cdna4"), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """What an engine runs on. A generation that is not listed is refused; its text is what has to be known."""

    generations: Mapping[str, str]
    cpu: str = ""  # why not, where it does not run on a CPU
    fp8_elsewhere: frozenset[str] = frozenset()  # generations on which it computes with fp8 weights in 16 bits
    fp4_elsewhere: frozenset[str] = frozenset()  # and with 4-bit floats
    fp8_kv_elsewhere: Mapping[str, str] = field(default_factory=dict)  # generations, and what has to be known
    without_awq: frozenset[str] = frozenset()  # generations that its AWQ kernels are not made for
    own_formats: bool = False  # its formats run on every device of its
    families: frozenset[str] | None = None  # that it has code of its own for; None: not listed here
    other_families: str = ""  # what happens to the others
    recurrent: str = ""  # what has to be known of recurrent layers
    gguf: str = ""  # why it does not load GGUF files
    gguf_note: str = ""  # what has to be known of them where it does
    features: frozenset[Feature] = frozenset()  # how it places a model beyond tensor parallelism


@dataclass(frozen=True, slots=True)
class Ruling:
    """Why an engine does not run something, with the remedy; and what to know where it does."""

    refusal: str | None = None
    notes: tuple[str, ...] = ()


_PARALLEL = frozenset({Feature.PIPELINE, Feature.EXPERTS, Feature.DATA_WITH_EXPERTS})
_OPTIONS = {
    Feature.PIPELINE: "pp",
    Feature.DATA: "dp",
    Feature.DATA_WITH_EXPERTS: "dp",
    Feature.EXPERTS: "ep",
    Feature.OFFLOAD: "gpu-layers and cpu-moe",
    Feature.ADAPTERS: "loras",
    Feature.HOST_KV: "host-kv",
}
_BUDGET_ELSEWHERE = "the size of its KV cache on a CPU is given otherwise than on a GPU, which Brim does not write"
_OTHER_FILES = "it reads safetensors"
_TGI_FAMILIES = frozenset(
    {
        *("llama", "mistral", "mixtral", "gemma", "gemma2", "gemma3", "gemma3_text", "qwen2", "phi", "phi3", "phimoe"),
        *(
            "qwen2_vl",
            "qwen2_5_vl",
            "deepseek_v2",
            "deepseek_v3",
            "cohere",
            "dbrx",
            "falcon",
            "gpt2",
            "gpt_neox",
            "mllama",
        ),
    }
)
SUPPORT: dict[str, Support] = {
    "vllm": Support(
        generations={
            "volta": "the last versions for Volta are those with CUDA 12 builds",
            **_TURING_ON,
            **dict.fromkeys(("cdna2", "rdna3", "rdna4"), ""),
            **_CDNA3_ON,
            "xe2": "needs its build for Intel GPUs (XPU)",
            "gaudi": "needs the plug-in vllm-gaudi",
            "tpu": "needs the plug-in vllm-tpu",
            "ascend": "needs the plug-in vllm-ascend",
        },
        cpu=_BUDGET_ELSEWHERE,
        without_awq=frozenset({"volta"}),
        fp8_elsewhere=frozenset({"turing", "ampere"}),
        fp4_elsewhere=frozenset({"ampere", "ada", "hopper"}),
        fp8_kv_elsewhere={"ampere": "only the FlashInfer backend stores an e4m3 KV cache there"},
        gguf_note="needs the plug-in vllm-gguf-plugin, a file in one part, and --tokenizer with the original model",
        features=_PARALLEL | {Feature.DATA, Feature.ADAPTERS, Feature.HOST_KV},
    ),
    "sglang": Support(
        generations={
            **_TURING_ON,
            **_CDNA3_ON,
            "cdna2": "is not among the GPUs that its AMD build is tested on",
            "ascend": "needs its build for Ascend",
            "tpu": "needs sglang-jax",
            "xe2": "needs its build for Intel GPUs (XPU)",
        },
        cpu=_BUDGET_ELSEWHERE,
        fp8_elsewhere=frozenset({"ampere"}),
        fp4_elsewhere=frozenset({"ampere", "ada", "hopper"}),
        fp8_kv_elsewhere={"ampere": "only its FlashInfer backend stores an e4m3 KV cache there"},
        gguf_note="needs a file in one part, and --tokenizer-path with the original model",
        features=_PARALLEL | {Feature.DATA, Feature.HOST_KV},
    ),
    "trtllm": Support(
        generations=_AMPERE_ON,
        cpu="it runs on NVIDIA GPUs only",
        gguf=_OTHER_FILES,
        features=_PARALLEL | {Feature.HOST_KV},
    ),
    "lightllm": Support(generations=_TURING_ON, cpu="it runs on NVIDIA GPUs only", gguf=_OTHER_FILES),
    "max": Support(
        generations={**_TURING_ON, **_CDNA3_ON, **dict.fromkeys(("rdna3", "rdna4"), ""), "metal": "is a preview there"},
        cpu=_BUDGET_ELSEWHERE,
        recurrent="max is not known to run models with recurrent layers",
        gguf="it is not known to run them on GPUs",
    ),
    "tgi": Support(
        generations={**_TURING_ON, "cdna2": "", "cdna3": "", "gaudi": "needs its image for Gaudi"},
        cpu=_BUDGET_ELSEWHERE,
        fp8_elsewhere=frozenset({"ampere"}),
        families=_TGI_FAMILIES,
        other_families="it falls back to transformers' code, without the cache that the plan counts",
        recurrent="tgi is not known to run models with recurrent layers",
        gguf="its llama.cpp backend is a program of its own, with other flags",
    ),
    "llama.cpp": Support(
        generations={
            **{name: "" for name in ARCHITECTURES if name not in ("gaudi", "tpu")},
            "ascend": "needs its CANN build",
            "xe2": "needs its SYCL or Vulkan build",
        },
        own_formats=True,
        features=frozenset({Feature.OFFLOAD}),
    ),
    "transformers": Support(
        generations={
            **dict.fromkeys(("pascal", "volta"), "needs a torch build for CUDA 12"),
            **_TURING_ON,
            **dict.fromkeys(("cdna2", "rdna3", "rdna4"), ""),
            **_CDNA3_ON,
            **dict.fromkeys(("metal", "xe2", "gaudi", "ascend"), "its continuous batching is made for CUDA"),
        },
        own_formats=True,
        gguf="it unpacks them to 16 or 32 bits while it loads them",
    ),
    "brim": Support(generations={"volta": "was tried on Hopper only", **_TURING_ON}, gguf=_OTHER_FILES),
}


def rule(
    engine: EngineRules,
    device: Device,
    *,
    weights: str,
    kv_dtype: Dtype,
    spec: ModelSpec | None = None,
    ranks: int = 1,
    placement: Placement = TENSOR_PARALLEL_ONLY,
) -> Ruling:
    """Whether the engine runs such weights and such a cache on devices, so placed. `weights`: as `checkpoint_format`
    says."""
    support = SUPPORT[engine.name]
    if support.gguf and spec is not None and spec.is_gguf and _is_gguf(weights):
        return Ruling(
            f"engine {engine.name} does not load GGUF files: {support.gguf}; plan for llama.cpp, or name the original "
            "model"
        )
    unplaced = _refused_placement(engine, support, ranks, placement)
    if unplaced:
        return Ruling(unplaced)
    if device.is_cpu:
        why = support.cpu
        refused = (
            f"engine {engine.name} is not planned for the CPU: {why}; name a GPU, or plan for llama.cpp"
            if why
            else None
        )
        return Ruling(refused, _of_model(engine, support, spec))
    generation = device.generation
    if not generation:
        return Ruling(notes=_of_model(engine, support, spec))
    refusal = (
        _refused_device(engine, support, device)
        or _refused_weights(engine, support, device, weights)
        or _refused_kv(engine, support, device, kv_dtype)
    )
    if refusal:
        return Ruling(refusal)
    notes = [
        *_noted(f"{engine.name} on {device.name}", support.generations[generation]),
        *_bf16_note(engine, device, weights),
        *_weight_notes(engine, support, device, weights),
        *_kv_notes(engine, support, device, kv_dtype),
        *_of_model(engine, support, spec),
        *_placement_notes(engine, spec, placement),
    ]
    return Ruling(notes=tuple(notes))


def runners(generation: str) -> list[str]:
    """The engines that run on a generation of devices."""
    return [name for name, support in SUPPORT.items() if generation in support.generations]


def placing(feature: Feature) -> list[str]:
    """The engines that place a model so."""
    return [name for name, support in SUPPORT.items() if feature in support.features]


def _refused_placement(engine: EngineRules, support: Support, ranks: int, placement: Placement) -> str | None:
    for feature in placement.features:
        if feature not in support.features:
            others = ", ".join(placing(feature))
            alone = ", or start a server for each replica" if feature is Feature.DATA else ""
            return (
                f"engine {engine.name} has no {feature} that Brim plans for; leave out {_OPTIONS[feature]}{alone}; "
                f"engines that do: {others}"
            )
    if engine.name == "trtllm" and placement.replicas > 1 and ranks > 1:
        return "engine trtllm has data-parallel attention over all ranks of a group only; leave out tp"
    return None


def _placement_notes(engine: EngineRules, spec: ModelSpec | None, placement: Placement) -> list[str]:
    found = []
    mixture = spec is not None and any(layer.feed_forward and layer.feed_forward.experts for layer in spec.layers)
    if mixture and engine.shares_experts and placement.replicas > 1 and not placement.expert_parallel:
        found.append(f"{engine.name} cuts experts over the ranks of all replicas; with --ep they stay whole")
    if placement.expert_parallel:
        found.append("planned for experts that are visited evenly; a rank whose experts are visited more takes more")
    return found


def _refused_device(engine: EngineRules, support: Support, device: Device) -> str | None:
    if device.generation in support.generations:
        return None
    vendor = ARCHITECTURES[device.generation].vendor
    others = ", ".join(runners(device.generation)) or "none that Brim knows"
    return (
        f"engine {engine.name} does not run on {device.name} ({vendor}, {device.generation}); engines that do: {others}"
    )


def _refused_weights(engine: EngineRules, support: Support, device: Device, weights: str) -> str | None:
    if support.own_formats:
        return None
    generation, needed = device.generation, _needs(weights)
    if weights == "awq" and generation in support.without_awq:
        return f"engine {engine.name} has no kernels for awq weights on {device.name} ({generation}); plan for gptq"
    if needed is None or generation in needed or generation in _elsewhere(support, weights):
        return None
    return (
        f"engine {engine.name} has no kernels for {weights} weights on {device.name} ({generation}); "
        "leave out weights, or plan for int8, awq or gptq where it runs them"
    )


def _refused_kv(engine: EngineRules, support: Support, device: Device, kv_dtype: Dtype) -> str | None:
    runs = kv_dtype is not Dtype.FP8 or device.generation in _FP8 or device.generation in support.fp8_kv_elsewhere
    if runs or support.own_formats:
        return None
    return (
        f"engine {engine.name} has no kernels for an fp8 KV cache on {device.name} ({device.generation}); "
        "leave out kv-dtype"
    )


def _needs(weights: str) -> frozenset[str] | None:
    """The generations that compute with a format; None where every one does."""
    if weights.startswith(("fp8", "fbgemm_fp8")):
        return _FP8
    return _FP4.get({"modelopt_fp4": "nvfp4"}.get(weights, weights))


def _elsewhere(support: Support, weights: str) -> frozenset[str]:
    return support.fp8_elsewhere if _needs(weights) is _FP8 else support.fp4_elsewhere


def _is_gguf(weights: str) -> bool:
    return weights == GGUF or weights in GGUF_FORMATS


def _noted(what: str, text: str) -> list[str]:
    return [f"{what}: {text}"] if text else []


def _bf16_note(engine: EngineRules, device: Device, weights: str) -> list[str]:
    if weights != "bf16" or device.generation not in _WITHOUT_BF16 or engine.name == "llama.cpp":
        return []
    return [f"{device.name} computes no bf16: {engine.name} runs the model in fp16, which is as large (--weights fp16)"]


def _weight_notes(engine: EngineRules, support: Support, device: Device, weights: str) -> list[str]:
    if support.own_formats or device.generation not in _elsewhere(support, weights):
        return []
    needed = _needs(weights)
    if needed is None or device.generation in needed:
        return []
    return [
        f"{device.name} has no {weights.partition('-')[0]} arithmetic: {engine.name} keeps the weights so and computes "
        "in 16 bits, which saves memory and no time"
    ]


def _kv_notes(engine: EngineRules, support: Support, device: Device, kv_dtype: Dtype) -> list[str]:
    if kv_dtype is not Dtype.FP8 or device.generation in _FP8:
        return []
    return _noted(
        f"fp8 KV cache of {engine.name} on {device.name}", support.fp8_kv_elsewhere.get(device.generation, "")
    )


def _of_model(engine: EngineRules, support: Support, spec: ModelSpec | None) -> tuple[str, ...]:
    if spec is None:
        return ()
    found = []
    if spec.is_gguf:
        found += _noted(f"GGUF files in {engine.name}", support.gguf_note)
    if support.families is not None and spec.family not in support.families:
        found.append(f"{engine.name} has no code of its own for {spec.family}: {support.other_families}")
    if support.recurrent and any(layer.state for layer, _ in spec.layer_groups):
        found.append(support.recurrent)
    return tuple(found)
