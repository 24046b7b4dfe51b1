"""What the layers of a `transformers` decoder keep, found by running it once on a few tokens of the meta device.

In: a model, its decoder and the number of its layers. Out: for every layer its caches, and the attention that fills
them. Keys and values are told from states by the kinds of cache layers that `transformers` has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from brim.errors import CannotTrace, first_line
from brim.records.model import Attention, Dtype, KvCache, LatentAttention, Mixer, StateCache
from brim.trace.watch import StorageWatch, watching

if TYPE_CHECKING:
    import torch

_TOKENS, _ENCODED = 3, 5  # of a request, and positions that an encoder hands over
_RECURRENT = ("Mamba", "Mixer", "Delta", "Recurrent", "LinearAttention", "ShortConv", "Rwkv", "LSTM")
_ENCODER_POSITIONS = ("max_source_positions", "encoder_max_position_embeddings", "max_position_embeddings")


@dataclass(slots=True)
class LayerCaches:
    """What a layer keeps, and the attention that fills it."""

    mixer: Mixer | None = None
    kv: tuple[KvCache, ...] = ()
    state: tuple[StateCache, ...] = field(default=())


def find_caches(model: Any, decoder: Any, settings: Any, layers: int) -> tuple[LayerCaches, ...]:
    """The caches of every layer. Where a decoder keeps several per layer, a layer has all of its own."""
    output = _run(model, decoder, settings)
    found = [LayerCaches() for _ in range(layers)]
    own, crossing = _parts(output)
    for index, cache in enumerate(own):
        _add(found[index * layers // max(len(own), layers)], _read(cache, settings))
    positions = _encoder_positions(model)
    for index, cache in enumerate(crossing):
        _add(found[min(index, layers - 1)], _read_crossing(cache, positions))
    for tensor in _loose_states(output):
        _add(found[0], LayerCaches(state=(_state("recurrent", tensor),)))
    if not any(one.kv or one.state for one in found):
        return caches_by_config(decoder, settings, layers)
    return tuple(found)


def stated(settings: Any, name: str) -> Any:
    """A field of a config object; None where it has none, or one for every layer."""
    try:
        return getattr(settings, name, None)
    except RuntimeError:  # transformers' way to say that layers differ in it
        return None


def _run(model: Any, decoder: Any, settings: Any) -> Any:
    import torch

    ids = torch.empty((1, _TOKENS), dtype=torch.long, device="meta")
    options: dict[str, Any] = {"use_cache": True}
    if _reads_an_encoder(model):
        width = _encoder_width(model, settings)
        options["encoder_hidden_states"] = torch.empty((1, _ENCODED, width), dtype=torch.bfloat16, device="meta")
    attempts = ((decoder, options), (model, {"use_cache": True}))
    for number, (part, given) in enumerate(attempts):
        try:
            with torch.no_grad(), torch.device("meta"), watching(StorageWatch(())):
                return part(input_ids=ids, **given)
        except Exception as error:  # whatever the class's own code raises
            if number == len(attempts) - 1:
                raise CannotTrace(
                    f"{type(decoder).__name__} cannot be run on the meta device: {first_line(error)}"
                ) from error
    return None


def _reads_an_encoder(model: Any) -> bool:
    return bool(model.config.is_encoder_decoder or hasattr(model.config, "decoder"))


def _encoder_width(model: Any, settings: Any) -> int:
    own = getattr(settings, "cross_attention_hidden_size", None) or getattr(settings, "encoder_hidden_size", None)
    return int(own or getattr(settings, "hidden_size", None) or settings.d_model)


def _encoder_positions(model: Any) -> int:
    """The most positions that an encoder hands over."""
    for place in (model.config, getattr(model.config, "encoder", None), model.config.get_text_config()):
        for name in _ENCODER_POSITIONS:
            value = getattr(place, name, None)
            if isinstance(value, int) and value > 0:
                return value
    return 1500  # half a minute of audio at the rate of Whisper


def _parts(output: Any) -> tuple[list[Any], list[Any]]:
    """(caches of the decoder's own tokens, caches of an encoder's)."""
    cache = getattr(output, "past_key_values", None)
    cache = getattr(output, "cache_params", None) if cache is None else cache
    if cache is None:
        return [], []
    if hasattr(cache, "self_attention_cache"):
        return list(cache.self_attention_cache.layers), list(cache.cross_attention_cache.layers)
    return list(getattr(cache, "layers", ())), []


def _read(cache: Any, settings: Any) -> LayerCaches:
    import torch

    kept = LayerCaches()
    keys, values = getattr(cache, "keys", None), getattr(cache, "values", None)
    if isinstance(keys, torch.Tensor) and isinstance(values, torch.Tensor) and keys.dim() == 4:
        kept = _attention(keys, values, getattr(cache, "sliding_window", None), settings)
    index = getattr(cache, "indexer_keys", None)
    if isinstance(index, torch.Tensor) and index.numel():
        kept.kv += (KvCache("index", 1, index.shape[-1]),)
    for kind, name in (("conv", "conv_states"), ("recurrent", "recurrent_states")):
        states = getattr(cache, name, None)
        tensors = states.values() if isinstance(states, dict) else (states,)
        kept.state += tuple(_state(kind, one) for one in tensors if isinstance(one, torch.Tensor))
    return kept


def _attention(keys: Any, values: Any, window: int | None, settings: Any) -> LayerCaches:
    kv_heads, key_dim, value_dim = keys.shape[1], keys.shape[-1], values.shape[-1]
    heads = getattr(settings, "num_attention_heads", None)
    heads = heads if isinstance(heads, int) and heads >= kv_heads else kv_heads
    rank, rope = getattr(settings, "kv_lora_rank", None), getattr(settings, "qk_rope_head_dim", None)
    if rank and rope and window is None and key_dim > rope:
        latent = KvCache("latent", 1, rank + rope, expanded_heads=heads, expanded_elements=key_dim + value_dim)
        q_rank = getattr(settings, "q_lora_rank", None)
        return LayerCaches(LatentAttention(heads, q_rank, rank, key_dim - rope, rope, value_dim), (latent,))
    cache = KvCache("sliding" if window else "full", kv_heads, key_dim + value_dim, window)
    return LayerCaches(Attention(heads, kv_heads, key_dim, value_dim, window=window), (cache,))


def _read_crossing(cache: Any, positions: int) -> LayerCaches:
    """Keys and values of what an encoder handed over: as many as it has positions, whatever the request's length."""
    if getattr(cache, "keys", None) is None:
        return LayerCaches()
    elements = cache.keys.shape[-1] + cache.values.shape[-1]
    return LayerCaches(kv=(KvCache("image", cache.keys.shape[1], elements, window=positions),))


