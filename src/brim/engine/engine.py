"""The engine: a model, a KV pool, and requests going in and texts coming out.

    engine = Engine("path/to/model", kv_tokens=65536)
    for completion in engine.generate(["Once upon a time"], SamplingParams(max_tokens=64)):
        print(completion.text)

Single-threaded: its owner calls `submit`, `step` and `cancel`. `brim.engine.streaming` runs one in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from brim.engine.bounded import BoundedRunner
from brim.engine.device.interrupts import Interrupts
from brim.engine.figures import EngineFigures, RequestFigures, figures_of, requests_of
from brim.engine.front.answers import Answer, Completion, Update
from brim.engine.front.grammars import Grammars
from brim.engine.front.validation import RequestValidator
from brim.engine.loop import ServingLoop, StepObserver
from brim.engine.media.parts import MediaKind
from brim.engine.media.prepare import Given, GivenMedia, Prompt
from brim.engine.requests.params import SamplingParams
from brim.engine.requests.request import FinishReason
from brim.engine.requests.sequence import Sequence as RunningSequence
from brim.engine.schedule.events import SequenceEvent
from brim.engine.settings import EngineSettings
from brim.engine.stress.worst_steps import WorstSteps
from brim.engine.weights.load import LoadedModel
from brim.errors import InvalidRequest, MediaUnavailable
from brim.guard.shares import EVERYBODY, ClientShare
from brim.ports import CanaryProbe
from brim.probes.translate import translated
from brim.progress import showing
from brim.records.health import Health, Status
from brim.records.memory import StressShape
from brim.records.progress import Progress
from brim.records.scaling import ScalingReport, ScalingSteps

if TYPE_CHECKING:
    import torch

    from brim.engine.encoders.pool import Encoders
    from brim.engine.media.audio.limits import AudioLimits
    from brim.engine.media.limits import ImageLimits
    from brim.engine.media.parts import MediaPart
    from brim.engine.rescue import Rescue
    from brim.probes.proven import ProvenBound

DEFAULT_KV_TOKENS = 65_536
_MOST_TOKENS = 1 << 27  # the host keeps a few numbers for each block: 400 MiB of them at this size


class Engine:
    """A model being served by this process."""

    def __init__(
        self,
        model: str | Path | dict[str, Any] | LoadedModel,
        *,
        draft: str | Path | dict[str, Any] | LoadedModel | None = None,
        kv_tokens: int | None = None,
        settings: EngineSettings | None = None,
        load_format: str = "auto",
        dtype: str = "auto",
        device: str | None = None,
        probe: Any = None,
        progress: Progress = None,
        tokenizer: Any = None,
        seed: int = 0,
        tensor_parallel: bool = False,
        encoders: Encoders | None = None,
    ) -> None:
        """`encoders` were started for this model and these settings; None: as the settings say."""
        from brim.engine.preempted import PreemptedMemory
        from brim.engine.start import Sources, closed_on_errors, start

        self.settings = (settings or EngineSettings()).with_draft(draft is not None, tensor_parallel)
        self._probe = probe or nullcontext()
        started = start(
            Sources(model, draft, load_format, dtype, tokenizer, seed),
            self.settings,
            device=device,
            probe=self._probe,
            progress=progress,
            tensor_parallel=tensor_parallel,
            encoders=encoders,
        )
        self.progress = started.progress  # how building is shown (`brim.progress`)
        self.ranks = started.ranks
        self.loaded, self.draft = started.loaded, started.draft
        self.tokenizer = started.tokenizer
        self._encoders, self._features = started.encoders, started.features
        self._rank_errors = started.rank_errors
        self._parts = started.parts
        self._allowed = started.allowed
        self.max_length = self._parts.max_length
        self._preempted = PreemptedMemory(self._parts, self.ranks)
        self.grammars = Grammars(self.tokenizer, self.loaded.vocab, sorted(self.loaded.eos_ids))
        self._worst = WorstSteps(self.loaded, self._parts, self._allowed)
        self._validator = RequestValidator(
            loaded=self.loaded,
            tokenizer=self.tokenizer,
            max_length=self.max_length,
            max_batch_tokens=self.settings.max_batch_tokens,
            seeds=Random(started.seed),
            clock=self._parts.clock,
            media=self._parts.media,
            allowed=self._allowed,
        )
        self._answers: dict[str, Answer] = {}
        self._updates: list[Update] = []  # made, and not handed out yet
        self._interrupts = Interrupts()
        self._numbers = iter(range(1 << 62))
        self._loop: ServingLoop | None = None
        self._rescue: Rescue | None = None  # None: a failed step is not run again
        self._observer: StepObserver | None = None
        self._bound: ProvenBound | None = None  # None: a probe that counts does so in every step
        self.kv_tokens = 0
        if kv_tokens != 0:
            wanted = kv_tokens or min(DEFAULT_KV_TOKENS, self.settings.max_batch * self.max_length)
            with closed_on_errors(self._encoders):
                self.build(wanted)

    # -- memory --------------------------------------------------------------------------------------------------

    def build(self, kv_tokens: int) -> None:
        """Make the KV pool and everything else that serving holds, and run a step of every kind once."""
        if self._loop is not None:
            raise InvalidRequest("the engine is built already: tear it down before building it at another size")
        if not isinstance(kv_tokens, int) or kv_tokens < self.settings.block_size:
            raise InvalidRequest(f"kv_tokens {kv_tokens}: at least one block of {self.settings.block_size} is needed")
        if kv_tokens > self.most_tokens:
            raise InvalidRequest(
                f"kv_tokens {kv_tokens:,}: blocks are tracked for at most {self.most_tokens:,}; lower it"
            )
        try:
            kv_tokens = kv_tokens if self.ranks is None else self.ranks.least(kv_tokens)
            with self._parts.each_rank_by_itself("build"), self._on_device(), showing(self.progress) as told:
                loop = self._parts.build(kv_tokens, told)
                if self.device.type == "cuda":  # elsewhere nothing is compiled or loaded
                    self._worst.warm_up(loop.scheduler.ledger, told)
                self._worst.rehearse(loop.scheduler.ledger)
                self._preempted.open(loop, kv_tokens)
            self._preempted.connect(loop)
        except BaseException:
            self._free()  # what was half made must not stay
            raise
        loop.observer = self._observer
        self._loop, self.kv_tokens = loop, kv_tokens
        if self._parts.rescues:
            self._rescue = self._parts.rescue(loop, kv_tokens)
            if isinstance(self._probe, CanaryProbe):
                self.watch_memory(self._probe)

    def watch_memory(self, probe: CanaryProbe) -> None:
        """Let rescues spend this probe's canary and check memory with it. Nothing is in flight."""
        if self._rescue is not None:
            self._rescue.watch(probe)

    def observe(self, observer: StepObserver | None) -> None:
        """Let it see every step from now on, at whatever size the engine is built."""
        self._observer = observer
        if self._loop is not None:
            self._loop.observer = observer

    def serve_within(self, bound: ProvenBound) -> None:
        """Serve within what a fit has proven at this size: a probe counts the steps of rescues, and no others.

        Where several ranks share a model, every step is counted: what one of them alone refuses is not agreed on.
        """
        if self.ranks is None:
            self._bound = bound
            self.loop.runner = BoundedRunner(self.loop.runner, bound)

    def weigh_by(self, report: ScalingReport | None) -> None:
        """Let the gate of speculation weigh batches by the laws of a fit, as long as the engine stays at this size."""
        speculator = self.loop.speculator
        if speculator is not None:
            speculator.weigh_by(None if report is None else self._parts.fitted_limit(report))

    def teardown(self) -> None:
        """Give all of that back to the device. Requests in flight are cancelled."""
        for answer in list(self._answers.values()):
            self.cancel(answer.request_id)
        if self._loop is not None:
            self._loop = self._rescue = self._bound = None
            self._free()
        self._updates.clear()
        self.kv_tokens = 0

    def _free(self) -> None:
        self._preempted.close()
        self._parts.teardown()

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """Foreign errors of the device and of other ranks are translated here, and a probe counts."""
        with translated(), self._rank_errors(), self._probe:
            yield

    @contextmanager
    def _serving(self) -> Iterator[None]:
        """The same for a step of serving: counted where no fit has proven that it fits, and where one did not."""
        if self._bound is None or (self._rescue is not None and not self._rescue.calm):
            with self._on_device():
                if self._bound is not None:
                    self._bound.probe.note(self._parts.runner.kept_tensors)  # by steps that were not counted
                yield
        else:
            with translated(), self._rank_errors():
                yield

    @property
    def device(self) -> torch.device:
        return self._parts.runner.shape.device

    @property
    def dtype(self) -> str:
        """The type of the weights: bf16, fp16 or fp32."""
        kind = str(self._parts.runner.text_model.dtype).removeprefix("torch.")
        return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[kind]

    @property
    def least_tokens(self) -> int:
        """KV tokens without which no useful request runs: the longest request, or one full step where that is less."""
        return min(self.max_length, max(self.settings.max_batch_tokens, self.settings.block_size))

    @property
    def most_tokens(self) -> int:
        """The largest KV cache: all that running requests can hold, or what the host has memory to track."""
        return max(self.running_tokens, _MOST_TOKENS)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What this engine could not do as it was asked, and does otherwise."""
        drafting = () if self._parts.draft is None else self._parts.draft.runner.warnings
        return (
            *self._parts.runner.warnings,
            *self._parts.warnings,
            *self._preempted.warnings,
            *(() if self._encoders is None else self._encoders.facts.warnings),
            *(f"draft: {warning}" for warning in drafting),
        )

    def kv_bytes(self, kv_tokens: int) -> int:
        """What a KV pool of so many tokens takes."""
        return self._parts.kv_bytes(kv_tokens)

    def held_bytes(self, start: int, end: int, length: int) -> int:
        """What tokens [start, end) of a request of this length hold in the KV pool; windows hold only their end."""
        return self._parts.held_bytes(start, end, length)

    def image_tokens(self, image: Any) -> int:
        """Tokens of a prompt that an image takes."""
        if self._parts.media is None:
            raise InvalidRequest("images: this model takes text only")
        return self._parts.media.tokens_of(image, self.image_limits)

    def audio_tokens(self, audio: Any) -> int:
        """Tokens of a prompt that an audio takes."""
        if self._parts.media is None:
            raise InvalidRequest("audios: this model takes text only")
        return self._parts.media.tokens_of_audio(audio, self.audio_limits)

    @property
    def image_limits(self) -> ImageLimits | None:
        """How large an image of a request may be; None if the model takes none."""
        return self._allowed.images

    @property
    def audio_limits(self) -> AudioLimits | None:
        """How long an audio of a request may be; None if the model takes none."""
        return self._allowed.audios

    @property
    def running_tokens(self) -> int:
        """KV tokens that running requests can hold at most; what a pool has beyond them is a cache of prefixes."""
        return self._parts.running_tokens

    @property
    def reuses_prefixes(self) -> bool:
        """Whether a larger pool than that is of any use."""
        return self._parts.reuses_prefixes

    @property
    def state_bytes(self) -> int:
        """What the recurrent states of all requests in flight take, at any size of the pool."""
        return self._parts.state_bytes

    @property
    def feature_bytes(self) -> int:
        """What features of images take that encoders have made; 0: the engine encodes by itself."""
        return 0 if self._features is None else self._features.bytes

    @property
    def encoders(self) -> Encoders | None:
        """Its encoders; None: it encodes by itself."""
        return self._encoders

    def stress_shapes(self) -> tuple[StressShape, ...]:
        """The worst steps that this engine may be asked for."""
        return self._worst.shapes()

    def scaling_steps(self) -> ScalingSteps:
        """A few smaller ones, from which it is learned how memory scales."""
        return self._worst.scaling()

    def worst_image(self) -> MediaPart | None:
        """The largest image that a request may have; None if it may have none."""
        return self._worst.part(MediaKind.IMAGE)

    def worst_audio(self) -> MediaPart | None:
        """The longest audio that a request may have; None if it may have none."""
        return self._worst.part(MediaKind.AUDIO)

    def stress(self, shape: StressShape) -> None:
        """Run one of them, on whatever size the engine is built at. Nothing else may be in flight."""
        assert self.loop.idle, "stress runs before serving, not beside it"
        if self.ranks is not None:  # in a step that all of them run, the others would wait for a rank that fails
            with self._parts.each_rank_by_itself(f"stress '{shape.name}'"):
                self._run_shape(shape)
        self._run_shape(shape)

    def _run_shape(self, shape: StressShape) -> None:
        run = self._worst.step(shape, self.loop.scheduler.ledger)
        with self._on_device(), nullcontext() if self._features is None else self._features.blank():
            run()

    def close(self) -> None:
        self.teardown()
        if self._encoders is not None:
            self._encoders.close()
        if self.ranks is not None:
            self.ranks.leave()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def loop(self) -> ServingLoop:
        if self._loop is None:
            raise InvalidRequest("the engine is not built: call build(kv_tokens) first")
        return self._loop

    @property
    def figures(self) -> EngineFigures:
        weights = self.loaded.weight_bytes + (0 if self.draft is None else self.draft.weight_bytes)
        return figures_of(self.loop, self.kv_tokens, self._parts.kv_bytes(self.kv_tokens), weights)

    @property
    def requests(self) -> tuple[RequestFigures, ...]:
        """Those that run and wait now."""
        return requests_of(self.loop)

    @property
    def health(self) -> Health:
        """Whether it serves as it should, and what rescues have changed."""
        tokens = self.settings.max_batch_tokens
        found = Health(Status.READY, "", step_tokens=tokens, usual_step_tokens=tokens)
        if self._rescue is not None:
            found = self._rescue.health
        return found if self._features is None else found.also(self._features.problem)

    # -- requests ------------------------------------------------------------------------------------------------

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        images: Given = (),
        audios: Given = (),
        videos: Given = (),
        deadline_seconds: float | None = None,
        request_id: str | None = None,
        session: str | None = None,
        salt: bytes = b"",
        priority: int = 0,
        share: ClientShare = EVERYBODY,
    ) -> str:
        """Check a request and put it in the queue; its id. Nothing of a refused request stays behind.

        `session` names a conversation: what this request leaves in the KV pool is kept ahead of other prefixes, until
        a later request of that session replaces it, or `forget_session` is called. Only requests of the same `salt`
        find each other's prefixes. Requests of a higher `priority` start first among those of their `share`;
        shares take turns, by their weights and by the tokens that were computed for them.
        """
        params = params or SamplingParams()
        loop = self.loop
        if request_id is None:
            request_id = next(name for number in self._numbers if (name := f"request-{number}") not in self._answers)
        if not isinstance(request_id, str) or not request_id:
            raise InvalidRequest(f"request_id {request_id!r}: a name that is not empty is needed")
        if request_id in self._answers:
            raise InvalidRequest(f"request_id '{request_id}' is in use by a request that has not ended")
        given = GivenMedia(images, audios, videos)
        if given and self._features is not None and self._features.refusal:
            raise MediaUnavailable(
                f"{given.kinds[0]} are temporarily unavailable; text still works: {self._features.refusal}"
            )
        requests = self._validator.validate(
            request_id,
            prompt,
            params,
            given,
            deadline_seconds,
            self.longest_request,
            session,
            salt,
            priority,
            share,
        )
        grammar = params.grammar
        sequences = [
            RunningSequence(
                request,
                list(request.prompt),
                constraint=None if grammar is None else self.grammars.start(grammar),
            )
            for request in requests
        ]
        answer = Answer(request_id, requests, self.tokenizer)
        with self._interrupts.held():
            for sequence in sequences:
                loop.submit(sequence)
            self._answers[request_id] = answer
        return request_id

    def forget_session(self, session: str) -> None:
        """A conversation is over or idle: what it left in the KV pool is cached like any other prefix."""
        if self._loop is not None:
            self._loop.scheduler.ledger.sessions.forget(session)

    @property
    def longest_request(self) -> int:
        """Tokens of the longest request, prompt and answer: the context, or the whole pool."""
        return min(self.max_length, self._parts.tokens_one_request_can_hold(self.kv_tokens))

    def cancel(self, request_id: str) -> bool:
        """End a request now; False if there is none of that id."""
        if request_id not in self._answers:
            return False
        scheduler = self.loop.scheduler
        with self._interrupts.held():
            for index in range(self._answers[request_id].count):
                sequence = scheduler.find((request_id, index))
                if sequence is not None:
                    scheduler.finish(sequence, FinishReason.CANCELLED)
            del self._answers[request_id]
        return True

    # -- work ----------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        if self._loop is None:
            return True
        rescuing = self._rescue is not None and self._rescue.under_way
        return self._loop.idle and not self._updates and not rescuing

    def step(self) -> list[Update]:
        """Do one step; what became known of which request.

        A step that runs out of memory is run again in parts (`brim.engine.rescue`). If it raises, for whatever reason,
        every request is as it was before the step, or will be recomputed, and nothing that became known is lost:
        the caller may go on stepping, or cancel.
        """
        serving = self._rescue or self.loop
        with self._serving():
            self.tend()
            steps = self.loop.figures.steps
            serving.advance()
            if self._features is not None and self.loop.figures.steps == steps and not self.loop.events:
                self._features.rest()
        with self._interrupts.held():
            self._make_updates()
        updates, self._updates = self._updates, []
        return updates

    def tend(self) -> None:
        """Take in what encoders have made, and start again those that have died. Steps do so too."""
        if self._features is not None and self._loop is not None:
            for lost in self._features.turn():
                self._loop.end(lost.sequence, lost.why, passing=lost.passing)

    def _make_updates(self) -> None:
        """An update for each event; an event is gone when its update has been made."""
        events = self.loop.events
        while events:
            event = events[0]
            answer = self._answers.get(event.sequence.request.id)
            if answer is None or not answer.awaits(event.sequence.request):
                events.popleft()  # it ended in the meantime
                continue
            update = answer.settled(event)
            self._settle(answer, event, update)

    def _settle(self, answer: Answer, event: SequenceEvent, update: Update) -> None:
        """The event has been taken: hand its update out, and let go of what has ended. Cannot fail."""
        self.loop.events.popleft()
        self._updates.append(update)
        if update.completion is not None:
            self.loop.scheduler.finish(event.sequence, update.completion.finish_reason)
        if answer.complete:
            del self._answers[answer.request_id]

    def generate(
        self,
        prompts: Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        images: Sequence[Given | None] | None = None,
        audios: Sequence[Given | None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Completion]:
        """Answer all prompts; completions in the order of the prompts (all answers of one beside each other).

        `images` has an entry for each prompt: its images, or None; so has `audios`.
        """
        prompts = list(prompts)
        shown, heard = (_for_each("images", images, len(prompts)), _for_each("audios", audios, len(prompts)))
        wanted = list(params) if isinstance(params, Sequence) else [params] * len(prompts)
        if len(wanted) != len(prompts):
            raise InvalidRequest(f"params: {len(wanted)} for {len(prompts)} prompts; give one, or one for each")
        ids: list[str] = []
        try:
            for prompt, one, seen, sounds in zip(prompts, wanted, shown, heard, strict=True):
                ids.append(self.submit(prompt, one, images=seen, audios=sounds))
            done = self._run_to_the_end(ids, progress)
        except BaseException:  # whatever it was: nobody will ask for these answers again
            for request_id in ids:
                self.cancel(request_id)
            raise
        return [one for request_id in ids for one in sorted(done[request_id], key=lambda one: one.index)]

    def _run_to_the_end(
        self, ids: list[str], progress: Callable[[int, int], None] | None
    ) -> dict[str, list[Completion]]:
        done: dict[str, list[Completion]] = {request_id: [] for request_id in ids}
        total = left = sum(self._answers[request_id].count for request_id in ids)
        while left and not self.idle:  # it is idle before all are done where somebody cancelled one
            for update in self.step():
                if update.completion is not None and update.request_id in done:
                    done[update.request_id].append(update.completion)
                    left -= 1
                    if progress:
                        progress(total - left, total)
        return done


def _for_each(name: str, given: Sequence[Given | None] | None, prompts: int) -> list[Given]:
    """The media of each prompt."""
    found = [None] * prompts if given is None else list(given)
    if len(found) != prompts:
        raise InvalidRequest(f"{name}: {len(found)} entries for {prompts} prompts; give one for each, or None")
    return [some if some is not None else () for some in found]
