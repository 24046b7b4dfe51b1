"""The causes that an explanation may name, and what each of them means."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from brim.explain.facts import Evidence


class Cause(StrEnum):
    """Why memory ran out. The values are those of `brim explain --json`."""

    LARGE_STEP = "large_step"
    SCORED_PROMPTS = "scored_prompts"
    SAMPLING = "sampling"
    GRAPHS = "graphs"
    WEIGHTS = "weights"
    FRACTION = "fraction"
    NEIGHBOUR = "neighbour"
    MEDIA = "media"
    DRAFTS = "drafts"
    FRAGMENTATION = "fragmentation"
    POOL = "pool"
    LEAK = "leak"
    HOST = "host"
    UNKNOWN = "unknown"

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    Cause.LARGE_STEP: "a step was larger than what memory was sized for: long prompts, or many of them at once",
    Cause.SCORED_PROMPTS: "log-probabilities of prompts take rows × vocabulary, which sizing did not count",
    Cause.SAMPLING: "sampling takes requests × vocabulary beside the step, more than was left",
    Cause.GRAPHS: "CUDA graphs were captured after the KV pool was sized, and found too little left",
    Cause.WEIGHTS: "the weights do not fit on the device",
    Cause.FRACTION: "the KV pool was given more of the device than it can have: its fraction or its size is too high",
    Cause.NEIGHBOUR: "another process holds or took memory of the device",
    Cause.MEDIA: "an image or audio took more than was left for it",
    Cause.DRAFTS: "drafts, or the model that makes them, took more than was left for them",
    Cause.FRAGMENTATION: "memory was reserved and unused, in pieces too small for what was asked for",
    Cause.POOL: "the KV pool is too small for its requests: they are preempted, refused, or do not fit even alone",
    Cause.LEAK: "memory that was taken did not come back: it grew until nothing was left",
    Cause.HOST: "the memory of the machine ran out, not that of the GPU",
    Cause.UNKNOWN: "not known: what was read does not decide it",
}


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A cause that a rule found, how sure it is (0 to 1), and what it rests on."""

    cause: Cause
    confidence: float
    evidence: tuple[Evidence, ...]
    why: str
