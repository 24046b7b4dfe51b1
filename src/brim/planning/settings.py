"""The request, resolved: text parsed, defaults filled in, contradictions refused.

`PlanRequest` is what the user wrote; `PlanSettings` is what the ledger and the solver read. Both are frozen: a setting
changed for advice is a new `PlanSettings`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from brim.errors import InvalidRequest
from brim.model.quantisers.quantisation import NAMED_FORMATS
from brim.model.weights import check_tensor_parallel
from brim.planning.activation import AttentionKind
from brim.planning.engines import DEFAULT_DRAFT_TOKENS, EngineRules, Split, chosen_engine, draft_algorithm
from brim.planning.engines.vllm import FIRST_RUNNER_DRAFTS as VLLM_FIRST_RUNNER_DRAFTS
from brim.planning.placement.record import TENSOR_PARALLEL_ONLY, PlacedPart, Placement
from brim.planning.placement.resolve import resolve_placement
from brim.records.model import Attention, Dtype, MediaType, ModelSpec, WeightFormat
from brim.records.plan import Device, PlanRequest
from brim.records.trace import ActivationCurve
from brim.units import ceil_div, round_up

if TYPE_CHECKING:
    from brim.planning.vllm.run import VllmRun

DEFAULT_BATCH_TOKENS = 8192
_LARGEST = 1 << 40
_KV_DTYPES = {
    "bf16": Dtype.BF16,
    "bfloat16": Dtype.BF16,
    "fp16": Dtype.FP16,
    "float16": Dtype.FP16,
    "fp8": Dtype.FP8,
    "fp8_e4m3": Dtype.FP8,
    "int8": Dtype.INT8,
}
_PLAIN_WEIGHTS = {"bf16": Dtype.BF16, "fp16": Dtype.FP16, "fp32": Dtype.FP32}


@dataclass(frozen=True, slots=True)
class Curves:
    """Traced curves, where there are any: of a step over its tokens, and of the vision tower over patches or tiles."""

    step: ActivationCurve | None = None
    vision: ActivationCurve | None = None


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Everything a plan depends on."""

    spec: ModelSpec
    draft: ModelSpec | None
    device: Device
    ranks: int
    kv_dtype: Dtype
    stored: WeightFormat | None
    weights_dtype: Dtype | None
    max_len: int | None
    max_seqs: int | None
    concurrency: int | None
    mean_len: int | None
    kv_tokens: int | None
    batch_tokens: int | None
    image_pixels: int | None
    images_per_prompt: int | None
    audio_seconds: int | None
    draft_tokens: int
    reserve_bytes: int
    canary_bytes: int
    graphs: bool | None
    engine: EngineRules | None
    attention: AttentionKind
    curves: Curves = Curves()
    placement: Placement = TENSOR_PARALLEL_ONLY
    part: PlacedPart | None = None  # what one device holds, where devices differ; `spec` is then its own

    @property
    def block_tokens(self) -> int:
        return self.engine.block_tokens if self.engine else 1

    @property
    def full_requests(self) -> int:
        """The requests of full length that must fit at once."""
        return self.concurrency or 1

    @property
    def usual_step(self) -> int:
        """Tokens of a step, where they were left open and memory allows it."""
        return max(self.engine.default_step if self.engine else DEFAULT_BATCH_TOKENS, self.least_step)

    @property
    def least_step(self) -> int:
        """The fewest tokens of a step: one for every request that was asked to run at once."""
        return 1 if self._cuts_batches else self.max_seqs or self.full_requests

    def running_within(self, step_tokens: int, running: int) -> int:
        """So many requests, or as many as a step has tokens for."""
        return running if self._cuts_batches else min(running, step_tokens)

    @property
    def _cuts_batches(self) -> bool:
        return self.engine is not None and self.engine.cuts_batches

    @property
    def splits_layers(self) -> bool:
        """Whether several GPUs share the layers, and not what is in them."""
        return self.engine is not None and self.engine.split is Split.LAYER

    @property
    def groups_layers(self) -> bool:
        """Whether layers of several kinds share blocks of one size."""
        return self.engine is not None and self.engine.groups_layers

    @property
    def tensor_ranks(self) -> int:
        """The GPUs that share each layer."""
        return 1 if self.splits_layers else self.ranks

    @property
    def devices(self) -> int:
        """Devices in all: of every stage and every replica."""
        return self.ranks * self.placement.devices

    @property
    def communicates(self) -> bool:
        """Whether a device exchanges tensors with others in a step, through buffers of a library."""
        placement = self.placement
        return self.tensor_ranks > 1 or placement.pipeline > 1 or (placement.expert_parallel and placement.replicas > 1)

    @property
    def most_positions(self) -> int:
        """The longest request that the model was made for, and a draft, where the engine asks that of it."""
        if self.draft is None or self.engine is None or not self.engine.strict_drafts:
            return self.spec.max_positions
        return min(self.spec.max_positions, self.draft.max_positions)

    def vllm_run(self, *, batch_tokens: int | None, max_seqs: int | None, max_len: int | None) -> VllmRun:
        """A start of vLLM with these limits; None: its own."""
        from brim.planning.vllm.run import plan_run  # other plans do without

        return plan_run(
            self.spec,
            self.device,
            self.kv_dtype,
            batch_tokens=batch_tokens,
            max_seqs=max_seqs,
            max_len=max_len,
            ranks=self.ranks,
            graphs=self.graphs is not False,
            media=self.images_per_prompt != 0,
            draft_tokens=self.draft_tokens,
            first_runner=self.draft is not None and draft_algorithm(self.draft) in VLLM_FIRST_RUNNER_DRAFTS,
        )

    def vllm_unproven(self, run: VllmRun) -> tuple[str, ...]:
        """What of such a start no stored fit inside vLLM has proven."""
        from brim.planning.vllm.proof import unproven

        return unproven(self.spec, self.device, run, quantised=self.stored is not None)

    @property
    def slots_divide_context(self) -> bool:
        """Whether every request that may run owns a full context from the start."""
        return self.engine is not None and self.engine.slots_divide_context


