"""Runs planned steps on the device, and never waits for it.

`launch` puts a step in the device's queue and returns at once with a `Launched`; reading its tokens waits. What was
drawn stays on the device (`last_tokens`), so that the next step can be launched before this one has been read.
Everything that holds memory for serving (`pool_memory`) is made by `build` and gone after `teardown`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from brim.engine.attention.paged import CurrentStep
from brim.engine.device.layout import PackedLayout, StepLayout
from brim.engine.device.staging import Staging
from brim.engine.kv.geometry import KvShape, LayerGeometry, LayerGroup
from brim.engine.kv.ledger import KvLedger
from brim.engine.media.features import FeatureSource, KeptFeatures, place_media, rope_positions
from brim.engine.ranks.collectives import Collective
from brim.engine.recurrent.mixers import PackedCache
from brim.engine.requests.sequence import Sequence
from brim.engine.run.graphs import DecodeGraphs
from brim.engine.run.host_memory import HostMemory
from brim.engine.run.launched import Drawn, Launched
from brim.engine.run.packing import drawing_rows, pack, sample_rows
from brim.engine.run.pool_memory import PoolMemory
from brim.engine.run.rows import as_chunks, decode_rows, drawing_slots, last_drawn, snapshots, tokens_ahead
from brim.engine.run.running import RankHooks, RunningStep
from brim.engine.run.sampling.sampler import Sampled, SampleRow, sample
from brim.engine.run.sampling.top_logits import with_top_logits
from brim.engine.run.scoring.prompts import PromptScorer
from brim.engine.run.scoring.scores import PromptLogprobs
from brim.engine.run.shape import RunnerModel
from brim.engine.schedule.plan import StepPlan
from brim.errors import first_line
from brim.records.progress import Told, silent
from brim.units import round_up

Fault = Callable[[StepPlan], None]  # raises, or lets a step be launched
ALLOCATION_ROUNDING = 512  # of torch's CUDA allocator, and of `CpuProbe`


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """Collectives of the parts of a step."""

    forward: list[Collective]
    head: list[Collective]
    tokens: list[Collective]


class Runner:
    """A model with a KV pool: steps in, tokens out."""

    def __init__(
        self,
        model: RunnerModel,
        scorer: PromptScorer,
        *,
        hooks: RankHooks | None = None,
        features: FeatureSource | None = None,
    ) -> None:
        self.model = model
        self.text_model = model.text_model
        self.shape = model.shape
        self.scorer = scorer
        self.hooks = hooks or RankHooks()
        self.features: FeatureSource = KeptFeatures(model.text_model.model) if features is None else features
        self.warnings: tuple[str, ...] = ()
        self.host_memory: HostMemory | None = None  # of preempted requests; stays when the pool is rebuilt
        self._memory: PoolMemory | None = None  # None: not built
        self._staging = Staging(model.shape.device)
        self._step = CurrentStep()
        self._attention_only = PackedCache()
        self.is_alone = False  # what runs now meets no other rank
        self.fault: Fault | None = None  # asked before each launch (`brim.engine.injection`)

    @property
    def scratch_slot(self) -> int:
        """The row that padding uses."""
        return self.shape.max_batch

    @property
    def geometry(self) -> tuple[LayerGeometry, ...]:
        """What each attention layer stores for a token."""
        return self.model.layers.geometry

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The bytes of each recurrent state of a slot."""
        return tuple(state.slot_bytes for state in self.model.states)

    @property
    def has_states(self) -> bool:
        """Recurrent layers keep a state for each request."""
        return bool(self.model.states)

    @property
    def memory(self) -> PoolMemory:
        """What it holds while it is built."""
        assert self._memory is not None, "the runner has no pool: build it first"
        return self._memory

    @property
    def kv_shape(self) -> KvShape | None:
        """Of the pool, while there is one."""
        return None if self._memory is None else self._memory.kv_shape

    # -- memory --------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def build(self, groups: tuple[LayerGroup, ...], kv_shape: KvShape, told: Told = silent) -> None:
        """Make everything that serving holds."""
        self._memory = PoolMemory(self.model, groups, kv_shape, self._step, self._staging)
        if self.shape.graphs and self.shape.device.type == "cuda":
            self._capture(told)

    def _capture(self, told: Told) -> None:
        """Capture steps, where the model's own code can be: some of it asks the host (experts in fp32, for one)."""
        self.warnings = ()
        rows = self.shape.max_batch if self.has_states else self.shape.most_decode_rows  # as `_graphs_for` decides
        graphs = DecodeGraphs(self.decode_logits, rows, self.scratch_slot, self.shape.device)
        try:
            graphs.capture(told)
            self.memory.graphs = graphs
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            torch.cuda.synchronize()
            self.warnings = (f"steps are not captured in CUDA graphs: {first_line(error)}",)

    def teardown(self) -> None:
        """Give everything that `build` made back to the device."""
        if self._memory is not None:
            self._memory.free()
            self._memory = None
        self._step.layout = None
        self.features.clear()
        gc.collect()
        if self.shape.device.type == "cuda":
            torch.cuda.synchronize(self.shape.device)
            torch.cuda.empty_cache()

    # -- steps ---------------------------------------------------------------------------------------------------

    @contextmanager
    def alone(self) -> Iterator[None]:
        """What runs in here meets no other rank. It takes what it would take with them; its tokens mean nothing."""
        from brim.engine.ranks.local_collectives import collectives_stood_in

        self.is_alone = True
        try:
            with collectives_stood_in():
                yield
        finally:
            self.is_alone = False

    @torch.inference_mode()
    def launch(self, plan: StepPlan, ledger: KvLedger) -> Launched:
        """Queue a step. If it raises, it may be launched again: nothing that it has done by then is counted on.

        With several ranks it raises on all of them or on none.
        """
        if self.fault is not None:
            self.fault(plan)
        if self.is_alone:  # without graphs: they replay collectives too
            return self._launch(plan, ledger, RunningStep(plan, None, self.scorer.head_rows))
        self.hooks.check_plan(plan)
        running = RunningStep(plan, self._graphs_for(plan), self.scorer.head_rows)
        with self.hooks.ends_alike(running):
            return self._launch(plan, ledger, running)

    def _launch(self, plan: StepPlan, ledger: KvLedger, running: RunningStep) -> Launched:
        self.memory.last_tokens.take_over(self._staging)
        self._follow(ledger)
        self.features.forget_ended()
        if running.graphs is not None:
            return self._draw(plan, self._replay(plan, running), None, {})
        hidden, slots = self._forward(plan)
        rows = drawing_rows(plan)
        scores = self.scorer.score(plan, hidden, self._staging)
        if not rows:
            return Launched(plan, None, scores, self.shape.device)
        sent = self._staging.send([np.array(rows, dtype=np.int64), np.array(slots, dtype=np.int64)])
        return self._draw(plan, self.text_model.logits(hidden, sent[0]), sent[1], scores)

    @torch.inference_mode()
    def rehearse(self, plan: StepPlan, ledger: KvLedger) -> Rehearsed:
        """Run the passes of a step without other ranks, and note what each would have asked of them."""
        from brim.engine.ranks.local_collectives import collectives_stood_in

        noted = Rehearsed([], [], [])
        self._follow(ledger)
        with collectives_stood_in(noted.forward):
            hidden, _ = self._forward(plan)
        rows = torch.arange(plan.tokens, device=hidden.device)
        with collectives_stood_in(noted.head):
            self.text_model.logits(hidden, rows)
        with collectives_stood_in(noted.tokens):
            self.hooks.same_tokens(rows)
        return noted

    def _graphs_for(self, plan: StepPlan) -> DecodeGraphs | None:
        """The graphs, if one holds this step: decodes alone, and drafted tokens are chunks to recurrent layers."""
        return None if plan.chunks or (plan.drafts and self.has_states) else self.memory.graphs

    def _replay(self, plan: StepPlan, running: RunningStep) -> torch.Tensor:
        assert running.graphs is not None
        try:
            logits = running.graphs.replay(decode_rows(plan), self._staging)
        except RuntimeError:  # all of torch's own, out-of-memory too
            self.memory.graphs_failed = True
            raise
        running.replayed = True
        return logits

    @property
    def graphs_failed(self) -> bool:
        """A replay raised: what graphs hold is not known."""
        return self._memory is not None and self._memory.graphs_failed

    @property
    def graphs_dropped(self) -> bool:
        """For that reason."""
        return self._memory is not None and self._memory.graphs_dropped

    def drop_graphs(self) -> None:
        """Free graphs, after a replay has failed: later steps run without any, until they are captured again."""
        if self.shape.device.type == "cuda":
            torch.cuda.synchronize(self.shape.device)
        memory = self.memory
        memory.graphs, memory.graphs_failed, memory.graphs_dropped = None, False, True

    @torch.inference_mode()
    def capture_again(self) -> None:
        """Graphs, where failed ones were dropped. Nothing may be in the device's queue."""
        if self.graphs_dropped:
            self._capture(silent)
            self.memory.graphs_dropped = False

    @property
    def kept_tensors(self) -> list[torch.Tensor]:
        """What is held between steps beside what `build` made: features of images, and what was drawn last."""
        return [*self.features.tensors, *([] if self._memory is None else self._memory.last_tokens.tensors)]

    @property
    def kept_bytes(self) -> int:
        """What they take."""
        tensors = self.kept_tensors
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
        return sum(round_up(size, ALLOCATION_ROUNDING) for size in storages.values())

    def host_problems(self, running: Collection[Sequence]) -> list[str]:
        """What steps have left behind of requests that do not run. Nothing is in flight."""
        self.features.forget_ended()
        strangers = self.features.without(running)
        return [f"features are kept for {strangers} requests that do not run"] if strangers else []

    def accept(self, launched: Launched) -> None:
        """This step counts: the next one goes on from what it drew."""
        self.memory.last_tokens.accept(launched)

    def accept_all(self, launched: Launched) -> None:
        """This step counts, and so do all of its drafts."""
        self.memory.last_tokens.accept_all(launched, self._staging)

    def forget_drawn(self) -> None:
        """No step goes on from what was drawn."""
        if self._memory is not None:
            self._memory.last_tokens.forget_drawn()

    def go_on_from(self, tokens: Mapping[int, int]) -> None:
        """By slot, the last token of requests of a step with drafts, which has been read."""
        self.memory.last_tokens.correct(tokens)

    def forget_history(self) -> None:
        """What penalties look at is sent to the device again, as for requests that have just come."""
        self.memory.history.clear()

    def _follow(self, ledger: KvLedger) -> None:
        """Bring the device's block tables up to date, and keep or bring back what was noted of preempted requests."""
        kv = self.memory.kv
        if self.host_memory is not None:
            self.host_memory.follow(ledger, kv, self.memory.states, self._staging)
        kv.copy_blocks(ledger.copies)
        for table, updates in zip(kv.tables, ledger.updates, strict=True):
            if updates.rows:
                entries = (updates.rows, updates.columns, updates.blocks)
                rows, columns, blocks = self._staging.send([np.array(entry, dtype=np.int64) for entry in entries])
                table[rows, columns] = blocks.int()

    def _forward(self, plan: StepPlan) -> tuple[torch.Tensor, list[int]]:
        """Hidden states of all tokens of a step, and the slots of those that draw."""
        memory = self.memory
        packed = pack(plan, memory.kv, self._staging)
        layout, places = packed.layout, packed.positions
        self._start_fresh(plan)
        tokens = packed.tokens
        if layout.decodes:
            decodes = last_drawn(tokens[: layout.decodes], layout.decode_slots, memory.last_tokens.rows)
            tokens = torch.cat([decodes, tokens[layout.decodes :]])
        embeddings, extra = place_media(self.text_model, tokens, plan, self.features, self._staging)
        if self.model.mrope:
            places = rope_positions(plan, places, memory.rope_shift, layout.decode_slots, self._staging)
        recurrent = as_chunks(plan, layout) if plan.drafts and memory.mixers is not None else layout
        given = None if embeddings is not None else tokens
        hidden = self._run(layout, given, places, embeddings, extra, recurrent)
        return hidden, [slot for _, slot in drawing_slots(plan)]

    def _start_fresh(self, plan: StepPlan) -> None:
        """Slots whose request begins with this step get their first state; chunks bring their shift of positions."""
        states = self.memory.states
        if states is not None:
            for chunk in plan.chunks:  # before anything of this step moves a state on
                if chunk.state_from is not None:
                    states.copy(chunk.state_from, chunk.slot)
            for slot, row in snapshots(plan):
                states.copy(slot, row)
            states.clear([chunk.slot for chunk in plan.chunks if chunk.start == 0 and chunk.state_from is None])
        if self.model.mrope and plan.chunks:
            shifts = [getattr(chunk.sequence.request.media, "rope_shift", 0) for chunk in plan.chunks]
            slots, values = self._staging.send(
                [np.array([chunk.slot for chunk in plan.chunks], dtype=np.int64), np.array(shifts, dtype=np.int64)]
            )
            self.memory.rope_shift[slots] = values

    def _run(
        self,
        layout: StepLayout,
        tokens: torch.Tensor | None,
        positions: torch.Tensor,
        embeddings: torch.Tensor | None = None,
        extra: dict[str, Any] | None = None,
        recurrent: PackedLayout | None = None,
    ) -> torch.Tensor:
        """Hidden states; `recurrent` is the layout as recurrent layers see it, if that is another one."""
        mixers = self.memory.mixers
        self._step.layout = layout
        if mixers is not None:
            mixers.layout = recurrent or layout
        cache = None if mixers is None else self._attention_only
        try:
            self.memory.backend.prepare(layout)
            return self.text_model.hidden(tokens, positions, embeddings=embeddings, cache=cache, extra=extra)
        finally:
            self._step.layout = None
            if mixers is not None:
                mixers.layout = None

    def decode_logits(self, slots: torch.Tensor, lengths: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """A step in which every request generates, from tensors alone: what CUDA graphs capture."""
        memory = self.memory
        positions = lengths - 1
        nothing = slots[:0]
        layout = StepLayout(
            decodes=slots.shape[0],
            chunks=(),
            decode_slots=slots,
            decode_lengths=lengths.int(),
            chunk_slots=nothing,
            chunk_starts=nothing,
            chunk_lengths=nothing,
            write_slots=tuple(memory.kv.write_slots(group, slots, positions) for group in range(len(memory.kv.tables))),
            longest_chunk=0,
            visible_until=None,
        )
        places = positions
        if self.model.mrope:
            places = (positions + memory.rope_shift[slots]).expand(3, -1)
        hidden = self._run(layout, last_drawn(tokens, slots, memory.last_tokens.rows), places)
        return self.text_model.logits(hidden, torch.arange(slots.shape[0], device=slots.device))

    # -- tokens --------------------------------------------------------------------------------------------------

    def _draw(
        self, plan: StepPlan, logits: torch.Tensor, slots: torch.Tensor | None, scores: dict[int, PromptLogprobs]
    ) -> Launched:
        """Draw a token for each row."""
        memory = self.memory
        if slots is None:
            slots = self._staging.send([np.array(plan.slots, dtype=np.int64)])[0]
        if all(sequence.request.params.plain_greedy for sequence in plan.drawing):
            sampled, looked_up = Sampled(logits.argmax(-1)), None
        else:
            looked_up = memory.history.look_up(plan, _sample_rows(plan), logits.shape[1], memory.last_tokens.rows)
            sampled = sample(logits, looked_up.rows)
        sampled = replace(sampled, tokens=self.hooks.same_tokens(sampled.tokens))
        if any(sequence.request.params.top_k_logits for sequence in plan.drawing):
            kept = [sequence.request.params.top_k_logits for sequence in plan.row_sequences]
            sampled = with_top_logits(sampled, logits, kept)
        if looked_up is not None:
            memory.history.append(looked_up, sampled.tokens)
        read_first = bool(plan.drafts) or (looked_up is not None and looked_up.read_first)
        return Launched(plan, Drawn(sampled, slots), scores, self.shape.device, read_first)


def _sample_rows(plan: StepPlan) -> list[SampleRow]:
    if not plan.drafts:
        return sample_rows(plan.drawing)
    return sample_rows((sequence for sequence, _ in drawing_slots(plan)), tokens_ahead(plan))
