"""The peak that vLLM's profile finds: one step of dummy tokens through compiled code, without attention, and a sampler.

In: a spec and a run. Out: bytes over what stood after loading. Three moments compete, and each is a list of the tensors
alive in it, as the allocator recorded them in real starts:

- compiling: the generator times the kernel of the embedding on random tensors, with a table of its own;
- a layer: the widest tensors of its feed-forward part or mixer, while a kernel is timed for the first time (between
  timings the cache is flushed with a buffer of its size);
- sampling: the rows of logits, and the copies that the runner's sampler makes of them.

The experts' workspace, once made, stays: it counts in every moment after the first layer that has experts. Not
modelled: padding of quantised formats, and encoders beyond their own formula.
"""

from __future__ import annotations

from collections.abc import Iterator

from brim.model.weights import on_rank
from brim.planning.activation import tower_bytes
from brim.planning.media import worst_positions
from brim.planning.vllm.kernels import (
    BLOCK_TOKENS,
    CACHE_FLUSH_BYTES,
    ELEMENT_BYTES,
    FP32_BYTES,
    LATENT_CONTEXT_TOKENS,
    MATRIX_WORKSPACE_BYTES,
    MULTIPROCESSORS,
    VOCAB_PADDING,
)
from brim.planning.vllm.run import VllmRun
from brim.records.model import (
    Attention,
    DeltaNet,
    FeedForward,
    LatentAttention,
    LayerSpec,
    LightningAttention,
    Mamba2,
    Mixer,
    ModelSpec,
    ShortConv,
)
from brim.units import ceil_div, round_up


def profiled_peak(spec: ModelSpec, run: VllmRun) -> int:
    """The most that is alive at once during the profile."""
    encoder = 0 if run.second_runner else encoder_bytes(spec, run)
    return max(_compiling(spec, run), layer_peak(spec, run), _sampling(spec, run), encoder)


def layer_peak(spec: ModelSpec, run: VllmRun) -> int:
    """The most that a layer holds, while a kernel of it is timed."""
    return max(_layer_moments(spec, run))


def _compiling(spec: ModelSpec, run: VllmRun) -> int:
    """A table of embeddings, and the two tensors the kernel writes: embedded tokens, and the same normalised."""
    if run.media:
        return 0
    table = ceil_div(round_up(spec.vocab, VOCAB_PADDING), run.ranks) * spec.hidden * ELEMENT_BYTES
    return table + 2 * hidden_bytes(spec, run)


def hidden_bytes(spec: ModelSpec, run: VllmRun) -> int:
    """One tensor as wide as the model, for every token of a step."""
    return run.batch_tokens * spec.hidden * ELEMENT_BYTES


def _layer_moments(spec: ModelSpec, run: VllmRun) -> Iterator[int]:
    """Each layer's mixer and feed-forward part, with what earlier layers left."""
    held, seen = MATRIX_WORKSPACE_BYTES, set[tuple[int, int]]()
    for layer in spec.layers:
        if (id(layer), held) in seen:
            continue  # a layer alike, with as much held, is no larger
        seen.add((id(layer), held))
        if layer.mixer is not None:
            yield held + mixing_bytes(spec, run, layer.mixer)
        if layer.feed_forward is not None:
            yield held + _feeding(spec, run, layer.feed_forward)
            experts = experts_workspace(spec, run, layer)
            if experts:
                held = max(held, experts + MATRIX_WORKSPACE_BYTES)
                yield held + _after_experts(spec, run)


def _feeding(spec: ModelSpec, run: VllmRun, ff: FeedForward) -> int:
    """Gate and up in one tensor, what the activation makes of them, and hidden states.

    Three of these are alive: the embeddings, the residual and the normalised input. Embeddings from outside stand in a
    buffer made before the profile.
    """
    inner = on_rank(ff.intermediate, ff.intermediate, run.ranks)
    widths = (2 if ff.gated else 1) * inner + inner
    hidden = (2 if run.media else 3) * hidden_bytes(spec, run)
    return run.batch_tokens * widths * ELEMENT_BYTES + hidden + CACHE_FLUSH_BYTES


def _after_experts(spec: ModelSpec, run: VllmRun) -> int:
    """The experts' input and output, the residual before and after, the next input, and the embeddings."""
    return 6 * hidden_bytes(spec, run) + CACHE_FLUSH_BYTES


