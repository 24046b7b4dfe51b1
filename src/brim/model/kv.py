"""What requests keep between steps: KV bytes by layer kind, and recurrent state.

In: a spec, the KV type, how many ranks share it, and what an engine stores where it stores more than the model needs.
Out: `KvFootprint`, which turns a request's length into bytes exactly, without rounding to blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from brim.model.weights import on_rank
from brim.records.model import Dtype, KvCache, LatentAttention, LayerSpec, ModelSpec
from brim.units import ceil_div

_SCALE_BYTES = 4  # one fp32 scale for the keys and one for the values of a layer
_PACKED_VALUES = 128  # fp8 values that share an fp32 scale in packed latents and in an indexer's keys
_Q8_0_VALUES, _Q8_0_BYTES = 32, 34  # a block of GGUF's q8_0: 32 bytes and an fp16 scale


@dataclass(frozen=True, slots=True)
class KvStorage:
    """How an engine stores KV. The defaults are the model's own minimum.

    `keeps_window` frees sliding layers behind the window, with `window_slack` tokens more than the window;
    `keeps_latent` stores MLA's latent instead of per-head keys and values. `packed_sparse` stores an indexer's keys in
    fp8 whatever the type of the cache, with an fp32 scale for every 128 of them; and an fp8 latent beside an indexer
    with such scales and its rotary part in 16 bits. `q8_0` stores int8 in GGUF's blocks of 32 values and a scale.
    """

    keeps_window: bool = True
    window_slack: int = 0
    keeps_latent: bool = True
    packed_sparse: bool = False
    q8_0: bool = False


MINIMUM = KvStorage()


@dataclass(frozen=True, slots=True)
class KvKind:
    """The layers of one kind, together: bytes of an entry, the tokens kept at most, and the tokens of an entry.

    An entry is a token, several that are compressed into one, or a block where an engine's blocks are not filled.
    """

    kind: str
    layers: int
    bytes_per_token: int
    window: int | None
    stride: int

    def bytes_at(self, tokens: int) -> int:
        kept = tokens if self.window is None else min(tokens, self.window)
        return ceil_div(kept, self.stride) * self.bytes_per_token


@dataclass(frozen=True, slots=True)
class KvFootprint:
    """What one request keeps on a rank, and what the cache needs once."""

    kinds: tuple[KvKind, ...]
    state_bytes_per_request: int
    scale_bytes: int
    dtype: Dtype

    @property
    def bytes_per_token(self) -> int:
        """What a token takes in all layers that keep it, while it is inside every window."""
        return int(sum(Fraction(kind.bytes_per_token, kind.stride) for kind in self.kinds))

    def kv_bytes(self, tokens: int) -> int:
        """KV of a request of so many tokens."""
        return sum(kind.bytes_at(tokens) for kind in self.kinds)

    def request_bytes(self, tokens: int) -> int:
        """KV and state of a request of so many tokens."""
        return self.kv_bytes(tokens) + self.state_bytes_per_request


def kv_footprint(spec: ModelSpec, dtype: Dtype, tensor_parallel: int = 1, storage: KvStorage = MINIMUM) -> KvFootprint:
    """KV and state of one request, on the fullest rank."""
    gathered: dict[tuple[str, int | None, int], list[int]] = {}
    caches = 0
    for layer, count in spec.layer_groups:
        for cache in layer.kv:
            window = _stored_window(cache, storage)
            entry = gathered.setdefault((cache.kind, window, cache.stride), [0, 0])
            entry[0] += count
            entry[1] += count * _bytes_per_token(layer, cache, dtype, tensor_parallel, storage)
            caches += count
    kinds = tuple(
        KvKind(kind, layers, size, window, stride) for (kind, window, stride), (layers, size) in gathered.items()
    )
    return KvFootprint(
        kinds=kinds,
        state_bytes_per_request=_state_bytes(spec, tensor_parallel),
        scale_bytes=2 * caches * _SCALE_BYTES if dtype.bytes == 1 and not storage.q8_0 else 0,
        dtype=dtype,
    )


def _stored_window(cache: KvCache, storage: KvStorage) -> int | None:
    if cache.window is None or cache.kind == "image":
        return cache.window
    return cache.window + storage.window_slack if storage.keeps_window else None


def _bytes_per_token(layer: LayerSpec, cache: KvCache, dtype: Dtype, ranks: int, storage: KvStorage) -> int:
    """What an entry of a cache takes on a rank: elements, and scales where they are stored between them."""
    elements = _elements_per_token(cache, ranks, storage)
    if storage.packed_sparse and cache.kind == "index":
        return _with_scales(elements)
    if storage.packed_sparse and dtype is Dtype.FP8 and cache.kind == "latent":
        mixer = layer.mixer
        if isinstance(mixer, LatentAttention) and mixer.index_heads:
            return _with_scales(mixer.kv_rank) + mixer.rope_dim * Dtype.BF16.bytes
    if storage.q8_0 and dtype is Dtype.INT8:
        return ceil_div(elements, _Q8_0_VALUES) * _Q8_0_BYTES
    return elements * dtype.bytes


def _with_scales(elements: int) -> int:
    return elements + ceil_div(elements, _PACKED_VALUES) * _SCALE_BYTES


def _elements_per_token(cache: KvCache, ranks: int, storage: KvStorage) -> int:
    """Elements a rank keeps: heads are split, and replicated when there are fewer heads than ranks."""
    heads, elements = cache.heads, cache.elements_per_head
    if not storage.keeps_latent and cache.expanded_heads and cache.expanded_elements:
        heads, elements = cache.expanded_heads, cache.expanded_elements
    return on_rank(heads, heads, ranks) * elements


def _state_bytes(spec: ModelSpec, ranks: int) -> int:
    return sum(
        count * on_rank(state.elements * (state.dtype or spec.dtype).bytes, state.units, ranks)
        for layer, count in spec.layer_groups
        for state in layer.state
    )
