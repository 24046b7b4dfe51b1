"""What nearly every family reads: the standard dimensions, embeddings and head, and which layers slide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brim.errors import InvalidConfig, UnsupportedModel
from brim.model.blocks import norms
from brim.model.fields import LARGEST_CONTEXT, ConfigFields
from brim.records.model import LayerSpec, Tensor

FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"
LINEAR = "linear_attention"
HEADS = "attention heads"


@dataclass(frozen=True, slots=True)
class TextModelSpec:
    """A language model, before towers and quantisation are known."""

    hidden: int
    vocab: int
    max_positions: int
    layers: tuple[LayerSpec, ...]
    tensors: tuple[Tensor, ...]
    logits_softcap: bool = False
    wide_residual: int = 1
    held_hidden: int = 0
    lent_kv_elements: int = 0
    layer_input_width: int = 0
    draft_only: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The dimensions a decoder-only transformer has in common."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    tied: bool


def read_dimensions(
    fields: ConfigFields, defaults: Mapping[str, int] | None = None, *, tied: bool = False, narrower: bool = False
) -> Dimensions:
    """The standard fields. `defaults` are the class defaults that published configs of the family rely on.

    Where heads do not divide the width and `head_dim` is not given, classes that allow it attend `narrower`.
    """
    known = defaults or {}
    hidden = fields.integer("hidden_size", default=known.get("hidden_size"))
    heads = fields.integer("num_attention_heads", default=known.get("num_attention_heads"))
    usual = heads if fields.is_null("num_key_value_heads") else known.get("num_key_value_heads", heads)
    kv_heads = fields.divisor("num_key_value_heads", of=heads, what=HEADS, default=usual)
    head_dim = fields.optional_integer("head_dim") or (None if fields.is_null("head_dim") else known.get("head_dim"))
    if head_dim is None:
        if hidden < heads or (hidden % heads and not narrower):
            raise InvalidConfig(
                fields.where("hidden_size"), f"is {hidden}, not a multiple of {heads} heads", "give head_dim"
            )
        head_dim = hidden // heads
    return Dimensions(
        hidden=hidden,
        layers=fields.layer_count("num_hidden_layers", default=known.get("num_hidden_layers")),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=fields.integer("vocab_size", default=known.get("vocab_size")),
        max_positions=read_context(fields, known.get("max_position_embeddings")),
        tied=fields.boolean("tie_word_embeddings", tied),
    )


def read_context(fields: ConfigFields, default: int | None = None) -> int:
    """The longest context the config admits."""
    return fields.integer(
        "max_position_embeddings", "model_max_length", "seq_length", default=default, maximum=LARGEST_CONTEXT
    )


def outer_tensors(hidden: int, vocab: int, tied: bool, *, norm_bias: bool = False) -> tuple[Tensor, ...]:
    """Embeddings, final norm, and the head unless it is tied to the embeddings."""
    tensors = [Tensor("model.embed_tokens", (vocab, hidden), 0), *norms(hidden, "model.norm", bias=norm_bias)]
    if not tied:
        tensors.append(Tensor("lm_head", (vocab, hidden), 0, linear=True))
    return tuple(tensors)


def layer_kinds(
    fields: ConfigFields, layers: int, allowed: tuple[str, ...] = (FULL, SLIDING)
) -> tuple[str, ...] | None:
    """The config's own `layer_types`, checked; None where it has none."""
    if "layer_types" not in fields:
        return None
    kinds = fields.per_layer("layer_types", layers)
    for kind in kinds:
        if kind not in allowed:
            raise UnsupportedModel(
                f"config field '{fields.where('layer_types')}': layer type {str(kind)[:40]!r} is not one of "
                f"{', '.join(allowed)} of this family"
            )
    return kinds


def sliding_pattern(fields: ConfigFields, layers: int, every: int) -> tuple[str, ...]:
    """Layer kinds where one layer in `every` sees everything and the others slide; none slides where it is 0."""
    given = layer_kinds(fields, layers)
    return given or tuple(FULL if not every or (index + 1) % every == 0 else SLIDING for index in range(layers))


def read_window(fields: ConfigFields, default: int | None = None) -> int | None:
    """The sliding window; None (or 0) where the config switches it off."""
    if fields.is_null("sliding_window"):
        return None
    window = fields.optional_integer("sliding_window", minimum=0, maximum=LARGEST_CONTEXT)
    return (default if window is None else window) or None


def fields_of_layers(fields: ConfigFields, layers: int, allowed: tuple[str, ...]) -> tuple[ConfigFields, ...]:
    """The config as each layer sees it: with what `per_layer_config` says of that layer, which may be no more than
    `allowed`."""
    own = fields.child("per_layer_config")
    seen = [fields] * layers
    for key in own:
        index, changes = _layer_index(own, key, layers), own.child(key)
        unknown = [name for name in changes if name not in allowed]
        if unknown:
            raise UnsupportedModel(
                f"config field '{changes.where(unknown[0][:40])}': layers of this family may differ in "
                f"{', '.join(allowed)} only"
            )
        seen[index] = fields.merged(**{name: changes.raw(name) for name in changes})
    return tuple(seen)


def _layer_index(fields: ConfigFields, key: str, layers: int) -> int:
    if not (key.isascii() and key.isdigit() and int(key) < layers):
        raise InvalidConfig(fields.where(key[:40]), f"is not one of the {layers} layers")
    return int(key)


def known_kind(fields: ConfigFields, name: str, kind: object, names: Mapping[str, str]) -> str:
    """A layer type under the one name Brim has for it; a type without one is refused."""
    if not isinstance(kind, str) or kind not in names:
        raise UnsupportedModel(f"config field '{fields.where(name)}': unknown layer type {str(kind)[:40]!r}")
    return names[kind]
