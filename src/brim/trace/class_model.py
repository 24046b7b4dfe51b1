"""A family that Brim has no reader for, read from its `transformers` class: built on the meta device and run once.

In: the dict of a config.json. Out: a language model with its towers. Parameters are those of the class, and caches are
what its decoder leaves in one after a few tokens. What a class does not say is not known here: how tensor parallelism
splits its projections (they are cut anywhere), and the inner widths of layers that do not attend.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from brim.errors import CannotTrace, UnsupportedModel
from brim.install import install_command
from brim.model.architectures import generates
from brim.model.families.common import TextModelSpec
from brim.model.families.multimodal import Multimodal
from brim.model.transformers_classes import is_encoder, missing_library
from brim.records.model import FeedForward, LayerSpec, MediaLimits, MediaType, Tensor, TowerSpec
from brim.trace.attention import FUSED
from brim.trace.build import build_model
from brim.trace.class_caches import LayerCaches, caches_by_config, find_caches, stated

if TYPE_CHECKING:
    import torch

CacheReader = Callable[[Any, Any, Any, int], tuple[LayerCaches, ...]]

_VISION = re.compile(r"vis(ion|ual)|image|pixel|video|qformer|perceiver|resampler|connector|align|merger|abstractor")
_AUDIO = re.compile(r"audio|speech|acoustic|codec|sound|whisper|wav|feature_extract")
_PROJECTOR = re.compile(r"project|adapt|embed_(vision|audio)|newline")
_ATTENTION = re.compile(r"attn|attention|mamba|mixer|conv|rnn|ssm")
_UNNAMED_CONTEXT = 131072  # tokens, where neither the config nor its class names the longest context
_CONTEXT_FIELDS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_target_positions",
    "seq_length",
    "context_length",
)


def read_from_class(config: Mapping[str, Any]) -> Multimodal:
    """The model that the installed `transformers` builds from a config."""
    kind = str(config.get("model_type", ""))[:60]
    missing = missing_library()
    if missing is not None:
        raise UnsupportedModel(
            f"config field 'model_type': {kind!r} is not a family that Brim reads by itself; to read it from its "
            f"transformers class, install {missing}: {install_command('engine')}"
        )
    ways: tuple[Callable[[], Multimodal], ...] = (
        lambda: _built(config, FUSED, find_caches),
        lambda: _built(config, "sdpa", find_caches),  # classes that call their attention, or read its mask, themselves
        lambda: _built(config, "sdpa", _without_running),
    )
    failed: CannotTrace | None = None
    for way in ways:
        try:
            return way()
        except CannotTrace as error:
            failed = failed if way is ways[-1] else error  # the last way is a way out: why it was taken says more
    raise UnsupportedModel(
        f"config field 'model_type': {kind!r} is not a supported family (`brim models --families` lists those), and "
        f"cannot be read from its transformers class either: {failed}"
    )


def _without_running(model: Any, decoder: Any, settings: Any, layers: int) -> tuple[LayerCaches, ...]:
    """What engines would keep of a decoder that needs more than tokens to run."""
    return caches_by_config(decoder, settings, layers)


def _built(config: Mapping[str, Any], attention: str, read_caches: CacheReader) -> Multimodal:
    model, _ = build_model(config, "bf16", attention, by_architecture=True)
    named = (config.get("architectures") or [""])[0]
    if is_encoder(model.config.model_type, model.config) and named and not generates(str(named)):
        raise UnsupportedModel(
            f"config field 'model_type': {model.config.model_type!r} is an encoder, not a generative model; it has no "
            "KV cache to plan"
        )
    decoder = find_decoder(model)
    settings = decoder.config.get_text_config(decoder=True)
    layers_name, modules = _layers_of(model, decoder)
    parameters = dict(_tensors(model, settings))
    inside = [_under(parameters, f"{layers_name}.{index}.") for index in range(len(modules))]
    caches = read_caches(model, decoder, settings, len(modules))
    outer = {name: one for name, one in parameters.items() if not name.startswith(f"{layers_name}.")}
    towers, rest = _split_towers(outer, model, decoder)
    text = TextModelSpec(
        hidden=_first(settings, ("hidden_size", "d_model", "n_embd")) or 1,
        vocab=_first(settings, ("vocab_size",)) or 1,
        max_positions=_first(settings, _CONTEXT_FIELDS) or _UNNAMED_CONTEXT,
        layers=_shared([_layer(tensors, kept, settings) for tensors, kept in zip(inside, caches, strict=True)]),
        tensors=tuple(rest.values()),
    )
    return Multimodal(text, towers, tuple(_notes(type(model).__name__, text, towers, settings)))


def find_decoder(model: Any) -> Any:
    """The part of a model that generates text: below a thinker, a composite or a head."""
    found = getattr(model, "thinker", model)
    for _ in range(4):
        inner = found.get_decoder()
        if inner is found or not hasattr(inner, "get_decoder"):
            break
        found = inner
    return found.base_model if found is model else found


def _layers_of(model: Any, decoder: Any) -> tuple[str, Any]:
    """(name, list) of the decoder's layers: of its lists of modules the one with the most parameters."""
    import torch

    prefix = next(name for name, module in model.named_modules() if module is decoder)
    lists: dict[str, Any] = {}
    for name, module in decoder.named_modules():
        if isinstance(module, torch.nn.ModuleList) and not any(name.startswith(f"{outer}.") for outer in lists):
            lists[name] = module
    if not lists:
        raise UnsupportedModel(f"the class {type(model).__name__} has no list of layers that Brim could plan")
    name = max(lists, key=lambda one: sum(parameter.numel() for parameter in lists[one].parameters()))
    return (f"{prefix}.{name}" if prefix else name), lists[name]


