"""Runs planned steps on the device, and never waits for it.

`launch` puts a step in the device's queue and returns at once with a `Launched`; reading its tokens waits. What was
drawn stays on the device (`last_tokens`, a row per slot), so that the next step can be launched before this one has
been read; a step finds there what the last accepted one drew. Everything that holds memory for serving is made by
`build` and gone after `teardown`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from brim.engine.attention.latent import KeptLatents
from brim.engine.attention.paged import CurrentStep, PagedLayer, attach, detach
from brim.engine.attention.protocol import AttentionBackend
from brim.engine.device.layout import PackedLayout, StepLayout
from brim.engine.device.staging import Staging
from brim.engine.kv.geometry import KvShape, LayerGeometry, LayerGroup
from brim.engine.kv.ledger import KvLedger
from brim.engine.kv.tensors import KvTensors
from brim.engine.media.features import FeatureSource, KeptFeatures, place_media, rope_positions
from brim.engine.ranks.collectives import Collective
from brim.engine.recurrent.mixers import PackedCache, PackedMixers
from brim.engine.recurrent.states import RecurrentStates, StateShape
from brim.engine.requests.sequence import Sequence
from brim.engine.run.graphs import DecodeGraphs
from brim.engine.run.host_memory import HostMemory
from brim.engine.run.launched import Drawn, Launched
from brim.engine.run.packing import drawing_rows, pack, sample_rows
from brim.engine.run.rows import as_chunks, decode_rows, drawing_slots, last_drawn, snapshots, tokens_ahead
from brim.engine.run.running import RunningStep
from brim.engine.run.sampling.history import TokenHistory
from brim.engine.run.sampling.sampler import Sampled, SampleRow, sample
from brim.engine.run.sampling.top_logits import with_top_logits
from brim.engine.run.scoring.prompts import PromptScorer
from brim.engine.run.scoring.scores import PromptLogprobs
from brim.engine.schedule.plan import StepPlan
from brim.engine.weights.discover import AttentionLayers
from brim.engine.weights.rotary import SettledRotary
from brim.engine.weights.text_model import TextModel
from brim.errors import first_line
from brim.records.progress import Told, silent
from brim.units import round_up

ALLOCATION_ROUNDING = 512  # of torch's CUDA allocator, and of `CpuProbe`


@dataclass(frozen=True, slots=True)
class RunnerShape:
    """Sizes that the buffers of a runner follow from."""

    max_batch: int
    max_batch_tokens: int
    max_length: int
    kv_dtype: torch.dtype
    device: torch.device
    graphs: bool
    max_drafted: int = 0  # most requests of a step with drafts
    draft_tokens: int = 0  # of each of them, at most

    @property
    def most_decode_rows(self) -> int:
        """Rows of decodes in a step: one for each request, and in small batches one for each drafted token."""
        return max(self.max_batch, min(self.max_drafted * (1 + self.draft_tokens), self.max_batch_tokens))


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
        text_model: TextModel,
        layers: AttentionLayers,
        states: tuple[StateShape, ...],
        shape: RunnerShape,
        make_backend: Callable[[], AttentionBackend],
        scorer: PromptScorer,
        *,
        mrope: bool = False,
        ahead_in_windows_only: bool = False,
        check_plan: Callable[[StepPlan], None] = lambda plan: None,
        same_tokens: Callable[[torch.Tensor], torch.Tensor] = lambda tokens: tokens,
        ends_alike: Callable[[RunningStep], AbstractContextManager[None]] = lambda running: nullcontext(),
        features: FeatureSource | None = None,
    ) -> None:
        self.text_model = text_model
        self.scorer = scorer
        self.shape = shape
        self.mrope = mrope
        self._check_plan = check_plan  # these three keep the ranks of a split model in step
        self._same_tokens = same_tokens
        self._ends_alike = ends_alike
        self._alone = False
        self._layers = layers
        self._state_shapes = states
        self._make_backend = make_backend
        self._ahead_in_windows_only = ahead_in_windows_only
        self._features: FeatureSource = KeptFeatures(text_model.model) if features is None else features
        self._step = CurrentStep()
        self._attention_only = PackedCache()
        self.warnings: tuple[str, ...] = ()
        self.host_memory: HostMemory | None = None  # of preempted requests; stays when the pool is rebuilt
        self._staging = Staging(shape.device)
        self._backend: AttentionBackend | None = None
        self._kv: KvTensors | None = None
        self.kv_shape: KvShape | None = None  # of the pool, while there is one
        self._states: RecurrentStates | None = None
        self._mixers: PackedMixers | None = None
        self._latents: KeptLatents | None = None
        self._rotary: SettledRotary | None = None
        self._graphs: DecodeGraphs | None = None
        self.graphs_failed = False  # a replay raised: what they hold is not known
        self.graphs_dropped = False  # for that reason
        self._last_tokens: torch.Tensor | None = None
        self._accepted: Drawn | None = None  # by the last step that counts
        self._corrections: dict[int, int] = {}  # by slot: the last token, where a step with drafts was the last
        self._history: TokenHistory | None = None
        self._rope_shift: torch.Tensor | None = None

    @property
    def scratch_slot(self) -> int:
        """The row that padding uses."""
        return self.shape.max_batch

    @property
    def geometry(self) -> tuple[LayerGeometry, ...]:
        """What each attention layer stores for a token."""
        return self._layers.geometry

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The bytes of each recurrent state of a slot."""
        return tuple(state.slot_bytes for state in self._state_shapes)

    @property
    def has_states(self) -> bool:
        """Recurrent layers keep a state for each request."""
        return bool(self._state_shapes)

    @property
    def rows(self) -> int:
        """Rows of every buffer that has one for each request: all slots, and the one for padding."""
        return self.shape.max_batch + 1

    # -- memory --------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def build(self, groups: tuple[LayerGroup, ...], kv_shape: KvShape, told: Told = silent) -> None:
        """Make everything that serving holds."""
        shape = self.shape
        rows = self.rows
        self.kv_shape = kv_shape
        self._kv = KvTensors(
            self._layers.geometry,
            groups,
            kv_shape,
            rows=rows,
            max_length=shape.max_length,
            dtype=shape.kv_dtype,
            device=shape.device,
        )
        if self._state_shapes:
            self._states = RecurrentStates(
                self._state_shapes, shape.max_batch, shape.device, snapshots=shape.max_drafted
            )
            self._mixers = PackedMixers(self.text_model.backbone, self._states)
        self._latents = KeptLatents(self.text_model.backbone)
        self._rotary = SettledRotary(self.text_model.backbone, shape.max_length)
        backend = self._backend = self._make_backend()
        self._last_tokens = torch.zeros(rows, dtype=torch.int64, device=shape.device)
        self._history = TokenHistory(shape.max_batch, shape.max_length, shape.device, self._staging)
        self._rope_shift = torch.zeros(rows, dtype=torch.int64, device=shape.device)
        for number, module in enumerate(self._layers.modules):
            group = self._kv.group_of[number]
            layer = PagedLayer(
                self._kv.layers[number],
                self._kv.tables[group],
                group,
                kv_shape.block_size,
                self._layers.geometry[number].window,
                self._layers.geometry[number].lender is not None,
                self._step,
                backend,
                looks_ahead=self._layers.geometry[number].window is not None or not self._ahead_in_windows_only,
            )
            attach(module, layer)
        if shape.graphs and shape.device.type == "cuda":
            self._capture(told)

    def _capture(self, told: Told) -> None:
        """Capture steps, where the model's own code can be: some of it asks the host (experts in fp32, for one)."""
        self.warnings = ()
        rows = self.shape.max_batch if self._state_shapes else self.shape.most_decode_rows  # as `_graphs_for` decides
        graphs = DecodeGraphs(self._decode_logits, rows, self.scratch_slot, self.shape.device)
        try:
            graphs.capture(told)
            self._graphs = graphs
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            torch.cuda.synchronize()
            self.warnings = (f"steps are not captured in CUDA graphs: {first_line(error)}",)

    def teardown(self) -> None:
        """Give everything that `build` made back to the device."""
        self._graphs = None
        self.graphs_failed = self.graphs_dropped = False
        for module in self._layers.modules:
            detach(module)
        if self._mixers is not None:
            self._mixers.undo()
        if self._latents is not None:
            self._latents.undo()
        if self._rotary is not None:
            self._rotary.undo()
        self.kv_shape = None
        self._kv = self._states = self._mixers = self._latents = self._rotary = self._backend = None
        self._last_tokens = self._history = self._rope_shift = self._accepted = None
        self._corrections.clear()
        self._step.layout = None
        self._features.clear()
        gc.collect()
        if self.shape.device.type == "cuda":
            torch.cuda.synchronize(self.shape.device)
            torch.cuda.empty_cache()

    # -- steps ---------------------------------------------------------------------------------------------------

    @contextmanager
    def alone(self) -> Iterator[None]:
        """What runs in here meets no other rank. It takes what it would take with them; its tokens mean nothing."""
        from brim.engine.ranks.local_collectives import collectives_stood_in

        self._alone = True
        try:
            with collectives_stood_in():
                yield
        finally:
            self._alone = False

    @torch.inference_mode()
    def launch(self, plan: StepPlan, ledger: KvLedger) -> Launched:
        """Queue a step. If it raises, it may be launched again: nothing that it has done by then is counted on.

        With several ranks it raises on all of them or on none.
        """
        if self._alone:  # without graphs: they replay collectives too
            return self._launch(plan, ledger, RunningStep(plan, None, self.scorer.head_rows))
        self._check_plan(plan)
        running = RunningStep(plan, self._graphs_for(plan), self.scorer.head_rows)
        with self._ends_alike(running):
            return self._launch(plan, ledger, running)

    def _launch(self, plan: StepPlan, ledger: KvLedger, running: RunningStep) -> Launched:
        self._take_over_tokens()
        self._follow(ledger)
        self._features.forget_ended()
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
            self._same_tokens(rows)
        return noted

    def _graphs_for(self, plan: StepPlan) -> DecodeGraphs | None:
        """The graphs, if one holds this step: decodes alone, and drafted tokens are chunks to recurrent layers."""
        return None if plan.chunks or (plan.drafts and self.has_states) else self._graphs

    def _replay(self, plan: StepPlan, running: RunningStep) -> torch.Tensor:
        assert running.graphs is not None
        try:
            logits = running.graphs.replay(decode_rows(plan), self._staging)
        except RuntimeError:  # all of torch's own, out-of-memory too
            self.graphs_failed = True
            raise
        running.replayed = True
        return logits

    def drop_graphs(self) -> None:
        """Free graphs, after a replay has failed: later steps run without any, until they are captured again."""
        if self.shape.device.type == "cuda":
            torch.cuda.synchronize(self.shape.device)
        self._graphs, self.graphs_failed, self.graphs_dropped = None, False, True

    @torch.inference_mode()
    def capture_again(self) -> None:
        """Graphs, where failed ones were dropped. Nothing may be in the device's queue."""
        if self.graphs_dropped:
            self._capture(silent)
            self.graphs_dropped = False

    @property
    def kept_tensors(self) -> list[torch.Tensor]:
        """What is held between steps beside what `build` made: features of images, and what was drawn last."""
        return [*self._features.tensors, *(self._accepted.tensors if self._accepted is not None else ())]

    @property
    def kept_bytes(self) -> int:
        """What they take."""
        tensors = self.kept_tensors
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
        return sum(round_up(size, ALLOCATION_ROUNDING) for size in storages.values())

    def host_problems(self, running: Collection[Sequence]) -> list[str]:
        """What steps have left behind of requests that do not run. Nothing is in flight."""
        self._features.forget_ended()
        strangers = self._features.without(running)
        return [f"features are kept for {strangers} requests that do not run"] if strangers else []

    def accept(self, launched: Launched) -> None:
        """This step counts: the next one goes on from what it drew."""
        if launched.plan.drafts:
            self._accepted = None  # the accepted tokens are known when it has been read
        elif launched.drawn is not None:
            self._accepted = launched.drawn

    def accept_all(self, launched: Launched) -> None:
        """This step counts, and so do all of its drafts: the next one goes on from what the last rows drew."""
        plan = launched.plan
        if not plan.drafts or launched.drawn is None:
            self.accept(launched)
            return
        drawing = [*plan.slots, *(chunk.slot for chunk in plan.chunks if chunk.draws)]
        rows, slots = self._staging.send([np.array(numbers, dtype=np.int64) for numbers in (plan.last_rows, drawing)])
        self._accepted = Drawn(Sampled(launched.drawn.sampled.tokens[rows]), slots)

    def forget_drawn(self) -> None:
        """No step goes on from what was drawn."""
        self._accepted = None

    def go_on_from(self, tokens: Mapping[int, int]) -> None:
        """By slot, the last token of requests of a step with drafts, which has been read."""
        self._corrections.update(tokens)

    def forget_history(self) -> None:
        """What penalties look at is sent to the device again, as for requests that have just come."""
        assert self._history is not None
        self._history.clear()

    def _take_over_tokens(self) -> None:
        """Put what the last step drew where this one finds it. Not before: that step might have failed."""
        assert self._last_tokens is not None
        if self._accepted is not None:
            self._last_tokens[self._accepted.slots] = self._accepted.sampled.tokens
        if self._corrections:
            known = [np.array([*part], dtype=np.int64) for part in (self._corrections, self._corrections.values())]
            slots, tokens = self._staging.send(known)
            self._last_tokens[slots] = tokens
            self._corrections.clear()

    def _follow(self, ledger: KvLedger) -> None:
        """Bring the device's block tables up to date, and keep or bring back what was noted of preempted requests."""
        assert self._kv is not None
        if self.host_memory is not None:
            self.host_memory.follow(ledger, self._kv, self._states, self._staging)
        self._kv.copy_blocks(ledger.copies)
        for table, updates in zip(self._kv.tables, ledger.updates, strict=True):
            if updates.rows:
                entries = (updates.rows, updates.columns, updates.blocks)
                rows, columns, blocks = self._staging.send([np.array(entry, dtype=np.int64) for entry in entries])
                table[rows, columns] = blocks.int()

    def _forward(self, plan: StepPlan) -> tuple[torch.Tensor, list[int]]:
        """Hidden states of all tokens of a step, and the slots of those that draw."""
        assert self._kv is not None
        assert self._last_tokens is not None
        packed = pack(plan, self._kv, self._staging)
        layout, places = packed.layout, packed.positions
        self._start_fresh(plan)
        tokens = packed.tokens
        if layout.decodes:
            decodes = last_drawn(tokens[: layout.decodes], layout.decode_slots, self._last_tokens)
            tokens = torch.cat([decodes, tokens[layout.decodes :]])
        embeddings, extra = place_media(self.text_model, tokens, plan, self._features, self._staging)
        if self.mrope:
            assert self._rope_shift is not None
            places = rope_positions(plan, places, self._rope_shift, layout.decode_slots, self._staging)
        recurrent = as_chunks(plan, layout) if plan.drafts and self._mixers is not None else layout
        given = None if embeddings is not None else tokens
        hidden = self._run(layout, given, places, embeddings, extra, recurrent)
        return hidden, [slot for _, slot in drawing_slots(plan)]

    def _start_fresh(self, plan: StepPlan) -> None:
        """Slots whose request begins with this step get their first state; chunks bring their shift of positions."""
        if self._states is not None:
            for chunk in plan.chunks:  # before anything of this step moves a state on
                if chunk.state_from is not None:
                    self._states.copy(chunk.state_from, chunk.slot)
            for slot, row in snapshots(plan):
                self._states.copy(slot, row)
            self._states.clear([chunk.slot for chunk in plan.chunks if chunk.start == 0 and chunk.state_from is None])
        if self.mrope and plan.chunks:
            assert self._rope_shift is not None
            shifts = [getattr(chunk.sequence.request.media, "rope_shift", 0) for chunk in plan.chunks]
            slots, values = self._staging.send(
                [np.array([chunk.slot for chunk in plan.chunks], dtype=np.int64), np.array(shifts, dtype=np.int64)]
            )
            self._rope_shift[slots] = values

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
        assert self._backend is not None
        self._step.layout = layout
        if self._mixers is not None:
            self._mixers.layout = recurrent or layout
        cache = None if self._mixers is None else self._attention_only
        try:
            self._backend.prepare(layout)
            return self.text_model.hidden(tokens, positions, embeddings=embeddings, cache=cache, extra=extra)
        finally:
            self._step.layout = None
            if self._mixers is not None:
                self._mixers.layout = None

    def _decode_logits(self, slots: torch.Tensor, lengths: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """A step in which every request generates, from tensors alone: what CUDA graphs capture."""
        assert self._kv is not None
        assert self._last_tokens is not None
        assert self._rope_shift is not None
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
            write_slots=tuple(self._kv.write_slots(group, slots, positions) for group in range(len(self._kv.tables))),
            longest_chunk=0,
            visible_until=None,
        )
        places = positions
        if self.mrope:
            places = (positions + self._rope_shift[slots]).expand(3, -1)
        hidden = self._run(layout, last_drawn(tokens, slots, self._last_tokens), places)
        return self.text_model.logits(hidden, torch.arange(slots.shape[0], device=slots.device))

    # -- tokens --------------------------------------------------------------------------------------------------

    def _draw(
        self, plan: StepPlan, logits: torch.Tensor, slots: torch.Tensor | None, scores: dict[int, PromptLogprobs]
    ) -> Launched:
        """Draw a token for each row."""
        assert self._last_tokens is not None
        assert self._history is not None
        if slots is None:
            slots = self._staging.send([np.array(plan.slots, dtype=np.int64)])[0]
        if all(sequence.request.params.plain_greedy for sequence in plan.drawing):
            sampled, looked_up = Sampled(logits.argmax(-1)), None
        else:
            looked_up = self._history.look_up(plan, _sample_rows(plan), logits.shape[1], self._last_tokens)
            sampled = sample(logits, looked_up.rows)
        sampled = replace(sampled, tokens=self._same_tokens(sampled.tokens))
        if any(sequence.request.params.top_k_logits for sequence in plan.drawing):
            kept = [sequence.request.params.top_k_logits for sequence in plan.row_sequences]
            sampled = with_top_logits(sampled, logits, kept)
        if looked_up is not None:
            self._history.append(looked_up, sampled.tokens)
        read_first = bool(plan.drafts) or (looked_up is not None and looked_up.read_first)
        return Launched(plan, Drawn(sampled, slots), scores, self.shape.device, read_first)


def _sample_rows(plan: StepPlan) -> list[SampleRow]:
    if not plan.drafts:
        return sample_rows(plan.drawing)
    return sample_rows((sequence for sequence, _ in drawing_slots(plan)), tokens_ahead(plan))
