"""A model ready to serve: what is loaded once, and stays the same at any size of the KV pool (`brim.engine.pool`).

In: a loaded model, settings, the ranks that share it. Out: `ServingModel`: a runner without a pool, how large a pool of
any size is, and what prepares media.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from brim.engine.attention.backends import BackendSizes, check_backend, make_backend
from brim.engine.attention.paged import NAME, register
from brim.engine.drafts.draft_model import AS_ROWS
from brim.engine.encoders.feature_store import FeatureStore
from brim.engine.kv.geometry import group_layers
from brim.engine.kv.sizes import PoolSizes
from brim.engine.media.families import ahead_in_windows_only
from brim.engine.media.prepare import Preparer, find_preparer
from brim.engine.ranks.agreement import EngineAgreement, WholeEngine, each_rank_by_itself
from brim.engine.recurrent.mixers import fullest_chunk
from brim.engine.recurrent.states import discover_states
from brim.engine.run.runner import Runner
from brim.engine.run.running import RankHooks
from brim.engine.run.scoring.prompts import PromptScorer
from brim.engine.run.shape import RunnerModel, RunnerShape
from brim.engine.settings import EngineSettings
from brim.engine.weights.discover import discover_layers
from brim.engine.weights.head import find_head
from brim.engine.weights.load import LoadedModel
from brim.engine.weights.text_model import TextModel
from brim.errors import InvalidRequest

if TYPE_CHECKING:
    from brim.engine.ranks.failed_rank import FailedRankParticipation
    from brim.engine.ranks.ranks import Ranks

_NO_RESCUES = (
    "a step that runs out of memory ends the engine: what this model's steps ask of the other ranks cannot be "
    "foretold, so a rank that fails would leave them waiting"
)
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.float8_e4m3fn}


@dataclass(frozen=True, slots=True)
class ServingModel:
    """A model and a runner for it, without a KV pool."""

    runner: Runner
    sizes: PoolSizes
    fullest_chunk: int | None  # chunk length at which recurrent layers need the most memory
    media: Preparer | None = None  # of a model that takes more than text
    vocab: int = 0  # token ids that texts consist of
    clock: Callable[[], float] = time.monotonic
    ranks: EngineAgreement = field(default_factory=WholeEngine)
    failed_rank: FailedRankParticipation | None = None  # with several ranks
    draft: ServingModel | None = None  # that drafts for this one
    features: FeatureStore | None = None  # of images, where encoders run in processes of their own

    @property
    def settings(self) -> EngineSettings:
        return self.sizes.settings

    @property
    def max_length(self) -> int:
        """Tokens of the longest request that the model can answer."""
        return self.sizes.max_length

    def each_rank_by_itself(self, what: str) -> AbstractContextManager[None]:
        """Each rank runs this without the others, and it ends alike on all of them."""
        return each_rank_by_itself(self.ranks, self.runner.alone, what)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What this model could not do as it was asked, and does otherwise."""
        return (*self.runner.warnings, *(() if self.rescues else (_NO_RESCUES,)))

    @property
    def draft_warnings(self) -> tuple[str, ...]:
        """The same of the model that drafts for it."""
        return () if self.draft is None else tuple(f"draft: {warning}" for warning in self.draft.runner.warnings)

    @property
    def rescues(self) -> bool:
        """Whether a step that fails on one rank can be run again: all must learn of it."""
        return self.ranks.size == 1 or (self.failed_rank is not None and self.failed_rank.known)


