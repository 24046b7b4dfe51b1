"""The parts of an engine that do not depend on the size of its KV pool, and the size of a pool in bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from brim.engine.drafts.draft_model import DraftModel
from brim.engine.drafts.prompt_lookup import PromptLookup
from brim.engine.drafts.speculator import Speculator
from brim.engine.drafts.weighing import FittedLimit
from brim.engine.encoders.feature_store import FeatureStore
from brim.engine.kv.geometry import KvShape, LayerGroup, pool_shape
from brim.engine.kv.ledger import KvLedger
from brim.engine.loop import ServingLoop
from brim.engine.media.prepare import Preparer
from brim.engine.ranks.agreement import EngineAgreement, WholeEngine, each_rank_by_itself
from brim.engine.rescue import Rescue
from brim.engine.run.runner import Runner
from brim.engine.schedule.scheduler import Scheduler, StepLimits
from brim.engine.settings import EngineSettings
from brim.guard.rescue import RescuePolicy
from brim.probes.translate import translated
from brim.records.progress import Stage, Told, silent
from brim.records.scaling import ScalingReport
from brim.units import round_up

if TYPE_CHECKING:
    from brim.engine.ranks.failed_rank import FailedRankParticipation


@dataclass(frozen=True, slots=True)
class EngineParts:
    """A model ready to serve, and the shape of its pool at any size."""

    runner: Runner
    groups: tuple[LayerGroup, ...]
    settings: EngineSettings
    max_length: int
    element_bytes: int
    state_bytes: int  # recurrent states of all slots; 0: the model has none
    fullest_chunk: int | None  # chunk length at which recurrent layers need the most memory
    media: Preparer | None = None  # of a model that takes more than text
    vocab: int = 0  # token ids that texts consist of
    clock: Callable[[], float] = time.monotonic
    ranks: EngineAgreement = field(default_factory=WholeEngine)
    failed_rank: FailedRankParticipation | None = None  # with several ranks
    draft: EngineParts | None = None  # of a model that drafts for this one
    features: FeatureStore | None = None  # of images, where encoders run in processes of their own

    def each_rank_by_itself(self, what: str) -> AbstractContextManager[None]:
        """Each rank runs this without the others, and it ends alike on all of them."""
        return each_rank_by_itself(self.ranks, self.runner.alone, what)

    def teardown(self) -> None:
        """Free what `build` made, and what ranks hold for a step that fails."""
        if self.failed_rank is not None:
            self.failed_rank.release()
        if self.features is not None:
            self.features.teardown()
        self.runner.teardown()
        if self.draft is not None:
            self.draft.runner.teardown()

    @property
    def warnings(self) -> tuple[str, ...]:
        if self.rescues:
            return ()
        return (
            "a step that runs out of memory ends the engine: what this model's steps ask of the other ranks cannot be "
            "foretold, so a rank that fails would leave them waiting",
        )

    @property
    def rescues(self) -> bool:
        """Whether a step that fails on one rank can be run again: all must learn of it."""
        return self.ranks.size == 1 or (self.failed_rank is not None and self.failed_rank.known)

    def shape(self, kv_tokens: int) -> KvShape:
        settings = self.settings
        return pool_shape(
            self.groups,
            kv_tokens,
            settings.block_size,
            settings.max_batch,
            settings.max_batch_tokens,
            cached_from=self.running_tokens if self.reuses_prefixes else None,
        )

    @property
    def running_tokens(self) -> int:
        """KV tokens that running requests can hold at most: a full batch, each as long as a request may be."""
        return self.settings.max_batch * round_up(self.max_length, self.settings.block_size)

    @property
    def reuses_prefixes(self) -> bool:
        """Whether the pool is also a prefix cache. Recurrent states in the middle of a prompt are not stored."""
        return self.settings.reuse_prefixes and not self.state_bytes

    def kv_bytes(self, kv_tokens: int) -> int:
        draft_bytes = 0 if self.draft is None else self.draft.kv_bytes(self._draft_tokens(kv_tokens))
        return self.shape(kv_tokens).bytes(self.groups, self.element_bytes) + draft_bytes

    def _draft_tokens(self, kv_tokens: int) -> int:
        """KV tokens of the draft model: all that requests with drafts may hold."""
        assert self.draft is not None
        return min(kv_tokens, self.draft.running_tokens)

    def held_bytes(self, start: int, end: int, length: int) -> int:
        """What tokens [start, end) of a request of this length hold; of a window only those that it still sees."""
        tokens = 0
        for group in self.groups:
            first = 0 if group.window is None else max(0, length - group.window)
            tokens += max(0, end - max(start, first)) * group.elements_per_token
        return tokens * self.element_bytes

    def tokens_one_request_can_hold(self, kv_tokens: int) -> int:
        """The longest request that every pool can hold, in addition to the tokens of a step."""
        shape = self.shape(kv_tokens)
        lengths = []
        for group, blocks in zip(self.groups, shape.blocks, strict=True):
            tokens = blocks * shape.block_size
            if group.window is not None and tokens >= group.window + self.settings.max_batch_tokens + shape.block_size:
                continue  # a window holds a request of any length
            lengths.append(tokens)
        return min(lengths, default=self.max_length)

    def build(self, kv_tokens: int, told: Told = silent) -> ServingLoop:
        """Everything that holds KV, and the loop that serves with it."""
        told(Stage("build", f"KV cache of {kv_tokens:,} tokens"))
        shape = self.shape(kv_tokens)
        ledger = KvLedger(self.groups, shape)
        limits = StepLimits(
            self.settings.max_batch,
            self.settings.max_batch_tokens,
            reuse_prefixes=self.reuses_prefixes,
            has_states=bool(self.state_bytes),
            max_drafted=self.settings.max_drafted,
        )
        self.runner.build(self.groups, shape, told)
        scheduler = Scheduler(ledger, limits, self.settings.admission_settings)
        if self.features is not None:
            self.features.build()
            scheduler.media = self.features
        speculator = self._speculator(kv_tokens, told)
        return ServingLoop(scheduler, self.runner, self.settings.overlap, self.clock, speculator=speculator)

    def _speculator(self, kv_tokens: int, told: Told) -> Speculator | None:
        if self.settings.speculate is None:
            return None
        proposer = PromptLookup() if self.draft is None else self._draft_model(self.draft, kv_tokens, told)
        return Speculator(proposer, self.settings.speculation_settings, self.vocab)

    def _draft_model(self, draft: EngineParts, kv_tokens: int, told: Told) -> DraftModel:
        told(Stage("build", "draft model"))
        shape = draft.shape(self._draft_tokens(kv_tokens))
        draft.runner.build(draft.groups, shape, told)
        return DraftModel(draft.runner, KvLedger(draft.groups, shape), draft.vocab)

    def fitted_limit(self, report: ScalingReport) -> FittedLimit:
        """The limit of a batch that a fit has found."""
        return FittedLimit(report.scaling, report.limit_bytes, self.kv_bytes, self.settings.max_batch_tokens)

    def rescue(self, loop: ServingLoop, kv_tokens: int) -> Rescue:
        """What keeps a loop serving after an out-of-memory, with a pool of this size."""
        settings = self.settings
        policy = RescuePolicy(settings.max_batch_tokens, least_tokens=settings.max_batch)
        return Rescue(loop, self.runner, partial(self._rebuild, kv_tokens), policy, self.ranks)

    def _rebuild(self, kv_tokens: int) -> KvLedger:
        """Free everything that holds KV, and make it again."""
        shape = self.shape(kv_tokens)
        self.runner.teardown()
        try:
            with self.each_rank_by_itself("the pool rebuilt"), translated():
                self.runner.build(self.groups, shape)
        except BaseException:
            self.runner.teardown()  # a pool that was half made must not stay
            raise
        return KvLedger(self.groups, shape)
