"""The engine of models that embed or score: inputs of many clients in batches, as large as a fit has proven.

    engine = PoolingEngine(PoolingSource("path/to/model"))
    engine.build(8192)
    engine.run_all([PoolingInput(np.array([1, 2, 3]))])

There is no KV cache: its size is the most tokens of a batch, padding included. It is an engine that can be sized
(`brim.ports.SizableEngine`), rescued (`RescuableEngine`) and run in a thread (`brim.engine.engine_thread`).
Single-threaded: its owner calls `submit_request`, `step` and `cancel`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from brim.engine.engine_thread import EngineThread
from brim.engine.pool.figures import EngineFigures, RequestFigures
from brim.engine.pooling.heads import held_by
from brim.engine.pooling.loading import PoolingSource, load_pooling
from brim.engine.pooling.model import PoolingModel
from brim.engine.pooling.queue import InputQueue, WaitingInput
from brim.engine.pooling.requests import PooledInput, PoolingInput, PoolingRequest
from brim.engine.pooling.worst import inputs_of, worst_batches
from brim.engine.schedule.figures import AdmissionFigures
from brim.engine.schedule.host_copies import PreemptionFigures
from brim.errors import InvalidRequest, PromptTooLong
from brim.guard.driver import RescueDriver
from brim.guard.rescue import RescuePolicy
from brim.ports import CanaryProbe, LaunchBounds, RequestKey, RequestProgress, Work
from brim.probes.translate import translated
from brim.progress import showing
from brim.records.health import Health
from brim.records.memory import StressShape
from brim.records.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    import torch

    from brim.probes.proven import ProvenBound

_LEAST_TOKENS = 16  # of a batch, after any number of rescues


@dataclass(frozen=True, slots=True)
class PoolingSettings:
    """How large batches may be."""

    max_rows: int = 64  # inputs of a batch
    max_batch_tokens: int = 16_384  # of a batch, padding included; more where one input is longer

    def __post_init__(self) -> None:
        for name, most in (("max_rows", 4096), ("max_batch_tokens", 1 << 20)):
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise InvalidRequest(f"{name} is {value}; it must be from 1 to {most}")


class PoolingEngine:
    """A model that embeds or scores, served by this process."""

    encoders = None  # nothing to tend beside the batches
    image_limits = audio_limits = None

    def __init__(
        self,
        source: PoolingSource | PoolingModel,
        *,
        settings: PoolingSettings | None = None,
        probe: Any = None,
        progress: Progress = None,
    ) -> None:
        """`progress` is as in `brim.progress`."""
        self.settings = settings or PoolingSettings()
        self.probe = probe or nullcontext()  # counts what is loaded and run
        self.shown = progress  # how a fit is shown, unless it is told otherwise
        with showing(progress) as told, translated(), self.probe:
            self.model = source if isinstance(source, PoolingModel) else load_pooling(source, told)
            hold = getattr(self.probe, "hold", None)
            if hold is not None:  # files are read in threads of their own, which a budget on the CPU does not see
                hold([*self.model.model.parameters(), *self.model.model.buffers(), *held_by(self.model.head)])
        self._batch_tokens = 0  # 0: not built
        self._queue = InputQueue(self.settings.max_rows)
        self._requests: dict[str, PoolingRequest] = {}
        self._undone: dict[str, int] = {}  # inputs of each request that have no result
        self._batch: tuple[WaitingInput, ...] = ()  # that is being computed
        self._found: list[PooledInput] = []
        self._bound: ProvenBound | None = None
        self._driver: RescueDriver | None = None
        self._before_run: Callable[[Sequence[PoolingInput]], None] | None = None
        self.steps = 0
        self._computed = 0

    # -- memory: brim.ports.SizableEngine ----------------------------------------------------------------------------

    def build(self, kv_tokens: int) -> None:
        """Serve batches of up to so many tokens from now on. Nothing is allocated for it."""
        if self._batch_tokens:
            raise InvalidRequest("the engine is built already: tear it down before building it at another size")
        if kv_tokens < self.max_length:
            raise InvalidRequest(
                f"a batch of {kv_tokens:,} tokens does not hold the longest input ({self.max_length:,})"
            )
        self._batch_tokens = kv_tokens
        policy = RescuePolicy(usual_tokens=kv_tokens, least_tokens=min(_LEAST_TOKENS, kv_tokens))
        self._driver = RescueDriver(self, policy)
        if isinstance(self.probe, CanaryProbe):
            self._driver.watch(self.probe)

    def teardown(self) -> None:
        for request_id in tuple(self._requests):
            self.cancel(request_id)
        self._batch_tokens, self._driver, self._bound = 0, None, None
        self._found.clear()

    def stress_shapes(self) -> tuple[StressShape, ...]:
        return worst_batches(self.max_length, self.batch_tokens, self.settings.max_rows)

    def stress(self, shape: StressShape) -> None:
        with translated(), self.probe:
            self.model.run(inputs_of(shape, self.model))

    def watch_memory(self, probe: CanaryProbe) -> None:
        """Let rescues spend this probe's canary. Nothing is in flight."""
        self._driving.watch(probe)

    def serve_within(self, bound: ProvenBound) -> None:
        """Serve within what a fit has proven at this size: a probe counts the batches of rescues, and no others."""
        self._bound = bound

    def close(self) -> None:
        self.teardown()

    def __enter__(self) -> PoolingEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def batch_tokens(self) -> int:
        """Most tokens of a batch, padding included."""
        if not self._batch_tokens:
            raise InvalidRequest("the engine is not built: call build(tokens) first")
        return self._batch_tokens

    @property
    def _driving(self) -> RescueDriver:
        assert self._driver is not None, "the engine is not built"
        return self._driver

    # -- what it is --------------------------------------------------------------------------------------------------

    @property
    def max_length(self) -> int:
        """Most tokens of an input."""
        return self.model.max_length

    longest_request = max_length

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def tokenizer(self) -> Any:
        return self.model.tokenizer

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.model.warnings

    @property
    def health(self) -> Health:
        return self._driving.health

    @property
    def figures(self) -> EngineFigures:
        """The same figures as of an engine that generates; what has to do with a KV cache is nothing."""
        return EngineFigures(
            kv_tokens=0,
            kv_bytes=0,
            weight_bytes=self.model.weight_bytes,
            blocks_held=0,
            blocks_cached=0,
            blocks_free=0,
            running=len(self._batch),
            waiting=sum(self._undone.copy().values()) - len(self._batch),
            preemptions=0,
            steps=self.steps,
            drawn=0,
            admission=AdmissionFigures(),
            preemption=PreemptionFigures(),
            speculation=None,
            computed=self._computed,
        )

    @property
    def requests(self) -> tuple[RequestFigures, ...]:
        """Those that wait or run, from any thread."""
        running = {one.request_id for one in self._batch}
        undone = self._undone.copy()
        return tuple(
            RequestFigures(one.request_id, 0, one.salt, one.request_id in running, one.tokens, 0, 0, 0, 0, 0, 0)
            for one in tuple(self._requests.values())
            if one.request_id in undone
        )

    # -- requests ----------------------------------------------------------------------------------------------------

    def check_length(self, tokens: int, field: str) -> None:
        """Refuse an input that is too long."""
        if tokens > self.max_length:
            raise PromptTooLong(
                f"{field}: it has {tokens:,} tokens; this model takes {self.max_length:,} at most. Please reduce the "
                "length of the input prompt, or send truncate_prompt_tokens"
            )

    def submit_request(self, given: PoolingRequest) -> str:
        """Its inputs wait for their batches; results come with the steps that compute them."""
        if given.request_id in self._requests:
            raise InvalidRequest(f"request_id '{given.request_id:.60}' is in flight already")
        for index, one in enumerate(given.inputs):
            self._check(one, f"input[{index}]")
        if not given.inputs:
            raise InvalidRequest("input: there is none")
        self._requests[given.request_id] = given
        self._undone[given.request_id] = len(given.inputs)
        self._queue.add(given.request_id, [one.length for one in given.inputs], given.share)
        return given.request_id

    def _check(self, one: PoolingInput, field: str) -> None:
        if not one.length:
            raise InvalidRequest(f"{field}: it has no tokens")
        self.check_length(one.length, field)
        wrong = (one.tokens < 0) | (one.tokens >= self.model.vocab)
        if wrong.any():
            token = int(one.tokens[wrong.argmax()])
            raise InvalidRequest(f"{field}: token {token} is out of vocabulary; it has {self.model.vocab:,} tokens")

    def cancel(self, request_id: str) -> None:
        if self._requests.pop(request_id, None) is not None:
            self._undone.pop(request_id, None)
            self._queue.remove(request_id)

    @property
    def idle(self) -> bool:
        return not self._requests and not (self._driver is not None and self._driver.under_way)

    def tend(self) -> None:
        """Nothing is beside the batches."""

    def step(self) -> list[PooledInput]:
        """Compute one batch, or a part of one that ran out of memory; what is known now."""
        self._driving.advance()
        found, self._found = self._found, []
        return found

    def run_all(self, inputs: Sequence[PoolingInput]) -> list[np.ndarray]:
        """The vector of each, in order: for those who own the engine and have no thread for it."""
        self.submit_request(PoolingRequest(tuple(inputs), "run-all"))
        vectors: dict[int, np.ndarray] = {}
        while not self.idle:
            for one in self.step():
                if one.vector is None:
                    self.cancel(one.request_id)
                    raise InvalidRequest(f"input[{one.index}]: {one.error}")
                vectors[one.index] = one.vector
        return [vectors[index] for index in range(len(inputs))]

    # -- brim.ports.RescuableEngine ----------------------------------------------------------------------------------

    def launch(self, bounds: LaunchBounds) -> None:
        only: Any = bounds.only
        self._batch = self._queue.take(min(bounds.tokens, self.batch_tokens), only)
        if not self._batch:
            return
        inputs = [self._requests[one.request_id].inputs[one.index] for one in self._batch]
        with self._counted(len(inputs) * self._batch[0].length):
            if self._before_run is not None:
                self._before_run(inputs)
            vectors = self.model.run(inputs)
        self.steps += 1
        self._computed += sum(one.length for one in inputs)
        batch, self._batch = self._batch, ()
        for one, vector in zip(batch, vectors, strict=True):
            self._ended(PooledInput(one.request_id, one.index, vector))

    @contextmanager
    def _counted(self, padded_tokens: int) -> Iterator[None]:
        """Around a batch: counted where no fit has proven that it fits, and where one did not."""
        with translated():
            if self._bound is not None and self._driving.calm:
                self._bound.check(padded_tokens)
                yield
                return
            with self.probe:
                yield

    def undo(self) -> tuple[Work, ...]:
        failed, self._batch = self._batch, ()
        self._queue.put_back(failed)
        return tuple(Work(one.key, one.length) for one in failed)

    def end(self, request: RequestKey, error: str) -> None:
        key: Any = request
        self._queue.drop(key)
        request_id, index = key
        self._ended(PooledInput(request_id, index, None, error))

    def progress(self, requests: Collection[RequestKey]) -> tuple[RequestProgress, ...]:
        keys: Any = requests
        waiting = self._queue.waiting(set(keys))
        return tuple(RequestProgress(one.key, 0, one.length, running=False) for one in waiting)

    def _ended(self, found: PooledInput) -> None:
        self._found.append(found)
        self._undone[found.request_id] -= 1
        if not self._undone[found.request_id]:
            del self._undone[found.request_id], self._requests[found.request_id]
            self._queue.remove(found.request_id)

    def fail_long_inputs(self, tokens: int) -> None:
        """For tests of operations: batches with an input of so many tokens or more run out of memory."""

        def refuse(inputs: Sequence[PoolingInput]) -> None:
            if max(one.length for one in inputs) >= tokens:
                import torch

                raise torch.OutOfMemoryError(f"injected: an input of {tokens} tokens or more")

        self._before_run = refuse


PoolingThread = EngineThread[PoolingRequest, PooledInput]  # such an engine in a thread of its own