def _state(kind: str, tensor: torch.Tensor) -> StateCache:
    import torch

    wide = tensor.dtype == torch.float32
    return StateCache(kind, tensor.numel(), Dtype.FP32 if wide else None, units=0)


def _loose_states(output: Any) -> Iterator[torch.Tensor]:
    """States that a class returns by themselves, or in a cache of its own (RWKV, xLSTM)."""
    import torch
    from torch.utils._pytree import tree_leaves

    cache = getattr(output, "cache_params", None)
    if not hasattr(cache, "layers"):
        held = [getattr(output, "state", None), getattr(cache, "rnn_state", None)]
        yield from (leaf for leaf in tree_leaves(held) if isinstance(leaf, torch.Tensor))


def _add(to: LayerCaches, more: LayerCaches) -> None:
    to.mixer = to.mixer or more.mixer
    to.kv += more.kv
    to.state += more.state


def _recurs(decoder: Any) -> bool:
    """Whether a decoder has layers that keep a state, which no config describes in the same way twice."""
    return any(word in type(module).__name__ for module in decoder.modules() for word in _RECURRENT)


def caches_by_config(decoder: Any, settings: Any, layers: int) -> tuple[LayerCaches, ...]:
    """Keys and values by heads, where a class keeps nothing by itself (GPT-1) or cannot be run without its inputs."""
    from transformers import DynamicCache

    if _recurs(decoder):
        raise CannotTrace("its decoder cannot be run by itself, and its layers do not all attend")
    heads, width = stated(settings, "num_attention_heads"), stated(settings, "hidden_size")
    if not isinstance(heads, int) or not isinstance(width, int):
        raise CannotTrace("its decoder cannot be run by itself, and its config does not say how many heads attend")
    try:
        kv_heads = getattr(settings, "num_key_value_heads", None) or heads
        dim = getattr(settings, "head_dim", None) or width // heads
        windows = [getattr(one, "sliding_window", None) for one in DynamicCache(config=settings).layers]
    except (AttributeError, RuntimeError, ValueError) as error:  # layers that differ one by one, or odd fields
        raise CannotTrace(f"its decoder cannot be run by itself: {first_line(error)}") from error
    windows += [None] * (layers - len(windows))
    return tuple(
        LayerCaches(
            Attention(heads, kv_heads, dim, dim, window=window),
            (KvCache("sliding" if window else "full", kv_heads, 2 * dim, window),),
        )
        for window in windows[:layers]
    )
