"""How vLLM would be started: what the user gave, and vLLM's own defaults for the rest."""

from __future__ import annotations

from dataclasses import dataclass

from brim.planning.vllm.kernels import LARGEST_CAPTURE
from brim.records.model import Dtype, ModelSpec
from brim.records.plan import Device
from brim.units import GIB

_LARGE_DEVICE_BYTES = 70 * GIB
_SECOND_RUNNER_MIXTURES = frozenset({"deepseek_v2", "granitemoe", "longcat_flash_ngram", "qwen2_moe"})


@dataclass(frozen=True, slots=True)
class VllmRun:
    """A start of vLLM: its limits, and which of its two model runners takes the model."""

    batch_tokens: int
    max_seqs: int
    max_len: int
    kv_dtype: Dtype
    ranks: int
    graphs: bool
    media: bool  # whether images or audio are allowed: embeddings then come from outside the compiled code
    second_runner: bool  # "V2"; the first profiles its graphs, the second does not
    draft_tokens: int = 0  # that are drafted for a request in a step

    @property
    def logit_rows(self) -> int:
        return min(self.max_seqs, self.batch_tokens)

    @property
    def verified_rows(self) -> int:
        """Rows of logits where every request verifies its draft."""
        return min(self.max_seqs * (1 + self.draft_tokens), self.batch_tokens)

    @property
    def captured_tokens(self) -> int:
        """The largest step that is captured in a graph."""
        return min(2 * self.max_seqs, LARGEST_CAPTURE, self.batch_tokens) if self.graphs else 0


def plan_run(
    spec: ModelSpec,
    device: Device,
    kv_dtype: Dtype,
    *,
    batch_tokens: int | None = None,
    max_seqs: int | None = None,
    max_len: int | None = None,
    ranks: int = 1,
    graphs: bool = True,
    media: bool = True,
    draft_tokens: int = 0,
    first_runner: bool = False,
) -> VllmRun:
    """The limits as given; else those of `vllm serve` on such a device.

    `first_runner`: the second one lacks something that is asked for, such as drafts of another model.
    """
    large = device.usable_bytes >= _LARGE_DEVICE_BYTES and "a100" not in device.name.lower()
    length = max_len or spec.max_positions
    seqs = max_seqs or (1024 if large else 256)
    tokens = batch_tokens or min(8192 if large else 2048, seqs * length)
    return VllmRun(
        batch_tokens=tokens,
        max_seqs=seqs if max_seqs else min(seqs, tokens),
        max_len=length,
        kv_dtype=kv_dtype,
        ranks=ranks,
        graphs=graphs,
        media=media and bool(spec.towers),
        second_runner=not first_runner and _takes_second_runner(spec),
        draft_tokens=draft_tokens,
    )


def _takes_second_runner(spec: ModelSpec) -> bool:
    """The second runner is the default but for recurrent layers, and for mixtures that are not on its list."""
    if any(layer.state for layer, _ in spec.layer_groups):
        return False
    mixture = any(layer.feed_forward and layer.feed_forward.experts for layer, _ in spec.layer_groups)
    return not mixture or spec.family in _SECOND_RUNNER_MIXTURES
