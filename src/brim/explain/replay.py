"""The last steps of an incident, run again on the meta device: which tensor and module made the peak, for which tokens.

In: an incident whose model is known, with steps that a recording has, or that vLLM's log lists when a step fails. Out:
a trace of the step that was refused, and of the largest one that ran before it. No GPU and no weights are needed; torch
and transformers are.

It is the model's own code on packed rows, with attention as fused kernels have it. What sampling adds, towers of images
and audio, and kernels of the engine itself are not in it; Brim's engine scores prompts in pieces, and so their rows are
not counted for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from brim.errors import CannotTrace
from brim.explain.facts import Incident, RecordedFact
from brim.explain.model_plan import known_model
from brim.explain.readers.recording import clock, described_step
from brim.model.source import load_config
from brim.record.entries import StepEntry, StepState
from brim.records.trace import LiveTensor, Phase, Trace, TraceShape
from brim.units import format_bytes

_DTYPES = {"float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}  # else bf16
_MOST_LIVE = 8
_RESCUE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """A step as it can be run again."""

    source: str
    time: str  # as the source writes it; empty: not said
    words: str  # what was in it
    refused: bool
    tokens: int
    logit_rows: int
    free_bytes: int | None  # of the device before it; None: not said


@dataclass(frozen=True, slots=True)
class StepReplay:
    """A step, and what it takes beside the weights and the pool."""

    step: ReplayedStep
    trace: Trace

    @property
    def largest(self) -> LiveTensor | None:
        """The largest tensor that is alive at the peak."""
        return max(self.trace.live, key=lambda one: one.bytes, default=None)

    @property
    def words(self) -> str:
        """One line: how much, and where."""
        fate = "refused" if self.step.refused else "ran"
        free = "" if self.step.free_bytes is None else f"; {format_bytes(self.step.free_bytes)} were free"
        peak = f"{format_bytes(self.trace.peak_bytes)} at {self.trace.at_module or 'the model'} ({self.trace.at_op})"
        return f"{self.step.words} ({fate}): {peak}{free}"

    def to_json(self) -> dict[str, Any]:
        traced = self.trace.to_json()
        return {
            "source": self.step.source,
            "time": self.step.time,
            "step": self.step.words,
            "refused": self.step.refused,
            "tokens": self.step.tokens,
            "logit_rows": self.step.logit_rows,
            "free_bytes": self.step.free_bytes,
            "model": self.trace.model,
            "peak_bytes": self.trace.peak_bytes,
            "at": traced["at"],
            "live": traced["live"][:_MOST_LIVE],  # type: ignore[index]
        }


def replay(incident: Incident, *, with_timeline: bool = False) -> tuple[StepReplay, ...]:
    """The refused step first, then the largest that ran; `CannotTrace` says what is missing."""
    steps = _steps(incident)
    if not steps:
        raise CannotTrace("no step is known: recordings have them, and vLLM's log where a step failed")
    model = known_model(incident)
    if model is None:
        raise CannotTrace("the model is not known; say what was served with --model (a name, or a folder)")
    name, config = load_config(model)
    from brim.trace.attention import FUSED
    from brim.trace.tracer import trace_config

    dtype, ranks = _DTYPES.get(_flag(incident, "dtype"), "bf16"), _ranks(incident)
    found: list[StepReplay] = []
    for step in steps:
        shape = TraceShape(Phase.PACKED, step.tokens, logit_rows=step.logit_rows, attention=FUSED, head_sees_last=True)
        pictured = with_timeline and not found
        trace = trace_config(config, shape, name=name, dtype=dtype, ranks=ranks, with_timeline=pictured)
        found.append(StepReplay(step, trace))
    return tuple(found)


def _steps(incident: Incident) -> list[ReplayedStep]:
    for fact in reversed(incident.recordings):
        if found := _of_recording(fact, incident.engine):
            return found
    listed = incident.last("step_tokens")
    if listed is None or not listed.value:
        return []
    tokens, requests = int(listed.value), incident.value("step_requests") or 1
    words = f"{tokens:,} tokens of {requests:,} request{'s' if requests != 1 else ''}"
    free = next((one.free_bytes for one in reversed(incident.refusals) if one.free_bytes is not None), None)
    where = listed.evidence
    return [ReplayedStep(where.source, where.time, words, True, tokens, min(tokens, requests), free)]


def _of_recording(fact: RecordedFact, engine: str) -> list[ReplayedStep]:
    steps = [step for step in fact.recorded.steps if step.tokens]
    refused = [step for step in steps if step.state is StepState.OUT_OF_MEMORY]
    # A rescue runs a refused step again in parts: the whole of it is the largest of the last ones.
    last = max((step for step in refused if step.time > refused[-1].time - _RESCUE_SECONDS), key=_size, default=None)
    if last is None and steps and steps[-1].state is StepState.PLANNED:
        last = steps[-1]  # it took the process with it
    ran = [step for step in steps if step.state is StepState.LAUNCHED and (last is None or step.time < last.time)]
    largest = max(ran, key=_size, default=None)
    return [_replayed(step, fact.source, engine) for step in (last, largest) if step is not None]


def _size(step: StepEntry) -> int:
    return step.tokens


def _replayed(step: StepEntry, source: str, engine: str) -> ReplayedStep:
    rows = step.decodes + step.draft_tokens + step.chunks
    if engine != "brim":
        rows += step.scored_rows
    return ReplayedStep(
        source,
        clock(step.time),
        described_step(step),
        step.state is not StepState.LAUNCHED,
        step.tokens,
        max(1, min(step.tokens, rows)),
        step.free_bytes,
    )


def _flag(incident: Incident, *names: str) -> str:
    flag = incident.flag(*names)
    return "" if flag is None else flag.value


def _ranks(incident: Incident) -> int:
    digits = _flag(incident, "tensor_parallel_size", "tp", "tp_size")
    return int(digits) if digits.isdecimal() and 1 <= len(digits) <= 3 and int(digits) > 0 else 1