def assemble(
    loaded: LoadedModel,
    settings: EngineSettings,
    device: torch.device,
    ranks: Ranks | None = None,
    draft: ServingModel | None = None,
    features: FeatureStore | None = None,
) -> ServingModel:
    """Learn what the model's layers keep, choose how they attend, and make what any size of the pool shares.

    `draft` drafts for this one (`assemble_draft`). `features` come from encoders in other
    processes; None: from the model's own towers.
    """
    check_backend(settings.attention)
    text_model = TextModel(loaded.model)
    max_length = settings.max_length or loaded.max_positions
    if max_length > loaded.max_positions:
        raise InvalidRequest(
            f"max_length {max_length}: the model was made for {loaded.max_positions} positions; lower max_length"
        )
    use_paged_attention(loaded.model, text_model.backbone)
    layers = discover_layers(text_model, loaded.config)
    states = discover_states(loaded.model)
    kv_dtype = text_model.dtype if settings.kv_dtype == "auto" else _DTYPES[settings.kv_dtype]
    shape = RunnerShape(
        max_batch=settings.max_batch,
        max_batch_tokens=settings.max_batch_tokens,
        max_length=max_length,
        kv_dtype=kv_dtype,
        device=device,
        graphs=settings.graphs,
        max_drafted=settings.max_drafted,
        draft_tokens=settings.draft_tokens,
    )
    if settings.compile:
        from brim.engine.run.compiling import compile_layers

        compile_layers(text_model.backbone, layers)
    failed_rank = find_failed_rank(ranks)
    backend_sizes = BackendSizes(layers.geometry, shape.most_decode_rows, max_length, device)
    runner = Runner(
        RunnerModel(
            text_model,
            layers,
            states,
            shape,
            partial(make_backend, settings.attention, backend_sizes),
            mrope=_has_mrope(loaded),
            ahead_in_windows_only=ahead_in_windows_only(loaded.full_config),
        ),
        PromptScorer(text_model, find_head(text_model), settings.scoring_memory, device),
        hooks=rank_hooks(ranks, failed_rank),
        features=features,
    )
    state_rows = shape.rows + shape.max_drafted
    sizes = PoolSizes(
        group_layers(layers.geometry),
        settings,
        max_length,
        kv_dtype.itemsize,
        state_bytes=sum(state.slot_bytes for state in states) * state_rows,
        draft=None if draft is None else draft.sizes,
    )
    return ServingModel(
        runner,
        sizes,
        fullest_chunk=fullest_chunk(text_model.backbone, settings.max_batch, settings.max_batch_tokens),
        media=find_preparer(loaded),
        vocab=loaded.vocab,
        clock=time.monotonic if ranks is None else ranks.clock,
        ranks=ranks or WholeEngine(),
        failed_rank=failed_rank,
        draft=draft,
        features=features,
    )


def assemble_draft(
    loaded: LoadedModel, settings: EngineSettings, max_length: int, device: torch.device
) -> ServingModel:
    """A draft model, for an engine of these settings: as many slots as requests may have drafts.

    Its own steps have rows of drafts too, where all tokens of the last draft stood and one more is to be computed.
    """
    slots = settings.max_drafted
    own = replace(
        settings,
        max_batch=slots,
        max_batch_tokens=max(settings.max_batch_tokens, slots * AS_ROWS),
        max_length=max_length,
        reuse_prefixes=False,
        speculate_max_batch=slots,
        draft_tokens=AS_ROWS - 1,
        max_image_pixels=None,
        max_audio_seconds=None,
    )
    return assemble(loaded, own, device)


def rank_hooks(ranks: Ranks | None, failed_rank: FailedRankParticipation | None) -> RankHooks:
    """What keeps a runner in step with those of the other ranks."""
    if ranks is None or failed_rank is None:
        return RankHooks()
    from brim.engine.ranks.lockstep import InStep

    together = InStep(ranks)
    return RankHooks(check_plan=together.check, same_tokens=together.tokens, ends_alike=failed_rank.step)


def find_failed_rank(ranks: Ranks | None) -> FailedRankParticipation | None:
    """What lets a step end the same way on all ranks, where there are several."""
    if ranks is None:
        return None
    from brim.engine.ranks.failed_rank import FailedRankParticipation

    return FailedRankParticipation(ranks)


def use_paged_attention(model: Any, backbone: Any) -> None:
    """The decoder attends through the pool; towers that were loaded that way too go back to the library's choice."""
    register()
    backbone.set_attn_implementation(NAME)
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is None or config is model.config or config is backbone.config:
            continue
        if hasattr(module, "set_attn_implementation") and config._attn_implementation == NAME:
            module.set_attn_implementation(None)


def _has_mrope(loaded: LoadedModel) -> bool:
    parameters = getattr(loaded.config, "rope_parameters", None) or {}
    return "mrope_section" in parameters or hasattr(loaded.model.base_model, "get_rope_index")
