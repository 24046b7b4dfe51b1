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

from brim.engine.device.interrupts import Interrupts
from brim.engine.front.answers import Answer, Completion, Update
from brim.engine.front.grammars import Grammars
from brim.engine.front.open_answers import OpenAnswers
from brim.engine.front.token_limits import limited
from brim.engine.front.validation import GenerationRequest, RequestValidator
from brim.engine.kv.events import BlockEvent, BlockEvents
from brim.engine.loop import ServingLoop, StepObserver
from brim.engine.media.parts import MediaKind
from brim.engine.media.prepare import Given, GivenMedia, Prompt
from brim.engine.pool.figures import EngineFigures, RequestFigures, figures_of, requests_of
from brim.engine.requests.params import SamplingParams
from brim.engine.requests.sequence import Sequence as RunningSequence
from brim.engine.settings import EngineSettings
from brim.engine.statistics import PoolState, pool_state
from brim.engine.stress.worst_steps import WorstSteps
from brim.engine.weights.load import LoadedModel
from brim.errors import InvalidRequest, MediaUnavailable
from brim.guard.shares import EVERYBODY, ClientShare
from brim.ports import CanaryProbe
from brim.probes.translate import translated
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
    from brim.engine.pool.pool import EnginePool
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
        from brim.engine.pool.pool import PoolBuilder
        from brim.engine.start import Sources, closed_on_errors, start

        self.settings = (settings or EngineSettings()).with_draft(draft is not None, tensor_parallel)
        self.probe = probe or nullcontext()  # counts what is loaded, built and run
        started = start(
            Sources(model, draft, load_format, dtype, tokenizer, seed),
            self.settings,
            device=device,
            probe=self.probe,
            progress=progress,
            tensor_parallel=tensor_parallel,
            encoders=encoders,
        )
        self.progress = started.progress  # how building is shown (`brim.progress`)
        self.ranks = started.ranks
        self.loaded, self.draft = started.loaded, started.draft
        self.tokenizer = started.tokenizer
        self.encoders = started.encoders  # None: it encodes by itself
        self.model = started.model
        self.max_length = self.model.max_length
        self.grammars = Grammars(self.tokenizer, self.loaded.vocab, sorted(self.loaded.eos_ids))
        self.worst_steps = WorstSteps(self.loaded, self.model, started.allowed)
        self._allowed = started.allowed
        self._features = self.model.features
        self._rank_errors = started.rank_errors
        self._validator = RequestValidator(
            loaded=self.loaded,
            tokenizer=self.tokenizer,
            max_length=self.max_length,
            max_batch_tokens=self.settings.max_batch_tokens,
            seeds=Random(started.seed),
            clock=self.model.clock,
            media=self.model.media,
            allowed=self._allowed,
        )
        self._answers = OpenAnswers()
        self._interrupts = Interrupts()
        self._pools = PoolBuilder(self.model, self.worst_steps, self.ranks)
        self._pool: EnginePool | None = None
        self._observer: StepObserver | None = None
        if kv_tokens != 0:
            wanted = kv_tokens or min(DEFAULT_KV_TOKENS, self.settings.max_batch * self.max_length)
            with closed_on_errors(self.encoders):
                self.build(wanted)

    # -- memory --------------------------------------------------------------------------------------------------

    def build(self, kv_tokens: int) -> None:
        """Make the KV pool and everything else that serving holds, and run a step of every kind once."""
        if self._pool is not None:
            raise InvalidRequest("the engine is built already: tear it down before building it at another size")
        if not isinstance(kv_tokens, int) or kv_tokens < self.settings.block_size:
            raise InvalidRequest(f"kv_tokens {kv_tokens}: at least one block of {self.settings.block_size} is needed")
        if kv_tokens > self.most_tokens:
            raise InvalidRequest(
                f"kv_tokens {kv_tokens:,}: blocks are tracked for at most {self.most_tokens:,}; lower it"
            )
        self._pool = self._pools.build(kv_tokens, self._on_device, self.progress)
        self._pool.loop.observer = self._observer
        if isinstance(self.probe, CanaryProbe):
            self.watch_memory(self.probe)

    def watch_memory(self, probe: CanaryProbe) -> None:
        """Let rescues spend this probe's canary and check memory with it. Nothing is in flight."""
        if self._pool is not None:
            self._pool.watch(probe)

    def observe(self, observer: StepObserver | None) -> None:
        """Let it see every step from now on, at whatever size the engine is built."""
        self._observer = observer
        if self._pool is not None:
            self._pool.loop.observer = observer

    def serve_within(self, bound: ProvenBound) -> None:
        """Serve within what a fit has proven at this size: a probe counts the steps of rescues, and no others.

        Where several ranks share a model, every step is counted: what one of them alone refuses is not agreed on.
        """
        if self.ranks is None:
            self.pool.serve_within(bound)

    def weigh_by(self, report: ScalingReport | None) -> None:
        """Let the gate of speculation weigh batches by the laws of a fit, as long as the engine stays at this size."""
        self.pool.weigh_by(report)

    def teardown(self) -> None:
        """Give all of that back to the device. Requests in flight are cancelled."""
        for request_id in self.request_ids:
            self.cancel(request_id)
        if self._pool is not None:
            self._pool = None
            self._pools.free()
        self._answers.updates.clear()

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """Foreign errors of the device and of other ranks are translated here, and a probe counts."""
        with self._errors_translated(), self.probe:
            yield

    @contextmanager
    def _errors_translated(self) -> Iterator[None]:
        with translated(), self._rank_errors():
            yield

    @property
    def device(self) -> torch.device:
        return self.model.runner.shape.device

    @property
    def dtype(self) -> str:
        """The type of the weights: bf16, fp16 or fp32."""
        kind = str(self.model.runner.text_model.dtype).removeprefix("torch.")
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
        return (
            *self.model.warnings,
            *self._pools.preempted.warnings,
            *(() if self.encoders is None else self.encoders.facts.warnings),
            *self.model.draft_warnings,
        )

    def kv_bytes(self, kv_tokens: int) -> int:
        """What a KV pool of so many tokens takes."""
        return self.model.sizes.kv_bytes(kv_tokens)

    def held_bytes(self, start: int, end: int, length: int) -> int:
        """What tokens [start, end) of a request of this length hold in the KV pool; windows hold only their end."""
        return self.model.sizes.held_bytes(start, end, length)

    def image_tokens(self, image: Any) -> int:
        """Tokens of a prompt that an image takes."""
        if self.model.media is None:
            raise InvalidRequest("images: this model takes text only")
        return self.model.media.tokens_of(image, self.image_limits)

    def audio_tokens(self, audio: Any) -> int:
        """Tokens of a prompt that an audio takes."""
        if self.model.media is None:
            raise InvalidRequest("audios: this model takes text only")
        return self.model.media.tokens_of_audio(audio, self.audio_limits)

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
        return self.model.sizes.running_tokens

    @property
    def reuses_prefixes(self) -> bool:
        """Whether a larger pool than that is of any use."""
        return self.model.sizes.reuses_prefixes

    @property
    def state_bytes(self) -> int:
        """What the recurrent states of all requests in flight take, at any size of the pool."""
        return self.model.sizes.state_bytes

    @property
    def feature_bytes(self) -> int:
        """What features of images take that encoders have made; 0: the engine encodes by itself."""
        return 0 if self._features is None else self._features.bytes

    def stress_shapes(self) -> tuple[StressShape, ...]:
        """The worst steps that this engine may be asked for."""
        return self.worst_steps.shapes()

    def scaling_steps(self) -> ScalingSteps:
        """A few smaller ones, from which it is learned how memory scales."""
        return self.worst_steps.scaling()

    def worst_image(self) -> MediaPart | None:
        """The largest image that a request may have; None if it may have none."""
        return self.worst_steps.part(MediaKind.IMAGE)

    def worst_audio(self) -> MediaPart | None:
        """The longest audio that a request may have; None if it may have none."""
        return self.worst_steps.part(MediaKind.AUDIO)

    def stress(self, shape: StressShape) -> None:
        """Run one of them, on whatever size the engine is built at. Nothing else may be in flight."""
        assert self.loop.idle, "stress runs before serving, not beside it"
        if self.ranks is not None:  # in a step that all of them run, the others would wait for a rank that fails
            with self.model.each_rank_by_itself(f"stress '{shape.name}'"):
                self.stress_this_rank(shape)
        self.stress_this_rank(shape)

    def stress_this_rank(self, shape: StressShape) -> None:
        """The same where no other rank has to end alike."""
        run = self.worst_steps.step(shape, self.loop.scheduler.ledger)
        with self._on_device(), nullcontext() if self._features is None else self._features.blank():
            run()

    def close(self) -> None:
        self.teardown()
        if self.encoders is not None:
            self.encoders.close()
        if self.ranks is not None:
            self.ranks.leave()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pool(self) -> EnginePool:
        """What it serves from, while it is built."""
        if self._pool is None:
            raise InvalidRequest("the engine is not built: call build(kv_tokens) first")
        return self._pool

    @property
    def loop(self) -> ServingLoop:
        return self.pool.loop

    @property
    def kv_tokens(self) -> int:
        """The size of its pool; 0: it has none."""
        pool = self._pool  # other threads read this one
        return 0 if pool is None else pool.kv_tokens

    @property
    def figures(self) -> EngineFigures:
        weights = self.loaded.weight_bytes + (0 if self.draft is None else self.draft.weight_bytes)
        return figures_of(self.loop, self.kv_tokens, self.kv_bytes(self.kv_tokens), weights)

    def pool_state(self) -> PoolState:
        """What a router asks for; in the thread that drives the engine."""
        return pool_state(self.loop)

    def block_events(self) -> list[BlockEvent]:
        """What has happened to blocks since the last call; in the thread that drives the engine.

        The first call, and the first after the pool was built again, says that nothing before it can be counted on.
        """
        ledger = self.loop.scheduler.ledger
        if not ledger.pools:
            return []
        pool = ledger.pools[ledger.main_group]
        if pool.events is None:
            pool.events = BlockEvents(ledger.block_size)
            pool.events.cleared()
        return pool.events.taken()

    @property
    def requests(self) -> tuple[RequestFigures, ...]:
        """Those that run and wait now."""
        return requests_of(self.loop)

    @property
    def health(self) -> Health:
        """Whether it serves as it should, and what rescues have changed."""
        tokens = self.settings.max_batch_tokens
        found = Health(Status.READY, "", step_tokens=tokens, usual_step_tokens=tokens)
        pool = self._pool  # other threads read this one
        if pool is not None and pool.rescue is not None:
            found = pool.rescue.health
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
        given = GenerationRequest(
            prompt,
            params or SamplingParams(),
            GivenMedia(images, audios, videos),
            deadline_seconds,
            request_id,
            session,
            salt,
            priority,
            share,
        )
        return self.submit_request(given)

    def submit_request(self, given: GenerationRequest) -> str:
        """The same, of a request that is put together already."""
        loop = self.loop
        request_id = self._answers.free_id(given.request_id)
        if given.media and self._features is not None and self._features.refusal:
            raise MediaUnavailable(
                f"{given.media.kinds[0]} are temporarily unavailable; text still works: {self._features.refusal}"
            )
        requests = self._validator.validate(given, request_id, self.longest_request)
        grammar = given.params.grammar
        sequences = [
            RunningSequence(
                request,
                list(request.prompt),
                constraint=limited(
                    given.params,
                    self.loaded.vocab,
                    None if grammar is None else self.grammars.start(grammar),
                    request.stop_ids,
                ),
            )
            for request in requests
        ]
        answer = Answer(request_id, requests, self.tokenizer)
        with self._interrupts.held():
            for sequence in sequences:
                loop.submit(sequence)
            self._answers.add(answer)
        return request_id

    def forget_session(self, session: str) -> None:
        """A conversation is over or idle: what it left in the KV pool is cached like any other prefix."""
        if self._pool is not None:
            self._pool.loop.scheduler.ledger.sessions.forget(session)

    def check_prompt_length(self, tokens: int, **said: str) -> None:
        """Refuse a prompt of so many tokens as `submit` would; `field` and `remedy` are the client's words for it."""
        self._validator.check_length(tokens, self.longest_request, **said)

    @property
    def longest_request(self) -> int:
        """Tokens of the longest request, prompt and answer: the context, or the whole pool."""
        return min(self.max_length, self.model.sizes.tokens_one_request_can_hold(self.kv_tokens))

    def cancel(self, request_id: str) -> bool:
        """End a request now; False if there is none of that id."""
        if request_id not in self._answers:
            return False
        with self._interrupts.held():
            self._answers.cancel(request_id, self.loop.scheduler)
        return True

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Requests that have not ended."""
        return self._answers.ids

    # -- work ----------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return self._pool is None or (self._pool.idle and not self._answers.updates)

    def step(self) -> list[Update]:
        """Do one step; what became known of which request.

        A step that runs out of memory is run again in parts (`brim.engine.rescue`). If it raises, for whatever reason,
        every request is as it was before the step, or will be recomputed, and nothing that became known is lost:
        the caller may go on stepping, or cancel.
        """
        pool = self.pool
        with pool.counted(self._on_device, self._errors_translated):
            self.tend()
            launched = pool.advance()
            if self._features is not None and not launched and not pool.loop.events:
                self._features.rest()
        with self._interrupts.held():
            self._answers.take_in(pool.loop.events, pool.loop.scheduler)
        return self._answers.hand_out()

    def tend(self) -> None:
        """Take in what encoders have made, and start again those that have died. Steps do so too."""
        if self._features is not None and self._pool is not None:
            for lost in self._features.turn():
                self._pool.loop.end(lost.sequence, lost.why, passing=lost.passing)

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
        from brim.engine.generate import generate

        return generate(self, prompts, params, images=images, audios=audios, progress=progress)
