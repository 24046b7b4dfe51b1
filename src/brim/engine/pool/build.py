"""Builds a pool: everything that holds KV, and the loop that serves with it.

In: a model without a pool, and KV tokens. Out: a `ServingLoop`, or nothing that stays: `free` gives back what was made,
also halfway. The order of the allocations is part of the contract (`brim.engine.run.pool_memory`).
"""

from __future__ import annotations

from functools import partial

from brim.engine.drafts.draft_model import DraftModel
from brim.engine.drafts.prompt_lookup import PromptLookup
from brim.engine.drafts.speculator import Speculator
from brim.engine.kv.ledger import KvLedger
from brim.engine.loop import ServingLoop
from brim.engine.model import ServingModel
from brim.engine.rescue import Rescue
from brim.engine.schedule.plan import StepLimits
from brim.engine.schedule.scheduler import Scheduler
from brim.guard.rescue import RescuePolicy
from brim.probes.translate import translated
from brim.records.progress import Stage, Told, silent


def build_loop(model: ServingModel, kv_tokens: int, told: Told = silent) -> ServingLoop:
    """Make the pool, and what plans and runs steps in it."""
    told(Stage("build", f"KV cache of {kv_tokens:,} tokens"))
    settings, sizes = model.settings, model.sizes
    shape = sizes.shape(kv_tokens)
    ledger = KvLedger(sizes.groups, shape)
    limits = StepLimits(
        settings.max_batch,
        settings.max_batch_tokens,
        reuse_prefixes=sizes.reuses_prefixes,
        has_states=bool(sizes.state_bytes),
        max_drafted=settings.max_drafted,
    )
    model.runner.build(sizes.groups, shape, told)
    if model.features is not None:
        model.features.build()
    scheduler = Scheduler(ledger, limits, settings.admission_settings, media=model.features)
    speculator = _speculator(model, kv_tokens, told)
    return ServingLoop(scheduler, model.runner, settings.overlap, model.clock, speculator=speculator)


def _speculator(model: ServingModel, kv_tokens: int, told: Told) -> Speculator | None:
    if model.settings.speculate is None:
        return None
    proposer = PromptLookup() if model.draft is None else _draft_model(model, model.draft, kv_tokens, told)
    return Speculator(proposer, model.settings.speculation_settings, model.vocab)


def _draft_model(model: ServingModel, draft: ServingModel, kv_tokens: int, told: Told) -> DraftModel:
    told(Stage("build", "draft model"))
    groups, shape = draft.sizes.groups, draft.sizes.shape(model.sizes.draft_tokens(kv_tokens))
    draft.runner.build(groups, shape, told)
    return DraftModel(draft.runner, KvLedger(groups, shape), draft.vocab)


def rescue_for(model: ServingModel, loop: ServingLoop, kv_tokens: int) -> Rescue:
    """What keeps a loop serving after an out-of-memory, with a pool of this size."""
    settings = model.settings
    policy = RescuePolicy(settings.max_batch_tokens, least_tokens=settings.max_batch)
    return Rescue(loop, model.runner, partial(_rebuild, model, kv_tokens), policy, model.ranks)


def _rebuild(model: ServingModel, kv_tokens: int) -> KvLedger:
    """Free everything that holds KV, and make it again."""
    runner, sizes = model.runner, model.sizes
    shape = sizes.shape(kv_tokens)
    runner.teardown()
    try:
        with model.each_rank_by_itself("the pool rebuilt"), translated():
            runner.build(sizes.groups, shape)
    except BaseException:
        runner.teardown()  # a pool that was half made must not stay
        raise
    return KvLedger(sizes.groups, shape)


def free(model: ServingModel) -> None:
    """Free what `build_loop` made, and what ranks hold for a step that fails."""
    if model.failed_rank is not None:
        model.failed_rank.release()
    if model.features is not None:
        model.features.teardown()
    model.runner.teardown()
    if model.draft is not None:
        model.draft.runner.teardown()
