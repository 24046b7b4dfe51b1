"""Activation by formula: the largest set of tensors alive at once in a step, from the model's dimensions.

In: a spec and a `StepShape`. Out: bytes. The live sets are those of the `transformers` modules as they run on a GPU
without extra kernels; each function below is one point of a layer, with one line per tensor that is alive then.
It does not know about fused kernels, `torch.compile` or the allocator: a traced curve, where there is one, is better.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from brim.model.weights import on_rank
from brim.records.model import (
    Attention,
    DeltaNet,
    FeedForward,
    LatentAttention,
    LayerSpec,
    LightningAttention,
    Mamba2,
    ModelSpec,
    ShortConv,
    TowerSpec,
)

_FP32 = 4
_POSITION = 8  # an int64 position for every token
_FLASH_HEAD_DIM = 256  # wider heads use another kernel than flash, which pads and copies


class AttentionKind(StrEnum):
    """How attention runs: as one kernel, or with tokens × tokens scores materialised."""

    FUSED = "fused"
    EAGER = "eager"


@dataclass(frozen=True, slots=True)
class ForwardShape:
    """The shape of a forward step: tokens in all, the sequences they belong to, and rows of logits."""

    tokens: int
    sequences: int = 1
    logit_rows: int = 1
    attention: AttentionKind = AttentionKind.FUSED
    ranks: int = 1

    @property
    def tokens_per_sequence(self) -> int:
        return -(-self.tokens // self.sequences)


def step_bytes(spec: ModelSpec, shape: ForwardShape) -> int:
    """The peak of a step above the weights and the KV cache."""
    layers = max(_layer_bytes_per_token(spec, layer, shape) for layer, _ in spec.layer_groups)
    always = _resident_bytes_per_token(spec) + _mask_bytes_per_token(spec, shape.tokens_per_sequence)
    return max(shape.tokens * (always + layers), logits_bytes(spec, shape))


def _resident_bytes_per_token(spec: ModelSpec) -> int:
    """What the model's forward holds while its layers run."""
    e = spec.dtype.bytes
    per_layer_inputs = 2 * len(spec.layers) * spec.layer_input_width  # Gemma 3n and 4: looked up, then projected
    return (
        spec.hidden * e  # the embeddings
        + spec.hidden * spec.wide_residual * e  # the residual stream as the layer got it
        + spec.hidden * spec.held_hidden * e
        + spec.lent_kv_elements * e
        + per_layer_inputs * e
        + _POSITION
    )


def _mask_bytes_per_token(spec: ModelSpec, context: int) -> int:
    """Rotary tables, and the boolean mask of sliding layers once a sequence is longer than their window."""
    mixers = [layer.mixer for layer, _ in spec.layer_groups if isinstance(layer.mixer, Attention)]
    kinds = {(mixer.head_dim, mixer.window is None) for mixer in mixers}
    tables = sum(2 * head_dim * spec.dtype.bytes for head_dim, _ in kinds)  # cosines and sines
    windows = [mixer.window for mixer in mixers if mixer.window]
    return tables + (context if windows and context > min(windows) else 0)


