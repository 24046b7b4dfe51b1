"""A solved plan as the command of an engine: what was asked for and what was solved, put together for it."""

from __future__ import annotations

from dataclasses import replace

from brim.errors import InvalidRequest
from brim.planning.engines import (
    EngineCommand,
    EngineRules,
    PlannedDraft,
    Ruling,
    Sizes,
    check_models,
    checkpoint_format,
    draft_algorithm,
    format_key,
    limits_pixels,
    rule,
)
from brim.planning.placement.ranks import kv_bytes
from brim.planning.settings import PlanSettings
from brim.planning.solving.lower import largest_image
from brim.planning.solving.solve import Solution
from brim.records.model import MediaType
from brim.units import ceil_div, round_up

_NOT_FOR_ENGINE = ("canary", "graphs", "neighbours", "workspace")


def check_engine(settings: PlanSettings) -> None:
    """Refuse what the engine that was asked for cannot do, before anything is solved."""
    if settings.engine is not None:
        check_models(
            settings.engine,
            settings.spec,
            settings.draft,
            as_stored=settings.stored is None and settings.weights_dtype is None,
            max_len=settings.max_len,
        )
        settings.engine.check(_asked(settings, settings.engine))
        refusal = engine_ruling(settings, settings.engine).refusal
        if refusal:
            raise InvalidRequest(refusal)


def engine_ruling(settings: PlanSettings, engine: EngineRules) -> Ruling:
    """What the table of capabilities says of an engine for these settings."""
    weights = _asked_weights(settings) or checkpoint_format(settings.spec)
    return rule(
        engine,
        settings.device,
        weights=weights,
        kv_dtype=settings.kv_dtype,
        spec=settings.spec,
        ranks=settings.ranks,
        placement=settings.placement,
    )


def engine_command(settings: PlanSettings, solution: Solution) -> EngineCommand | None:
    """The command of the engine that was asked for; none where the plan does not fit."""
    if settings.engine is None or not solution.fits:
        return None
    return settings.engine.command(_sizes(settings, solution, settings.engine))


def _asked(settings: PlanSettings, engine: EngineRules) -> Sizes:
    """What was asked for; nothing is solved yet."""
    spec = settings.spec
    return Sizes(
        model=spec.source or spec.name,
        dtype=settings.weights_dtype or spec.dtype,
        checkpoint=checkpoint_format(spec),
        checkpoint_kv=spec.quantisation.kv_dtype if spec.quantisation else None,
        weights=_asked_weights(settings),
        max_len=0,
        max_seqs=0,
        concurrency=0,
        batch_tokens=0,
        block_tokens=engine.block_tokens,
        kv_tokens=0,
        kv_dtype=settings.kv_dtype,
        kv_bytes=0,
        usable_bytes=settings.device.usable_bytes,
        free_bytes=0,
        spare_bytes=0,
        weights_bytes=0,
        ranks=settings.ranks,
        placement=settings.placement,
        on_cpu=settings.device.is_cpu,
        attention=settings.attention,
        draft=_draft(settings),
        media=frozenset(tower.media for tower in spec.towers),
        processor_limits_pixels=limits_pixels(spec),
        audio_seconds=settings.audio_seconds,
        projector=spec.projector,
    )


def _sizes(settings: PlanSettings, solution: Solution, engine: EngineRules) -> Sizes:
    items = {item.name: item.bytes for item in solution.items}
    draft, draft_weights = _draft(settings), solution.costs.draft_weights
    pixels, devices = _pixel_limit(settings, solution), solution.filled.devices
    return replace(
        _with_own_rules(_asked(settings, engine), settings, solution, engine),
        max_len=solution.max_len,
        max_seqs=solution.max_seqs,
        concurrency=solution.concurrency,
        batch_tokens=solution.batch_tokens,
        kv_tokens=solution.kv_tokens,
        kv_bytes=_kv_bytes(settings, solution, engine),
        state_bytes=max(one.state_bytes for one in devices),
        free_bytes=settings.device.total_bytes - items["context"] - items["neighbours"],
        spare_bytes=sum(items[name] for name in _NOT_FOR_ENGINE),
        weights_bytes=max(one.costs.weights.rank_bytes + one.costs.adapter_bytes for one in devices),
        graphs=solution.graphs,
        draft=replace(draft, weights_bytes=draft_weights.rank_bytes) if draft and draft_weights else None,
        images_per_prompt=solution.images_per_prompt,
        image_pixels=pixels,
        image_tokens=None if pixels is None else _image_tokens(settings, pixels),
    )


def _with_own_rules(sizes: Sizes, settings: PlanSettings, solution: Solution, engine: EngineRules) -> Sizes:
    """What the plan counts on where the engine's own code was priced."""
    if not engine.own_rules or settings.device.is_cpu:
        return sizes
    from brim.planning.vllm.held import segments_grow  # other plans do without
    from brim.planning.vllm.worst import limits_chunks, scored_chunk

    run = settings.vllm_run(batch_tokens=solution.batch_tokens, max_seqs=solution.max_seqs, max_len=solution.max_len)
    chunk = scored_chunk(settings.spec, run) if limits_chunks(settings.spec, run) else None
    return replace(sizes, prompt_chunk=chunk, growing_segments=segments_grow(settings.device, run))


def _kv_bytes(settings: PlanSettings, solution: Solution, engine: EngineRules) -> int:
    """All that is left for KV; where its tokens were asked for, what they take in whole blocks.

    Of several devices, each takes what the tokens of the one with the least room take on it: the most of these.
    """
    if solution.filled.others:
        return max(
            kv_bytes(one, solution.kv_tokens, solution.max_len) + one.null_bytes for one in solution.filled.devices
        )
    if settings.kv_tokens is None:
        return solution.kv_bytes + solution.null_bytes
    whole, rest = divmod(solution.kv_tokens, solution.max_len)
    block, spare = engine.block_tokens, engine.null_blocks * engine.block_tokens
    needed = sum(
        whole * one.kv_bytes(round_up(solution.max_len, block)) + one.kv_bytes(round_up(rest, block) + spare)
        for one in (solution.costs.footprint, solution.costs.draft_footprint)
        if one
    )
    return min(solution.kv_bytes + solution.null_bytes, needed)


def _asked_weights(settings: PlanSettings) -> str | None:
    if settings.weights_dtype is not None:
        return str(settings.weights_dtype)
    return format_key(settings.stored) if settings.stored else None


def _draft(settings: PlanSettings) -> PlannedDraft | None:
    if settings.draft is None:
        return None
    return PlannedDraft(
        model=settings.draft.source or settings.draft.name,
        algorithm=draft_algorithm(settings.draft),
        tokens=settings.draft_tokens,
        weights_bytes=0,
    )


def _pixel_limit(settings: PlanSettings, solution: Solution) -> int | None:
    """The most pixels of an image; None where the processor's own limit, which the plan counts, is not above that."""
    asked = solution.image_pixels
    return asked if asked is not None and asked < largest_image(settings) else None


def _image_tokens(settings: PlanSettings, pixels: int) -> int | None:
    """What an image of so many pixels becomes in the prompt."""
    towers = [tower for tower in settings.spec.towers if tower.media is MediaType.IMAGE]
    return max((ceil_div(pixels, one.pixels_per_patch * one.merge) for one in towers), default=None)
