"""CUDA graphs of vLLM: how many steps it captures, and what they hold.

Every captured size exists twice: in pieces between attention layers, for any mix of requests, and whole, for decoding.
All share one pool, so that the largest step counts once; what the driver keeps for each graph grows with its layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from brim.model.weights import on_rank
from brim.planning.vllm.kernels import ATTENTION_SPLITS, ELEMENT_BYTES, FP32_BYTES, MATRIX_WORKSPACE_BYTES
from brim.planning.vllm.profile import expanded_context
from brim.planning.vllm.run import VllmRun
from brim.records.model import Attention, LatentAttention, Mixer, ModelSpec
from brim.units import KIB, MIB, round_up

_PIECES_BYTES_PER_LAYER = 96 * KIB  # of the driver, for one captured size: seen with 4, 24 and 48 layers
_WHOLE_BYTES_PER_LAYER = 32 * KIB
_HELD_PIECES_BYTES, _HELD_WHOLE_BYTES = 128 * KIB, 64 * KIB  # for one mixer in a graph, held while serving
_LEFT_BYTES_PER_LAYER = 288 * KIB  # of graphs captured on trial and thrown away
_SMALLEST_GRAPH_BYTES = MIB
_DRIVER_STEP_BYTES = 2 * MIB


@dataclass(frozen=True, slots=True)
class GraphBytes:
    """Graphs: the memory pool they share, what the driver keeps for all of them, and the output of each."""

    pool: int
    driver: int
    outputs: int

    @property
    def estimated(self) -> int:
        """What the first runner extrapolates from two sizes of each kind."""
        return self.pool + self.driver

    @property
    def total(self) -> int:
        return self.pool + self.driver + self.outputs


def graph_bytes(spec: ModelSpec, run: VllmRun) -> GraphBytes:
    """What capturing takes."""
    if not run.captured_tokens:
        return GraphBytes(0, 0, 0)
    sizes = _captured_sizes(run.captured_tokens)
    in_pieces, whole = len(sizes), sum(size <= run.max_seqs for size in sizes)
    layers = len(spec.layers)
    pieces_each = max(_SMALLEST_GRAPH_BYTES, round_up(layers * _PIECES_BYTES_PER_LAYER, _DRIVER_STEP_BYTES))
    whole_each = max(_SMALLEST_GRAPH_BYTES, layers * _WHOLE_BYTES_PER_LAYER)
    return GraphBytes(
        pool=max(_pieces_step(spec, run), _whole_step(spec, run)),
        driver=(in_pieces - 1) * pieces_each + (whole - 1) * whole_each,
        outputs=sum(sizes) * spec.hidden * ELEMENT_BYTES,
    )


def driver_bytes(spec: ModelSpec, run: VllmRun) -> int:
    """What the driver holds for all graphs while serving: it grows with the layers that the pieces lie between."""
    if not run.captured_tokens:
        return 0
    sizes = _captured_sizes(run.captured_tokens)
    whole = sum(size <= run.max_seqs for size in sizes)
    mixers = sum(count for layer, count in spec.layer_groups if layer.mixer is not None)
    pieces_each = max(_SMALLEST_GRAPH_BYTES, mixers * _HELD_PIECES_BYTES)
    whole_each = max(_SMALLEST_GRAPH_BYTES, mixers * _HELD_WHOLE_BYTES)
    return len(sizes) * pieces_each + whole * whole_each


def left_by_trial_bytes(spec: ModelSpec, run: VllmRun) -> int:
    """What the driver does not give back after the first runner's trial captures."""
    return 0 if run.second_runner or not run.captured_tokens else len(spec.layers) * _LEFT_BYTES_PER_LAYER


def _captured_sizes(largest: int) -> tuple[int, ...]:
    """1, 2, 4; then every 8 to 256; then every 16."""
    sizes = (1, 2, 4, *range(8, 257, 8), *range(272, largest + 1, 16))
    return tuple(size for size in sizes if size <= largest)


def _pieces_step(spec: ModelSpec, run: VllmRun) -> int:
    """The largest step in pieces: workspaces of the capturing stream, and the layer that holds most."""
    tokens = run.captured_tokens
    inner = max((layer.feed_forward.intermediate for layer, _ in spec.layer_groups if layer.feed_forward), default=0)
    latent = [layer.mixer for layer, _ in spec.layer_groups if isinstance(layer.mixer, LatentAttention)]
    expanded = max((expanded_context(run, mixer) for mixer in latent), default=0)
    widest = tokens * (3 * inner // run.ranks + 4 * spec.hidden) + expanded
    return 3 * MATRIX_WORKSPACE_BYTES + widest * ELEMENT_BYTES


def _whole_step(spec: ModelSpec, run: VllmRun) -> int:
    """The largest decoding step: attention's partial outputs in fp32, for each part of the context."""
    tokens = min(run.captured_tokens, run.max_seqs)
    widths = [_output_width(layer.mixer, run) for layer, _ in spec.layer_groups]
    return tokens * max(widths, default=0) * ATTENTION_SPLITS * FP32_BYTES


def _output_width(mixer: Mixer | None, run: VllmRun) -> int:
    match mixer:
        case Attention():
            return on_rank(mixer.heads, mixer.heads, run.ranks) * mixer.value_dim
        case LatentAttention():
            return on_rank(mixer.heads, mixer.heads, run.ranks) * mixer.kv_rank
        case _:
            return 0
