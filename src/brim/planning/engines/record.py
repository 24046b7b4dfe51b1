"""The records between a solved plan and an engine's command: `Sizes` in, `Command` out, and `Engine` between them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from brim.errors import InvalidRequest
from brim.model.kv import KvStorage
from brim.planning.activation import AttentionKind
from brim.planning.engines.by_itself import BareStart, OwnSize
from brim.planning.engines.split import Split, check_layer_split, check_tensor_split
from brim.planning.placement.record import TENSOR_PARALLEL_ONLY, Placement, StageRule
from brim.records.model import Dtype, MediaType, ModelSpec

PLAIN = ("bf16", "fp16", "fp32")  # weights that are not quantised, as `--weights` names them


class Algorithm(StrEnum):
    """How a draft model drafts."""

    DRAFT_MODEL = "draft_model"  # a small model of its own
    EAGLE3 = "eagle3"
    P_EAGLE = "p_eagle"  # EAGLE-3 that drafts all its tokens in one pass
    DFLASH = "dflash"
    DSPARK = "dspark"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDraft:
    """The draft model of speculative decoding."""

    model: str  # hub id or path
    algorithm: Algorithm
    tokens: int  # drafted in a step
    weights_bytes: int  # of a rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Everything that was solved or asked for, for turning into a command. Bytes are those of a rank.

    Where ranks hold different parts, they are those of the rank that has most of each.
    """

    model: str  # hub id where there is one, else the path or name as given
    dtype: Dtype  # that the model computes in
    checkpoint: str  # format of its weights, as `--weights` names it
    checkpoint_kv: Dtype | None = None  # type of the KV cache that the checkpoint asks for
    weights: str | None = None  # format that `--weights` asked for

    max_len: int
    max_seqs: int  # requests of any length that run at once
    concurrency: int  # requests of max_len that fit at once
    batch_tokens: int
    block_tokens: int
    kv_tokens: int
    kv_dtype: Dtype
    kv_bytes: int  # of kv_tokens, a draft's KV included
    state_bytes: int = 0  # of max_seqs requests

    usable_bytes: int  # of the device, as CUDA reports it
    free_bytes: int  # when the engine begins to load: without its CUDA context and without neighbours
    spare_bytes: int  # what the engine must not use: canary, graphs, neighbours, workspace
    weights_bytes: int

    ranks: int = 1
    placement: Placement = TENSOR_PARALLEL_ONLY
    on_cpu: bool = False
    graphs: bool = True
    attention: AttentionKind = AttentionKind.FUSED
    draft: PlannedDraft | None = None
    media: frozenset[MediaType] = frozenset()  # that the model takes
    images_per_prompt: int | None = None
    image_pixels: int | None = None
    image_tokens: int | None = None  # that an image of image_pixels becomes
    processor_limits_pixels: bool = False  # the model's processor has a limit in pixels that can be lowered
    audio_seconds: int | None = None
    prompt_chunk: int | None = None  # the most tokens of one prompt in a step, where a step may not have them all
    growing_segments: bool = False  # the sizes are those of an allocator whose segments grow
    projector: str | None = None  # file of the towers, where they are in one of their own

    @property
    def static_bytes(self) -> int:
        """What stays allocated between steps: weights, the draft's too, KV and states."""
        draft = self.draft.weights_bytes if self.draft else 0
        return self.weights_bytes + draft + self.kv_bytes + self.state_bytes

    @property
    def own_kv_dtype(self) -> Dtype:
        """The type of the KV cache where an engine is told nothing."""
        return self.checkpoint_kv or self.dtype

    @property
    def new_weights(self) -> str | None:
        """The format asked for, where the checkpoint is in another."""
        return self.weights if self.weights != self.checkpoint else None

    @property
    def other_plain_weights(self) -> Dtype | None:
        """The plain type that an engine must be told: another than the checkpoint's, or fp32, which engines shorten."""
        if self.checkpoint not in PLAIN or self.weights not in (None, *PLAIN):
            return None
        return self.dtype if self.new_weights or self.dtype is Dtype.FP32 else None


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """A command to paste: launcher and model, then `flags`; the files it reads, and what it cannot say itself."""

    launch: tuple[str, ...]
    flags: tuple[str, ...]
    notes: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()  # name and text
    env: tuple[tuple[str, str], ...] = ()  # variables that it runs with

    @property
    def args(self) -> tuple[str, ...]:
        return (*self.launch, *self.flags)

    @property
    def shell(self) -> str:
        """The command for a shell, which writes the files first and sets the variables."""
        written = [f"cat > {shlex.quote(name)} <<'EOF'\n{text}\nEOF\n" for name, text in self.files]
        variables = [f"{name}={shlex.quote(value)} " for name, value in self.env]
        return "".join(written) + "".join(variables) + shlex.join(self.args)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    """How an engine differs from the model's own minimum, and how it is told a plan."""

    name: str
    version: str  # whose rules these are
    block_tokens: int
    storage: Callable[[int], KvStorage]  # by the tokens of a step
    slack_percent: int  # what its allocator reserves beyond the peak of a step
    note: str  # what it stores beyond the minimum
    launch: tuple[str, ...]  # the command that the model and the flags go behind
    flags: Callable[[Sizes], list[str]]
    model: Callable[[Sizes], list[str]] = lambda sizes: [sizes.model]
    notes: Callable[[Sizes], list[str]] = lambda _: []
    files: Callable[[Sizes], tuple[tuple[str, str], ...]] = lambda _: ()
    env: Callable[[Sizes], tuple[tuple[str, str], ...]] = lambda _: ()  # variables that the sizes depend on

    kv_dtypes: tuple[Dtype, ...] = (Dtype.BF16, Dtype.FP16, Dtype.FP8)
    other_kv_dtypes: frozenset[Dtype] = frozenset({Dtype.FP8})  # that it stores whatever the model computes in
    converts: Mapping[str, str] = field(default_factory=dict)  # formats made from plain weights at load: its names
    formats: frozenset[str] = frozenset()  # formats that it runs, from a checkpoint stored in them
    quantised: frozenset[str] = frozenset()  # stored formats that it runs, by `quant_method`
    drafts: Mapping[Algorithm, str] = field(default_factory=dict)  # its names of how drafts draft
    drafts_on_several: bool = True  # GPUs
    strict_drafts: bool = False  # refuses drafts of another vocabulary, with fewer positions or with states
    plain_only: bool = False  # refuses quantised checkpoints
    attention: AttentionKind = AttentionKind.FUSED
    attentions: frozenset[AttentionKind] = frozenset({AttentionKind.FUSED})

    default_step: int = 8192
    scoring_bytes: int = 0  # that log-probabilities of prompts take behind a step's layers, where they are bounded
    null_blocks: int = 0  # blocks of its cache that no request gets
    cuts_batches: bool = False  # requests beyond the tokens of a step are put into further steps
    slots_divide_context: bool = False  # concurrency is fixed at the start, and each slot has its share of the context
    split: Split = Split.TENSOR
    groups_layers: bool = False  # layers of several kinds share a pool of blocks of one size (`planning.vllm.pool`)
    own_rules: bool = False  # what its worst load holds is known from its code (`planning.vllm`)
    by_itself: Callable[[BareStart], OwnSize] | None = None  # its own size, where that is known from its rules alone
    stage_rule: StageRule = StageRule.BEFORE_LAST  # of layers that pipeline stages do not divide
    towers_everywhere: bool = False  # every stage loads the encoders
    shares_experts: bool = False  # replicas share experts without expert parallelism too
    replicates_kv_heads: bool = True  # more ranks than KV heads: each head is on several

    def check_ranks(self, spec: ModelSpec, ranks: int) -> None:
        """Refuse a number of GPUs that the engine would refuse."""
        if self.split is Split.LAYER:
            check_layer_split(spec, ranks)
        else:
            check_tensor_split(spec, ranks, self.name, self.replicates_kv_heads)

    def check(self, sizes: Sizes) -> None:
        """Refuse what the engine cannot do, naming the option."""
        self._check_kv(sizes)
        self._check_weights(sizes)
        if sizes.draft and sizes.draft.algorithm not in self.drafts:
            known = ", ".join(self.drafts)
            remedy = f"it drafts with {known}" if known else "leave out draft"
            raise InvalidRequest(f"engine {self.name} has no {sizes.draft.algorithm} drafts; {remedy}")
        if sizes.draft and sizes.ranks > 1 and not self.drafts_on_several:
            raise InvalidRequest(f"engine {self.name} drafts on one GPU only; leave out draft, or plan for one GPU")
        if sizes.attention not in self.attentions:
            raise InvalidRequest(f"engine {self.name} has no {sizes.attention} attention; leave out attn")

    def command(self, sizes: Sizes) -> EngineCommand:
        """The plan as a complete command."""
        self.check(sizes)
        return EngineCommand(
            launch=(*self.launch, *self.model(sizes)),
            flags=tuple(self.flags(sizes)),
            notes=(*self._weight_notes(sizes), *self.notes(sizes)),
            files=self.files(sizes),
            env=self.env(sizes),
        )

    def _check_kv(self, sizes: Sizes) -> None:
        if sizes.kv_dtype not in self.kv_dtypes:
            known = ", ".join(self.kv_dtypes)
            raise InvalidRequest(f"engine {self.name} has no {sizes.kv_dtype} KV cache; kv-dtype may be {known}")
        if sizes.kv_dtype is not sizes.own_kv_dtype and sizes.kv_dtype not in self.other_kv_dtypes:
            remedy = "plan with weights bf16" if sizes.own_kv_dtype is Dtype.FP32 else "leave out kv-dtype"
            raise InvalidRequest(
                f"engine {self.name} has no {sizes.kv_dtype} KV cache for {sizes.model}, whose own is "
                f"{sizes.own_kv_dtype}; {remedy}"
            )

    def _check_weights(self, sizes: Sizes) -> None:
        asked = sizes.new_weights
        known = [*PLAIN, *self.converts, *sorted(self.formats - set(self.converts))]
        if asked is not None and asked not in known:
            raise InvalidRequest(f"engine {self.name} runs no {asked} weights; weights may be {', '.join(known)}")

    def _weight_notes(self, sizes: Sizes) -> list[str]:
        asked = sizes.new_weights
        if asked is None or (sizes.checkpoint in PLAIN and (asked in PLAIN or asked in self.converts)):
            return []
        return [
            f"the weights of {sizes.model} are {sizes.checkpoint}, and {self.name} does not make {asked} of them: put "
            f"a checkpoint stored in {asked} in its place"
        ]
