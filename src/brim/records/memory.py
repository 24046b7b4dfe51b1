"""A device's memory at one moment (`MemoryReading`), facts about the device (`DeviceFacts`), a load (`StressShape`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from brim.units import MIB

SCORING_BYTES = 64 * MIB  # that log-probabilities of prompts may take in Brim's engine, unless it is told otherwise


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """A device at one moment. Peaks are those since they were last reset."""

    total_bytes: int
    free_bytes: int  # what the driver says is free
    allocated_bytes: int  # live tensors of this process
    reserved_bytes: int  # what this process' allocator holds, live or not
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    other_bytes: int  # held by anything but this process' allocator: its own context, and neighbours
    process_bytes: int | None = None  # held by this process, where the driver reports it by process


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Properties of a device that decide how much of it stays free by default."""

    drives_display: bool = False
    spills: bool = False  # its driver spills to host memory instead of failing an allocation: validation proves nothing


class StressKind(StrEnum):
    """The steps that engines name among their worst. The values are those of reports and stored fits."""

    PREFILL = "prefill"  # prompts, as many tokens as a step may have
    DECODE = "decode"  # a token of each request of the largest batch
    VERIFY = "verify"  # drafted tokens of each request
    PROMPT_LOGPROBS = "prompt-logprobs"  # a prefill with log-probabilities of every token
    DRAFT = "draft"  # a step of the draft model
    IMAGE = "image"  # with the largest image
    AUDIO = "audio"  # with the longest audio


@dataclass(frozen=True, slots=True)
class StressShape:
    """A step that must fit in memory: `tokens` new tokens, over `sequences` sequences.

    `name` is a `StressKind`, or a name of the engine's own for a step of text that has no kind.
    """

    name: str
    tokens: int
    sequences: int
    detail: str = ""

    @property
    def title(self) -> str:
        return f"{self.name}, {self.tokens:,} tokens"

    @property
    def has_media(self) -> bool:
        """Whether an encoder runs in it: its peak is measured after all others, and reported separately."""
        return self.name in (StressKind.IMAGE, StressKind.AUDIO)
