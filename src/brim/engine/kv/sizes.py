"""From KV tokens to blocks and bytes: the size of a pool, before there is one.

In: what layers store for a token, and how many requests and tokens a step may have. Out: blocks of each group of
layers, bytes, and how long a request may become. Knows nothing of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from brim.engine.kv.geometry import KvShape, LayerGroup, pool_shape
from brim.engine.settings import EngineSettings
from brim.units import round_up


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """The pool of a model at any number of KV tokens."""

    groups: tuple[LayerGroup, ...]
    settings: EngineSettings
    max_length: int
    element_bytes: int
    state_bytes: int  # recurrent states of all slots; 0: the model has none
    draft: PoolSizes | None = None  # of a model that drafts for this one

    def shape(self, kv_tokens: int) -> KvShape:
        settings = self.settings
        return pool_shape(
            self.groups,
            kv_tokens,
            settings.block_size,
            settings.max_batch,
            settings.max_batch_tokens,
            cached_from=self.running_tokens if self.reuses_prefixes else None,
        )

    @property
    def running_tokens(self) -> int:
        """KV tokens that running requests can hold at most: a full batch, each as long as a request may be."""
        return self.settings.max_batch * round_up(self.max_length, self.settings.block_size)

    @property
    def reuses_prefixes(self) -> bool:
        """Whether the pool is also a prefix cache. Recurrent states in the middle of a prompt are not stored."""
        return self.settings.reuse_prefixes and not self.state_bytes

    def kv_bytes(self, kv_tokens: int) -> int:
        """What a pool of so many tokens takes, and that of the draft model beside it."""
        draft_bytes = 0 if self.draft is None else self.draft.kv_bytes(self.draft_tokens(kv_tokens))
        return self.shape(kv_tokens).bytes(self.groups, self.element_bytes) + draft_bytes

    def draft_tokens(self, kv_tokens: int) -> int:
        """KV tokens of the draft model: all that requests with drafts may hold."""
        assert self.draft is not None
        return min(kv_tokens, self.draft.running_tokens)

    def held_bytes(self, start: int, end: int, length: int) -> int:
        """What tokens [start, end) of a request of this length hold; of a window only those that it still sees."""
        tokens = 0
        for group in self.groups:
            first = 0 if group.window is None else max(0, length - group.window)
            tokens += max(0, end - max(start, first)) * group.elements_per_token
        return tokens * self.element_bytes

    def tokens_one_request_can_hold(self, kv_tokens: int) -> int:
        """The longest request that every pool can hold, in addition to the tokens of a step."""
        shape = self.shape(kv_tokens)
        lengths = []
        for group, blocks in zip(self.groups, shape.blocks, strict=True):
            tokens = blocks * shape.block_size
            if group.window is not None and tokens >= group.window + self.settings.max_batch_tokens + shape.block_size:
                continue  # a window holds a request of any length
            lengths.append(tokens)
        return min(lengths, default=self.max_length)
