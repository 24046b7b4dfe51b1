"""An engine that computes nothing, for measuring what is in front of one.

It answers every request with the same piece of text for each token, one token a step for all of them, like an engine
that decodes. A step may take time: `host_seconds` with the interpreter's lock, in pieces, as planning and launching do,
and `device_seconds` without it, while the host goes on with the next step, as on a GPU.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from brim.engine.front.answers import Completion, Update
from brim.engine.front.grammars import Grammars
from brim.engine.front.validation import GenerationRequest
from brim.engine.pool.figures import EngineFigures
from brim.engine.requests.request import FinishReason
from brim.engine.schedule.figures import AdmissionFigures
from brim.engine.schedule.host_copies import PreemptionFigures
from brim.records.health import Health, Status
from brim.serve.service import Loaded

_TOKEN, _TEXT = 42, " word"
_PIECES = 50  # in which the host's part of a step comes: at each end the lock may change hands


@dataclass(slots=True)
class _Answer:
    prompt: int
    wanted: int
    given: int = 0


@dataclass(slots=True)
class StubEngine:
    """As much of an engine as a server asks for."""

    max_batch: int = 1024
    device_seconds: float = 0.0
    host_seconds: float = 0.0
    steps: int = 0
    drawn: int = 0
    tokenizer: Any = None
    longest_request: int = 1 << 20
    kv_tokens: int = 1 << 20
    device: str = "nothing"
    image_limits: None = None
    audio_limits: None = None
    encoders: None = None
    requests: tuple[Any, ...] = ()
    _answers: dict[str, _Answer] = field(default_factory=dict)
    _number: int = 0
    _device_ends: float = 0.0  # the step that was launched last

    @property
    def settings(self) -> Any:
        return SimpleNamespace(max_batch=self.max_batch)

    @property
    def grammars(self) -> Grammars:
        return Grammars(self.tokenizer, 1 << 17, [])

    @property
    def loaded(self) -> Any:
        return SimpleNamespace(folder=None, eos_ids=frozenset(), vocab=1 << 17)

    @property
    def idle(self) -> bool:
        return not self._answers

    @property
    def health(self) -> Health:
        return Health(Status.READY, "")

    @property
    def figures(self) -> EngineFigures:
        running = len(self._answers)
        counts = (self.kv_tokens, 0, 0, 0, 0, 0, running, 0, 0, self.steps, self.drawn)
        return EngineFigures(*counts, AdmissionFigures(), PreemptionFigures(), None)

    def submit_request(self, given: GenerationRequest) -> str:
        self._number += 1
        name = given.request_id or f"request-{self._number}"
        self._answers[name] = _Answer(len(given.prompt), given.params.max_tokens)
        return name

    def check_prompt_length(self, tokens: int, **_: str) -> None:
        pass

    def cancel(self, request_id: str) -> bool:
        return self._answers.pop(request_id, None) is not None

    def step(self) -> list[Update]:
        """Launch a step, and wait for the one before it: the device is never idle if the host is fast enough."""
        self._be_busy()
        launched = time.perf_counter()
        ends, self._device_ends = self._device_ends, max(self._device_ends, launched) + self.device_seconds
        if ends > launched:
            time.sleep(ends - launched)
        self.steps += 1
        self.drawn += len(self._answers)
        return [self._token(name, answer) for name, answer in list(self._answers.items())]

    def _be_busy(self) -> None:
        """Hold the interpreter's lock as long as a host does, and give it up as often as calls of torch do."""
        for _ in range(_PIECES if self.host_seconds else 0):
            until = time.perf_counter() + self.host_seconds / _PIECES
            while time.perf_counter() < until:
                pass
            time.sleep(0)

    def _token(self, name: str, answer: _Answer) -> Update:
        answer.given += 1
        if answer.given < answer.wanted:
            return Update(name, 0, _TOKEN, _TEXT)
        del self._answers[name]
        tokens = (_TOKEN,) * answer.wanted
        done = Completion(name, 0, answer.prompt, 0, tokens, _TEXT * answer.wanted, FinishReason.LENGTH)
        return Update(name, 0, _TOKEN, _TEXT, completion=done)

    def close(self) -> None:
        self._answers.clear()


@dataclass(frozen=True, slots=True)
class StubStarter:
    """Nothing is loaded, and nothing is fitted."""

    engine: StubEngine

    def load(self, told: Any) -> Loaded:
        return Loaded(self.engine)  # type: ignore[arg-type]

    def fit(self, loaded: Loaded, told: Any) -> None:
        return None
