"""A small engine that knows nothing of Brim: weights, a pool of KV blocks, requests, steps that take memory.

It stands for anybody's engine in tests and in docs/authors.md, where an adapter makes it sizable and rescuable. It is
honest: every byte is allocated on a `FakeDevice`, a token's KV is written to the pool by the step that computes it, and
an answer is computed from what is in the pool. A step that is counted and did not run, or blocks that two requests
share, change answers.

What it does not have: concurrency. A step has ended when `run` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field

from brim.testing.device import FakeDevice, FakeTensor
from brim.units import ceil_div

VOCABULARY = 50_021
_EMPTY = -1  # of a place in the pool that no token was written to


@dataclass(slots=True, eq=False)
class FakeRequest:
    """A request: its prompt, the answer so far, and its blocks."""

    id: Hashable
    prompt: tuple[int, ...]
    answer_tokens: int  # that it is to draw
    step_bytes: int = 0  # that every step of it takes in addition: a request that may not fit
    answer: list[int] = field(default_factory=list)
    computed: int = 0  # tokens whose KV is in the pool
    blocks: list[int] = field(default_factory=list)
    error: str = ""

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.answer)

    @property
    def most_tokens(self) -> int:
        """Whose KV it will have: the last token is drawn, and not computed."""
        return len(self.prompt) + self.answer_tokens - 1

    def token(self, position: int) -> int:
        return (self.prompt + tuple(self.answer))[position]


Batch = list[tuple[FakeRequest, int]]  # each request of a step, and how many of its tokens are computed


class FakeEngine:
    """Loaded when it is made; it serves once it has a pool."""

    def __init__(
        self,
        device: FakeDevice,
        *,
        weights_bytes: int = 64 * 1024,
        token_bytes: int = 512,  # of KV
        activation_bytes: int = 1024,  # of a step, for each of its tokens
        block_tokens: int = 4,
        max_batch: int = 4,
        max_batch_tokens: int = 32,
    ) -> None:
        self.device = device
        self.token_bytes = token_bytes
        self.activation_bytes = activation_bytes
        self.block_tokens = block_tokens
        self.max_batch = max_batch
        self.max_batch_tokens = max_batch_tokens
        self.may_start: Callable[[FakeRequest], bool] = self._has_blocks  # whether a waiting request starts now
        self.waiting: list[FakeRequest] = []
        self.running: list[FakeRequest] = []
        self.finished: dict[Hashable, FakeRequest] = {}
        self.free_blocks: list[int] = []
        self.blocks = 0
        self._weights = device.allocate(weights_bytes, "weights")
        self._pool: FakeTensor | None = None
        self._kv: list[int] = []  # what the pool holds, by place

    # -- memory --------------------------------------------------------------------------------------------------

    def pool_bytes(self, blocks: int) -> int:
        return blocks * self.block_tokens * self.token_bytes

    def make_pool(self, blocks: int) -> None:
        self._pool = self.device.allocate(self.pool_bytes(blocks), "KV pool")
        self.blocks, self.free_blocks = blocks, list(range(blocks))
        self._kv = [_EMPTY] * (blocks * self.block_tokens)

    def free_pool(self) -> None:
        """Also where there is none. What was computed is lost; requests that ran will be recomputed."""
        self._pool, self.blocks, self.free_blocks, self._kv = None, 0, [], []
        for request in self.running:
            request.computed, request.blocks = 0, []

    # -- requests ------------------------------------------------------------------------------------------------

    def submit(self, request: FakeRequest) -> None:
        self.waiting.append(request)

    def find(self, request_id: Hashable) -> FakeRequest:
        return next(one for one in (*self.running, *self.waiting) if one.id == request_id)

    def finish(self, request: FakeRequest, error: str = "") -> None:
        """End a request; its blocks are free again."""
        request.error = error
        (self.running if request in self.running else self.waiting).remove(request)
        self.free_blocks += request.blocks
        request.blocks = []
        self.finished[request.id] = request

    def _has_blocks(self, request: FakeRequest) -> bool:
        """Whether all that run, and this one, can have their last tokens."""
        wanted = sum(ceil_div(one.most_tokens, self.block_tokens) for one in (*self.running, request))
        return wanted <= self.blocks

    # -- steps ---------------------------------------------------------------------------------------------------

    def schedule(self, max_tokens: int, only: Collection[Hashable] | None = None) -> Batch:
        """The next step: some tokens of requests that run. Requests start where they may. Nothing is reserved."""
        while self.waiting and len(self.running) < self.max_batch and self.may_start(self.waiting[0]):
            self.running.append(self.waiting.pop(0))
        batch: Batch = []
        for request in self.running:
            tokens = min(request.length - request.computed, max_tokens)
            if tokens and (only is None or request.id in only):
                batch.append((request, tokens))
                max_tokens -= tokens
        return batch

    def run(self, batch: Batch) -> None:
        """Compute a step and count it. If it raises, some requests have blocks that they do not need yet: `release`."""
        for request, tokens in batch:
            while len(request.blocks) * self.block_tokens < request.computed + tokens:
                request.blocks.append(self.free_blocks.pop())
        tokens_of_step = sum(tokens for _, tokens in batch)
        activation = self.device.allocate(tokens_of_step * self.activation_bytes, "activation")
        extra = [self.device.allocate(request.step_bytes, "extra") for request, _ in batch if request.step_bytes]
        logits = self.device.allocate(len(batch) * self.activation_bytes, "logits")
        for request, tokens in batch:
            self._compute(request, tokens)
        del activation, extra, logits

    def release(self, batch: Batch) -> None:
        """Free the blocks of a step that did not run."""
        for request, _ in batch:
            while len(request.blocks) > ceil_div(request.computed, self.block_tokens):
                self.free_blocks.append(request.blocks.pop())

    def _compute(self, request: FakeRequest, tokens: int) -> None:
        for position in range(request.computed, request.computed + tokens):
            self._kv[self._place(request, position)] = request.token(position)
        request.computed += tokens
        if request.computed == request.length:
            request.answer.append(self._drawn(request))
        if len(request.answer) == request.answer_tokens:
            self.finish(request)

    def _drawn(self, request: FakeRequest) -> int:
        """The next token, from the KV of all tokens before it."""
        found = 0
        for position in range(request.length):
            found = (found * 31 + self._kv[self._place(request, position)] + 7) % VOCABULARY
        return found

    def _place(self, request: FakeRequest, position: int) -> int:
        block, offset = divmod(position, self.block_tokens)
        return request.blocks[block] * self.block_tokens + offset