def _under(tensors: Mapping[str, Tensor], prefix: str) -> tuple[Tensor, ...]:
    return tuple(
        replace(one, name=one.name.removeprefix(prefix)) for name, one in tensors.items() if name.startswith(prefix)
    )


def _tensors(model: Any, settings: Any) -> Iterator[tuple[str, Tensor]]:
    """Every parameter once, with the matrices of linear modules and of stacked experts marked."""
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        owner, _, own = name.rpartition(".")
        yield name, _tensor(owner, own, modules[owner], parameter, settings)


def _tensor(owner: str, own: str, module: Any, parameter: torch.Tensor, settings: Any) -> Tensor:
    import torch

    shape = tuple(parameter.shape) or (1,)
    if own == "weight" and (isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"):
        return Tensor(owner, shape, _units(owner, settings), linear=True)
    if len(shape) == 3 and "expert" in f"{owner}.{own}":
        return Tensor(f"{owner}.{own}", shape[1:], 0, linear=True, count=shape[0])
    if isinstance(module, torch.nn.Embedding):
        return Tensor(owner, shape, 0)
    return Tensor(owner if own == "weight" else f"{owner}.{own}", shape, 1)


def _units(name: str, settings: Any) -> int:
    """How a projection is divided among ranks: by heads where it is one of attention's, else anywhere."""
    heads = _first(settings, ("num_attention_heads",)) or 0
    if name.endswith(("q_proj", "o_proj")):
        return heads
    if name.endswith(("k_proj", "v_proj")):
        return _first(settings, ("num_key_value_heads",)) or heads
    return 0


def _split_towers(
    outer: Mapping[str, Tensor], model: Any, decoder: Any
) -> tuple[tuple[TowerSpec, ...], dict[str, Tensor]]:
    """(towers, what is left): modules outside the decoder that see images or hear."""
    own = {id(parameter) for parameter in decoder.parameters()}
    speaks = model.main_input_name == "input_features" or "audio" in str(getattr(model, "input_modalities", ""))
    found: dict[MediaType, dict[str, Tensor]] = {MediaType.IMAGE: {}, MediaType.AUDIO: {}}
    for name, parameter in model.named_parameters():
        if name not in outer or id(parameter) in own:
            continue
        media = _media(name, hears=speaks, encoder=".encoder." in f".{name}")
        if media is not None:
            found[media][name] = outer[name]
    taken = {name for tensors in found.values() for name in tensors}
    towers = tuple(_tower(media, tuple(tensors.values()), model) for media, tensors in found.items() if tensors)
    return towers, {name: one for name, one in outer.items() if name not in taken}


def _media(name: str, *, hears: bool, encoder: bool) -> MediaType | None:
    lowered = name.lower()
    if _AUDIO.search(lowered) or (hears and encoder):
        return MediaType.AUDIO
    if _VISION.search(lowered) or _PROJECTOR.search(lowered):
        return MediaType.AUDIO if hears and not _VISION.search(lowered) else MediaType.IMAGE
    return None


def _tower(media: MediaType, tensors: tuple[Tensor, ...], model: Any) -> TowerSpec:
    """A tower with the widths its config states under the usual names; 0 where it does not."""
    name = "vision_config" if media is MediaType.IMAGE else "audio_config"
    own = getattr(model.config, name, None) or getattr(getattr(model.config, "thinker_config", None), name, None)
    width = _first(own, ("hidden_size", "embed_dim", "d_model")) or 0
    patch, image = _first(own, ("patch_size",)) or 0, _first(own, ("image_size",)) or 0
    known = bool(width and patch and image >= patch)
    return TowerSpec(
        media=media,
        hidden=width if known else 0,
        intermediate=_first(own, ("intermediate_size", "mlp_dim", "encoder_ffn_dim")) or 4 * width if known else 0,
        layers=_first(own, ("num_hidden_layers", "depth", "encoder_layers")) or 0,
        heads=_first(own, ("num_attention_heads", "num_heads", "encoder_attention_heads")) or 1,
        tensors=tensors,
        limits=MediaLimits("one image of the tower's size", tile_pixels=image * image, max_tiles=1)
        if known
        else MediaLimits("not known for this family"),
        pixels_per_patch=patch * patch if known else 1,
        output=width if known else 0,
    )


def _layer(tensors: tuple[Tensor, ...], kept: LayerCaches, settings: Any) -> LayerSpec:
    return LayerSpec(kept.mixer, _feed_forward(tensors, settings), tensors, kept.kv, kept.state)


def _feed_forward(tensors: tuple[Tensor, ...], settings: Any) -> FeedForward | None:
    """The widths of what is not attention, from the matrices there are."""
    matrices = [one for one in tensors if one.linear and not _ATTENTION.search(one.name)]
    experts = [one for one in matrices if one.count > 1]
    dense = [one for one in matrices if one.count == 1 and one.shape[0] > 1]
    if not matrices:
        return None
    gated = any("gate" in one.name for one in matrices)
    hidden = _first(settings, ("hidden_size", "d_model", "n_embd")) or 1
    widths = [side for one in dense for side in one.shape if side != hidden]
    inner = [side for one in experts for side in one.shape if side != hidden]
    count = max((one.count for one in experts), default=0)
    visited = _first(settings, ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k")) or 1
    return FeedForward(
        intermediate=max(widths, default=0),
        gated=gated,
        experts=count,
        top_k=min(visited, count) if count else 0,
        expert_intermediate=min(inner, default=0),
        expert_hidden=hidden if count else 0,
        expert_gated=gated,
    )


def _shared(layers: list[LayerSpec]) -> tuple[LayerSpec, ...]:
    """Equal layers as one record."""
    made: dict[LayerSpec, LayerSpec] = {}
    return tuple(made.setdefault(one, one) for one in layers)


def _first(settings: Any, names: tuple[str, ...]) -> int | None:
    """The first of the fields that holds a positive number; of a list its first entry."""
    for name in names:
        value = stated(settings, name)
        if isinstance(value, (list, tuple)) and value:
            value = value[0]
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _notes(name: str, text: TextModelSpec, towers: tuple[TowerSpec, ...], settings: Any) -> Iterator[str]:
    yield f"read from the transformers class {name}, which Brim has no reader for: activations are by its widths"
    if any(layer.state and layer.mixer is None for layer in text.layers):
        yield "what its recurrent layers hold while they run is not counted; --trace finds it out"
    if any(not tower.hidden for tower in towers):
        yield "what its tower holds while it runs is not counted: the config does not say how wide it is"
    if _first(settings, _CONTEXT_FIELDS) is None:
        yield f"the config names no longest context: {_UNNAMED_CONTEXT:,} tokens are taken"
