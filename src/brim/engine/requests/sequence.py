"""A request in the scheduler: its tokens, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from brim.engine.kv.host import HostCopy
from brim.engine.kv.prefix_matches import PrefixMatch
from brim.engine.kv.request_blocks import RequestBlocks
from brim.engine.requests.grammar import Constraint
from brim.engine.requests.request import FinishReason, Request
from brim.guard.shares import Account


@dataclass(slots=True, eq=False)
class Sequence:
    """A waiting or running request. Only the scheduler writes to it."""

    request: Request
    tokens: list[int]
    computed: int = 0  # tokens whose keys and values are in the pool, or will be after the launched steps
    unseen: int = 0  # tokens sampled in a launched step and not read back yet
    slot: int | None = None
    blocks: RequestBlocks | None = None
    drawn_on_device: bool = False  # the last token is in the device's own row for this slot
    digests: list[bytes] = field(default_factory=list)
    reused: int = 0  # prompt tokens found in the prefix cache
    preemptions: int = 0
    snapshot: int | None = None  # the row that keeps its recurrent state of before its last drafted tokens
    passed: int = 0  # requests that came later and started before it
    account: Account | None = None  # of its share, once it was submitted
    finish: FinishReason | None = None
    finding: PrefixMatch | None = None  # while it waits: its blocks in the pools, when they were last looked up
    host_copy: HostCopy | None = None  # while it waits: what it had computed when it was preempted
    constraint: Constraint | None = None  # which knows all tokens that have been read
    # Needed of every request in every step, computed once.
    prompt_length: int = field(init=False)
    longest: int = field(init=False)  # its length when no token is left to draw
    needs_history: bool = field(init=False)
    speculated: bool = field(init=False)  # tokens may be drafted for it
    stepwise: bool = field(init=False)  # its constraint must know a token before the next is drawn

    def __post_init__(self) -> None:
        self.prompt_length = len(self.request.prompt)
        self.longest = self.prompt_length + self.request.max_tokens
        self.needs_history = self.request.params.needs_history
        self.stepwise = self.constraint is not None and not self.constraint.fixed
        # What a penalty or a grammar does to a token depends on those before it, and drafted ones may not stand.
        self.speculated = self.request.params.speculate and not self.needs_history and self.constraint is None

    @property
    def length(self) -> int:
        """All tokens, those still on the device included."""
        return len(self.tokens) + self.unseen

    @property
    def generated(self) -> int:
        return self.length - self.prompt_length

    @property
    def complete(self) -> bool:
        """No token is left to draw."""
        return self.length >= self.longest

    @property
    def waits_to_be_read(self) -> bool:
        """Its constraint must know the token that the device is drawing before the next one is drawn."""
        return self.stepwise and self.unseen > 0

    @property
    def decoding(self) -> bool:
        """Only its last token is uncomputed, and the device knows which it is."""
        return self.drawn_on_device and self.computed == self.length - 1