def resolve(
    spec: ModelSpec,
    device: Device,
    request: PlanRequest,
    draft: ModelSpec | None = None,
    curves: Curves = Curves(),
) -> PlanSettings:
    """The request as settings, or `InvalidRequest` naming the option."""
    _check_numbers(request)
    _check_kinds(request)
    if device.is_cpu and request.graphs:
        raise InvalidRequest("graphs are asked for on the CPU, which has no CUDA graphs; leave out --graphs")
    engine = chosen_engine(spec, request.engine)
    placed = resolve_placement(spec, device, request, engine, draft)
    check_ranks(placed.divided, placed.ranks, engine, draft)
    kv_tokens = _in_blocks(request.kv_tokens, engine)
    promised = _promised(request, engine)
    _check_lengths(request, kv_tokens, promised or 1)
    if engine is None or not engine.cuts_batches:
        _check_step(request)
    _check_mean(request, spec)
    _check_users(request)
    _check_media(request, spec)
    if request.draft_tokens is not None and draft is None:
        raise InvalidRequest("draft-tokens is given without a draft model; name one with --draft")
    kv_dtype = _kv_dtype(spec, request.kv_dtype)
    if engine and kv_dtype not in engine.kv_dtypes:
        known = ", ".join(str(dtype) for dtype in engine.kv_dtypes)
        raise InvalidRequest(f"engine {engine.name} has no {kv_dtype} KV cache; kv-dtype may be {known}")
    stored, weights_dtype = _weights(request.weights)
    return PlanSettings(
        spec=spec,
        draft=draft,
        device=device,
        ranks=placed.ranks,
        kv_dtype=kv_dtype,
        stored=stored,
        weights_dtype=weights_dtype,
        max_len=request.max_len,
        max_seqs=_running(request, engine),
        concurrency=promised,
        mean_len=request.mean_len,
        kv_tokens=kv_tokens,
        batch_tokens=request.batch_tokens,
        image_pixels=request.image_pixels,
        images_per_prompt=request.images_per_prompt,
        audio_seconds=request.audio_seconds,
        draft_tokens=0 if draft is None else request.draft_tokens or DEFAULT_DRAFT_TOKENS,
        reserve_bytes=request.reserve_bytes,
        canary_bytes=request.canary_bytes,
        graphs=False if device.is_cpu else request.graphs,
        engine=engine,
        attention=_attention(spec, engine, request.attention),
        curves=curves,
        placement=placed.placement,
    )


