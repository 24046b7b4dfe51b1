"""Puts an engine together: the parts that do not depend on how large its KV pool is, and those that do."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from brim.engine.attention.backends import BackendSizes, check_backend, make_backend
from brim.engine.attention.paged import NAME, register
from brim.engine.drafts.draft_model import AS_ROWS
from brim.engine.encoders.feature_store import FeatureStore
from brim.engine.kv.geometry import group_layers
from brim.engine.media.families import ahead_in_windows_only
from brim.engine.media.prepare import find_preparer
from brim.engine.parts import EngineParts
from brim.engine.ranks.agreement import WholeEngine
from brim.engine.recurrent.mixers import fullest_chunk
from brim.engine.recurrent.states import discover_states
from brim.engine.run.runner import Runner, RunnerShape
from brim.engine.run.scoring.prompts import PromptScorer
from brim.engine.settings import EngineSettings
from brim.engine.weights.discover import discover_layers
from brim.engine.weights.head import find_head
from brim.engine.weights.load import LoadedModel
from brim.engine.weights.text_model import TextModel
from brim.errors import InvalidRequest

if TYPE_CHECKING:
    from brim.engine.ranks.failed_rank import FailedRankParticipation
    from brim.engine.ranks.ranks import Ranks

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.float8_e4m3fn}


def assemble(
    loaded: LoadedModel,
    settings: EngineSettings,
    device: torch.device,
    ranks: Ranks | None = None,
    draft: EngineParts | None = None,
    features: FeatureStore | None = None,
) -> EngineParts:
    """Learn what the model's layers keep, choose how they attend, and make the parts that any size shares.

    `draft` are the parts of a model that drafts for this one (`assemble_draft`). `features` come from encoders in other
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
    runner = Runner(
        text_model,
        layers,
        states,
        shape,
        partial(
            make_backend,
            settings.attention,
            BackendSizes(layers.geometry, shape.most_decode_rows, max_length, device),
        ),
        PromptScorer(text_model, find_head(text_model), settings.scoring_memory, device),
        mrope=_has_mrope(loaded),
        ahead_in_windows_only=ahead_in_windows_only(loaded.full_config),
        features=features,
        **in_step(ranks, failed_rank),
    )
    groups = group_layers(layers.geometry)
    return EngineParts(
        runner,
        groups,
        settings,
        max_length,
        kv_dtype.itemsize,
        state_bytes=sum(state.slot_bytes for state in states) * (runner.rows + shape.max_drafted),
        fullest_chunk=fullest_chunk(text_model.backbone, settings.max_batch, settings.max_batch_tokens),
        media=find_preparer(loaded),
        vocab=loaded.vocab,
        clock=time.monotonic if ranks is None else ranks.clock,
        ranks=ranks or WholeEngine(),
        failed_rank=failed_rank,
        draft=draft,
        features=features,
    )


def assemble_draft(loaded: LoadedModel, settings: EngineSettings, max_length: int, device: torch.device) -> EngineParts:
    """The parts of a draft model, for an engine of these settings: as many slots as requests may have drafts.

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


def in_step(ranks: Ranks | None, failed_rank: FailedRankParticipation | None) -> dict[str, Any]:
    """What keeps a runner in step with those of the other ranks."""
    if ranks is None or failed_rank is None:
        return {}
    from brim.engine.ranks.lockstep import InStep

    together = InStep(ranks)
    return {"check_plan": together.check, "same_tokens": together.tokens, "ends_alike": failed_rank.step}


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