def logits_bytes(spec: ModelSpec, shape: ForwardShape) -> int:
    copies = 2 if spec.logits_softcap else 1  # a soft cap divides into a copy
    vocab = -(-spec.vocab // shape.ranks)
    hidden = spec.hidden * spec.dtype.bytes
    return shape.tokens * hidden + shape.logit_rows * (vocab * copies * spec.dtype.bytes + hidden)


def _layer_bytes_per_token(spec: ModelSpec, layer: LayerSpec, shape: ForwardShape) -> int:
    """The peak of a layer, above what is resident."""
    moments = [_norm_moment(spec)]
    if layer.mixer is not None:
        moments.append(_mixer_moment(spec, layer, shape))
    if layer.feed_forward is not None:
        before = 2 if layer.mixer is not None else 1  # the new residual, and its norm that is the input
        moments.append(
            before * spec.hidden * spec.dtype.bytes + _feed_forward_moment(spec, layer.feed_forward, shape.ranks)
        )
    return max(moments)


def _norm_moment(spec: ModelSpec) -> int:
    """RMSNorm in fp32: the input widened, its normalised copy, and the result."""
    return spec.hidden * (_FP32 + _FP32 + spec.dtype.bytes)


def _mixer_moment(spec: ModelSpec, layer: LayerSpec, shape: ForwardShape) -> int:
    normed_input = spec.hidden * spec.dtype.bytes
    mixer = layer.mixer
    match mixer:
        case Attention():
            return normed_input + _attention_moment(spec, _on_rank(mixer, shape.ranks), shape)
        case LatentAttention():
            return normed_input + _latent_moment(spec, _latent_on_rank(mixer, shape.ranks), shape)
        case DeltaNet():
            return normed_input + on_rank(_delta_moment(spec, mixer), mixer.key_heads, shape.ranks)
        case Mamba2():
            return normed_input + on_rank(_mamba_moment(spec, mixer), mixer.heads, shape.ranks)
        case ShortConv():
            return normed_input + 6 * mixer.channels * spec.dtype.bytes  # three projections, gate, convolution, product
        case LightningAttention():
            return normed_input + on_rank(_lightning_moment(spec, mixer), mixer.heads, shape.ranks)
        case None:
            return 0


def _on_rank(mixer: Attention, ranks: int) -> Attention:
    if ranks == 1:
        return mixer
    return replace(
        mixer,
        heads=on_rank(mixer.heads, mixer.heads, ranks),
        kv_heads=on_rank(mixer.kv_heads, mixer.kv_heads, ranks),
    )


def _latent_on_rank(mixer: LatentAttention, ranks: int) -> LatentAttention:
    if ranks == 1:
        return mixer
    return replace(mixer, heads=on_rank(mixer.heads, mixer.heads, ranks))


def _attention_moment(spec: ModelSpec, mixer: Attention, shape: ForwardShape) -> int:
    e = spec.dtype.bytes
    query = mixer.heads * mixer.head_dim
    keys, values = mixer.kv_heads * mixer.head_dim, mixer.kv_heads * mixer.value_dim
    output = mixer.heads * mixer.value_dim
    gate = query if mixer.gated else 0
    held = (query + keys + values + gate) * e

    rotating = (
        mixer.fp32_rope_copies * query * _FP32
        if mixer.fp32_rope_copies
        else 3 * query * e  # rotated half, its product with the sines, the product with the cosines
    )
    # Queries are normalised before there are keys: as projected, widened, normalised.
    normalising = (query + gate) * e + 2 * query * _FP32 if mixer.normed_heads else 0

    wide = mixer.head_dim > _FLASH_HEAD_DIM
    expanded = 2 * query if wide and _slides(spec) else 0  # keys and values repeated for a kernel that needs a mask
    padded = 2 * query if wide else 0
    attending = (output + expanded + padded) * e + mixer.heads * _FP32  # and the log-sum-exp
    if shape.attention is AttentionKind.EAGER:
        attending += _scores_bytes(mixer.heads, mixer.sinks, mixer.index_heads, query, shape.tokens_per_sequence, e)
    return max(held + max(rotating, attending), normalising)


def _slides(spec: ModelSpec) -> bool:
    return any(isinstance(layer.mixer, Attention) and layer.mixer.window for layer, _ in spec.layer_groups)


def _scores_bytes(heads: int, sinks: bool, index_heads: int, query: int, context: int, e: int) -> int:
    """Eager attention for one token: scores against every token of its sequence, softmax, masks, repeated keys."""
    scores = 3 * e if sinks else e + 2 * _FP32  # scores, widened, softmax; with sinks: and the sink beside, shifted
    return (
        heads * context * scores
        + 2 * context * e  # masks of full and of sliding layers
        + 2 * query * e  # keys and values repeated for every head
        + 2 * index_heads * context * _FP32  # an indexer's own scores
    )


def _latent_moment(spec: ModelSpec, mixer: LatentAttention, shape: ForwardShape) -> int:
    e = spec.dtype.bytes
    query = mixer.heads * mixer.query_dim
    expanded = mixer.heads * (mixer.nope_dim + mixer.value_dim)
    output = mixer.heads * mixer.value_dim
    held = (
        query * e  # queries as projected
        + query * e  # queries with their rotated part
        + query * e  # keys with the rotated part in front of every head
        + expanded * e  # keys and values expanded from the latent
        + mixer.heads * mixer.rope_dim * e
        + (mixer.kv_rank + mixer.rope_dim) * e
        + (mixer.q_rank or 0) * e
    )
    attending = 2 * output * e
    if shape.attention is AttentionKind.EAGER:
        attending += _scores_bytes(mixer.heads, False, mixer.index_heads, 0, shape.tokens_per_sequence, e)
    return held + attending


def _delta_moment(spec: ModelSpec, mixer: DeltaNet) -> int:
    e = spec.dtype.bytes
    values = mixer.value_heads * mixer.value_dim
    keys = mixer.value_heads * mixer.key_dim
    repeated = 2 * keys * e if mixer.key_heads != mixer.value_heads else 0
    per_channel = 3 * keys * mixer.chunk * _FP32 if mixer.channel_decay else 0
    return (
        10 * max(values, keys) * _FP32  # q, k, v, padded and scaled, the solved chunks, the output
        + 3 * mixer.value_heads * mixer.chunk * _FP32  # decay and attention inside a chunk
        + per_channel
        + mixer.conv_dim * e  # the convolution's output
        + values * e  # the gate
        + (mixer.conv_dim * e if mixer.fused_projection else 0)
        + repeated
    )


def _mamba_moment(spec: ModelSpec, mixer: Mamba2) -> int:
    e = spec.dtype.bytes
    per_state = mixer.heads * mixer.state * _FP32
    per_chunk = mixer.heads * mixer.chunk * _FP32
    inner = mixer.inner * _FP32
    inside_chunks = 4 * per_chunk + 3 * per_state + 5 * inner
    between_chunks = 3 * per_chunk + 3 * per_state + 7 * inner
    return (
        max(inside_chunks, between_chunks)
        + mixer.inner * mixer.state * _FP32 // mixer.chunk  # one state per chunk
        + (mixer.inner + mixer.conv_dim + mixer.heads) * e  # the in-projection
        + mixer.conv_dim * e  # the convolution's output
    )


def _lightning_moment(spec: ModelSpec, mixer: LightningAttention) -> int:
    width = mixer.heads * mixer.head_dim
    return (8 * width + mixer.heads * mixer.block) * spec.dtype.bytes


def _feed_forward_moment(spec: ModelSpec, ff: FeedForward, ranks: int) -> int:
    """Above the two residual-wide tensors: a dense MLP, or a mixture with the output of the dense part beside it."""
    e = spec.dtype.bytes
    dense = _dense_copies(ff) * (on_rank(ff.intermediate, ff.intermediate, ranks)) * e if ff.intermediate else 0
    if not ff.experts:
        return dense
    beside = spec.hidden * e * (2 if ff.intermediate else 0)  # the dense part's output, and the sum to be
    return max(dense, beside + _experts_moment(spec, ff, ranks))


def _dense_copies(ff: FeedForward) -> int:
    """How many intermediate-wide tensors are alive at once."""
    if ff.gated:
        return 4 if ff.fused_gate else 3  # (gate and up in one,) activated gate, up, product
    return 4 if ff.stepwise_activation else 2  # up, activated


def _experts_moment(spec: ModelSpec, ff: FeedForward, ranks: int) -> int:
    e = spec.dtype.bytes
    visits = ff.experts if ff.every_expert else ff.top_k
    inner = on_rank(ff.expert_intermediate, ff.expert_intermediate, ranks)
    gathered = ff.expert_hidden * e  # the token, copied for every expert it visits
    projecting = gathered + _expert_copies(ff) * inner * e
    weighted = _FP32 if ff.routed_fp32 else e
    combining = 0 if ff.every_expert else gathered + ff.expert_hidden * (e + 2 * weighted)  # out, weighted, put back
    return visits * max(projecting, combining) + 2 * ff.experts * e


def _expert_copies(ff: FeedForward) -> int:
    if ff.clamped:
        return 9  # gate and up, their biases gathered, clamped copies, sigmoid, product
    return 4 if ff.expert_gated else 3


def tower_bytes(tower: TowerSpec, positions: int, dtype_bytes: int, ranks: int = 1) -> int:
    """The peak of an encoder over so many patches (or audio frames)."""
    hidden = tower.hidden * dtype_bytes
    inner = on_rank(tower.intermediate, tower.intermediate, ranks) * dtype_bytes
    feeding = 5 * hidden + (3 if tower.gated else 2) * inner
    rotating = 7 * hidden + 6 * tower.hidden * _FP32 if tower.fp32_rope else 8 * hidden
    handed_over = (1 + tower.extra_outputs) * tower.output * dtype_bytes // tower.merge
    return positions * (max(feeding, rotating) + handed_over)