def _check_numbers(request: PlanRequest) -> None:
    may_be_zero = {"reserve_bytes", "canary_bytes", "images_per_prompt", "host_kv_bytes"}
    for one in fields(request):
        value = getattr(request, one.name)
        if "int" not in str(one.type) or (value is None and "None" in str(one.type)):
            continue
        name = _option_name(one.name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidRequest(f"{name} is {value!r}; it must be a whole number")
        lowest = 0 if one.name in may_be_zero else 1
        if not lowest <= value <= _LARGEST:
            raise InvalidRequest(f"{name} is {value}; it must be at least {lowest} and below 2^40")


def _option_name(field: str) -> str:
    """A field of the request as its option is called."""
    for long, short in (("tensor", "tp"), ("pipeline", "pp"), ("data", "dp"), ("expert", "ep")):
        if field == f"{long}_parallel":
            return short
    return field.removesuffix("_bytes").replace("_", "-").replace("attention", "attn")


def _check_kinds(request: PlanRequest) -> None:
    """Names are texts, and switches are True or False."""
    for one in fields(request):
        value = getattr(request, one.name)
        kind, words = (str, "a name") if "str" in str(one.type) else (bool, "True or False")
        if "int" not in str(one.type) and value is not None and not isinstance(value, kind):
            raise InvalidRequest(f"{_option_name(one.name)} is {value!r}; it must be {words}, or left out")


def check_ranks(spec: ModelSpec, ranks: int, engine: EngineRules | None, draft: ModelSpec | None) -> None:
    """Refuse a number of ranks that the models, or the engine that was asked for, cannot be divided by."""
    for model in (spec, draft):
        if model is None or (model is draft and engine is not None and engine.split is Split.LAYER):
            continue
        if engine is None:
            check_tensor_parallel(model, ranks)
        else:
            engine.check_ranks(model, ranks)


def _check_lengths(request: PlanRequest, kv_tokens: int | None, wanted: int) -> None:
    """Lengths and numbers of requests that contradict each other."""
    if kv_tokens is not None and request.max_len is not None and kv_tokens < wanted * request.max_len:
        requests = "one request" if wanted == 1 else f"{wanted} requests"
        raise InvalidRequest(
            f"kv-tokens {request.kv_tokens} cannot hold {requests} of max-len {request.max_len}; lower max-len"
        )
    if request.concurrency is not None and request.max_seqs is not None and request.concurrency > request.max_seqs:
        raise InvalidRequest(
            f"concurrency {request.concurrency} is more than max-seqs {request.max_seqs}, the most that run at once; "
            "raise max-seqs or leave it out"
        )
    if request.mean_len is not None and request.max_len is not None and request.mean_len > request.max_len:
        raise InvalidRequest(
            f"mean-len {request.mean_len} is more than max-len {request.max_len}, the longest request; lower mean-len"
        )


def _check_mean(request: PlanRequest, spec: ModelSpec) -> None:
    if request.mean_len is not None and request.max_len is None and request.mean_len > spec.max_positions:
        raise InvalidRequest(
            f"mean-len {request.mean_len} is more than the {spec.max_positions} positions of {spec.name}; lower it"
        )


def _check_media(request: PlanRequest, spec: ModelSpec) -> None:
    """Limits on media that the model does not take; 0 images are none."""
    taken = {tower.media for tower in spec.towers}
    images = {"image-pixels": request.image_pixels, "images-per-prompt": request.images_per_prompt}
    given = [name for name, value in images.items() if value and MediaType.IMAGE not in taken]
    given += ["audio-seconds"] if request.audio_seconds and MediaType.AUDIO not in taken else []
    if given and not taken:
        raise InvalidRequest(f"{spec.name} has no vision or audio tower; leave out the media options")
    if given:
        takes = "images" if MediaType.IMAGE in taken else "audio"
        raise InvalidRequest(f"{spec.name} takes {takes} and text only; leave out {' and '.join(given)}")


def _check_step(request: PlanRequest) -> None:
    """A step has a token of every request that runs."""
    for name, number in (("max-seqs", request.max_seqs), ("concurrency", request.concurrency)):
        if number is not None and request.batch_tokens is not None and number > request.batch_tokens:
            raise InvalidRequest(
                f"{name} {number} is more than batch-tokens {request.batch_tokens}, and a step has a token of every "
                f"request that runs; lower {name}, or raise batch-tokens"
            )


def _promised(request: PlanRequest, engine: EngineRules | None) -> int | None:
    """The requests of full length that a replica must hold; slots that divide the context are such requests."""
    if request.concurrency is None and engine is not None and engine.slots_divide_context:
        return request.max_seqs
    return _of_replica(request.concurrency, request)


def _of_replica(requests: int | None, request: PlanRequest) -> int | None:
    """Requests are spread over the replicas."""
    return None if requests is None else ceil_div(requests, request.data_parallel)


def _running(request: PlanRequest, engine: EngineRules | None) -> int | None:
    """The most requests that run at once: as asked, or one for every user; slots have the whole context, not a mean."""
    slots = engine is not None and engine.slots_divide_context
    return _of_replica(request.users, request) if request.max_seqs is None and not slots else request.max_seqs


def _check_users(request: PlanRequest) -> None:
    if request.users is not None and request.mean_len is None:
        raise InvalidRequest("users is given without mean-len, the tokens each has on average; give --mean-len 2k")
    if request.tokens_per_second is not None and request.users is None:
        raise InvalidRequest("tokens-per-second is what each user gets, and users is not given; give --users 200")
    if request.users is not None and request.concurrency is not None:
        raise InvalidRequest("users and concurrency are two ways to say how many; leave out concurrency")


def _in_blocks(tokens: int | None, engine: EngineRules | None) -> int | None:
    """A cache has whole blocks."""
    return tokens if tokens is None or engine is None else round_up(tokens, engine.block_tokens)


def _kv_dtype(spec: ModelSpec, asked: str | None) -> Dtype:
    if asked is not None and asked != "auto":
        if asked not in _KV_DTYPES:
            raise InvalidRequest(f"kv-dtype '{asked[:40]}' is not one of {', '.join(_KV_DTYPES)}")
        return _KV_DTYPES[asked]
    if spec.quantisation and spec.quantisation.kv_dtype:
        return spec.quantisation.kv_dtype
    return Dtype.FP16 if spec.dtype is Dtype.FP16 else Dtype.BF16


def _weights(asked: str | None) -> tuple[WeightFormat | None, Dtype | None]:
    if asked is None or asked == "auto":
        return None, None
    if asked in _PLAIN_WEIGHTS:
        return None, _PLAIN_WEIGHTS[asked]
    if asked not in NAMED_FORMATS:
        raise InvalidRequest(f"weights '{asked[:40]}' is not one of {', '.join([*_PLAIN_WEIGHTS, *NAMED_FORMATS])}")
    return NAMED_FORMATS[asked], None


def _attention(spec: ModelSpec, engine: EngineRules | None, asked: str | None) -> AttentionKind:
    if asked is not None:
        if asked not in tuple(AttentionKind):
            raise InvalidRequest(f"attn '{asked[:40]}' is not one of {', '.join(AttentionKind)}")
        return AttentionKind(asked)
    return (
        AttentionKind.EAGER
        if engine and engine.attention is AttentionKind.EAGER and only_eager(spec)
        else AttentionKind.FUSED
    )


def only_eager(spec: ModelSpec) -> bool:
    """Whether `transformers` has no fused attention for the model: sinks are added to materialised scores."""
    return any(isinstance(layer.mixer, Attention) and layer.mixer.sinks for layer, _ in spec.layer_groups)
