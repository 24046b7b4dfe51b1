"""What is asked of an engine that embeds or scores, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brim.guard.shares import EVERYBODY, ClientShare

Tokens = np.ndarray  # of 32-bit integers: some hundred thousand may wait


@dataclass(frozen=True, slots=True, eq=False)
class PoolingInput:
    """One text, or a pair of texts that was written as one."""

    tokens: Tokens
    second: int | None = None  # where the second text of a pair begins, for models that tell them apart

    @property
    def length(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class PoolingRequest:
    """The inputs of one client's request."""

    inputs: tuple[PoolingInput, ...]
    request_id: str
    salt: bytes = b""  # whose it is
    share: ClientShare = EVERYBODY

    @property
    def answers(self) -> int:
        return len(self.inputs)

    @property
    def tokens(self) -> int:
        return sum(one.length for one in self.inputs)


@dataclass(frozen=True, slots=True, eq=False)
class PooledInput:
    """What became of one input: a vector of floats, or why there is none."""

    request_id: str
    index: int  # among the inputs of its request
    vector: np.ndarray | None
    error: str = ""

    @property
    def completion(self) -> PooledInput:
        return self
