"""The causes that an explanation may name, and what each of them means."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from brim.explain.facts import Evidence


class MemoryCause(StrEnum):
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
    MemoryCause.LARGE_STEP: "a step was larger than what memory was sized for: long prompts, or many of them at once",
    MemoryCause.SCORED_PROMPTS: "log-probabilities of prompts take rows × vocabulary, which sizing did not count",
    MemoryCause.SAMPLING: "sampling takes requests × vocabulary beside the step, more than was left",
    MemoryCause.GRAPHS: "CUDA graphs were captured after the KV pool was sized, and found too little left",
    MemoryCause.WEIGHTS: "the weights do not fit on the device",
    MemoryCause.FRACTION: "the KV pool was given more than it can have: its fraction or its size is too high",
    MemoryCause.NEIGHBOUR: "another process holds or took memory of the device",
    MemoryCause.MEDIA: "an image or audio took more than was left for it",
    MemoryCause.DRAFTS: "drafts, or the model that makes them, took more than was left for them",
    MemoryCause.FRAGMENTATION: "memory was reserved and unused, in pieces too small for what was asked for",
    MemoryCause.POOL: "the KV pool is too small for its requests: they are preempted, or do not fit even alone",
    MemoryCause.LEAK: "memory that was taken did not come back: it grew until nothing was left",
    MemoryCause.HOST: "the memory of the machine ran out, not that of the GPU",
    MemoryCause.UNKNOWN: "not known: what was read does not decide it",
}


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A cause that a rule found, how sure it is (0 to 1), and what it rests on."""

    cause: MemoryCause
    confidence: float
    evidence: tuple[Evidence, ...]
    why: str