def experts_workspace(spec: ModelSpec, run: VllmRun, layer: LayerSpec) -> int:
    """What the experts' kernel keeps: one buffer for gate and up and then the output, one for the activated middle."""
    ff = layer.feed_forward
    if ff is None or not ff.experts or _unfused_experts(spec):
        return 0
    inner = on_rank(ff.expert_intermediate, ff.expert_intermediate, run.ranks)
    width = ff.expert_hidden or spec.hidden
    projected = (2 if ff.expert_gated else 1) * inner
    rows = run.batch_tokens * ff.top_k
    return rows * (max(projected, width) + max(inner, width)) * ELEMENT_BYTES


def _unfused_experts(spec: ModelSpec) -> bool:
    """Four-bit experts run in kernels that allocate what they need and give it back."""
    return spec.quantisation is not None and spec.quantisation.method == "mxfp4"


def mixing_bytes(spec: ModelSpec, run: VllmRun, mixer: Mixer) -> int:
    """What a mixer holds before its output projection, with the residual and its input."""
    match mixer:
        case LatentAttention():
            return _latent(spec, run, mixer) + hidden_bytes(spec, run)
        case Attention():
            queries = on_rank(mixer.heads, mixer.heads, run.ranks) * mixer.head_dim * (2 if mixer.gated else 1)
            keys_values = on_rank(mixer.kv_heads, mixer.kv_heads, run.ranks) * (mixer.head_dim + mixer.value_dim)
            width = 2 * queries + 2 * keys_values  # as projected, and as rotated
        case DeltaNet():
            values = mixer.value_heads * mixer.value_dim
            width = on_rank(2 * mixer.conv_dim + 5 * values, mixer.key_heads, run.ranks)
        case Mamba2():
            width = on_rank(2 * mixer.conv_dim + 4 * mixer.inner, mixer.heads, run.ranks)
        case LightningAttention():
            width = on_rank(5 * mixer.heads * mixer.head_dim, mixer.heads, run.ranks)
        case ShortConv():
            width = on_rank(4 * mixer.channels, mixer.channels, run.ranks)
    return run.batch_tokens * width * ELEMENT_BYTES + 2 * hidden_bytes(spec, run) + CACHE_FLUSH_BYTES


def _latent(spec: ModelSpec, run: VllmRun, mixer: LatentAttention) -> int:
    """MLA: queries, output and latent of the step; and the profile allocates an earlier context, expanded."""
    heads = on_rank(mixer.heads, mixer.heads, run.ranks)
    step = heads * (mixer.query_dim + mixer.value_dim) + mixer.kv_rank + mixer.rope_dim
    return (run.batch_tokens * step + expanded_context(run, mixer)) * ELEMENT_BYTES


def expanded_context(run: VllmRun, mixer: LatentAttention) -> int:
    """Elements of the keys and values that prefill expands from the latents of earlier chunks."""
    blocks = run.max_seqs * BLOCK_TOKENS
    tokens = max(blocks, min(LATENT_CONTEXT_TOKENS, max(8 * run.max_len, 4 * blocks)))
    return tokens * on_rank(mixer.heads, mixer.heads, run.ranks) * (mixer.nope_dim + mixer.value_dim)


def _sampling(spec: ModelSpec, run: VllmRun) -> int:
    """The last hidden states, the rows of logits, and what the runner's sampler holds beside them."""
    logits = run.logit_rows * spec.vocab
    held = max((experts_workspace(spec, run, layer) for layer, _ in spec.layer_groups), default=0)
    held += hidden_bytes(spec, run) + MATRIX_WORKSPACE_BYTES
    if run.second_runner:  # greedy: nothing but the logits, twice where they are capped
        return held + logits * ELEMENT_BYTES * (2 if spec.logits_softcap else 1)
    copies = ELEMENT_BYTES + 3 * FP32_BYTES  # as computed; in fp32, as probabilities, and as exponential noise
    return held + logits * copies + selection_bytes(spec, run)


def selection_bytes(spec: ModelSpec, run: VllmRun) -> int:
    """The buffer of the kernel that finds top-k and top-p: a row of logits for each program."""
    return min(MULTIPROCESSORS, 1 << (run.logit_rows - 1).bit_length()) * spec.vocab * FP32_BYTES


def encoder_bytes(spec: ModelSpec, run: VllmRun) -> int:
    """An encoder over its largest input. Only the first runner profiles it."""
    if not run.media:
        return 0
    largest = 0
    for tower in spec.towers:
        positions, _ = worst_positions(
            tower, image_pixels=None, images_per_prompt=1, audio_seconds=None, max_len=run.batch_tokens
        )
        largest = max(largest, tower_bytes(tower, positions, ELEMENT_BYTES, run.ranks))
    return largest
