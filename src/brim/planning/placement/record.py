"""How a model is placed: `Placement`, and what one device holds of it (`PlacedPart`).

Tensor parallelism is not here: it divides every part alike, and is `Settings.ranks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from brim.records.model import ModelSpec


class Feature(StrEnum):
    """What an engine may or may not be able to do, as the table of capabilities names it."""

    PIPELINE = "pipeline parallelism"
    DATA = "data parallelism"
    DATA_WITH_EXPERTS = "data parallelism with shared experts"
    EXPERTS = "expert parallelism"
    OFFLOAD = "layers or experts in host memory"
    ADAPTERS = "LoRA adapters"
    HOST_KV = "a KV tier in host memory"


class StageRule(StrEnum):
    """Which pipeline stages get one layer more, where stages do not divide the layers."""

    BEFORE_LAST = "before the last"
    LAST = "the last"
    FIRST = "the first"


@dataclass(frozen=True, slots=True)
class Adapters:
    """LoRA adapters that are on the device at once, each of at most this rank."""

    rank: int
    count: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Everything beyond tensor parallelism. The defaults are one device, or one group of tensor-parallel ranks."""

    pipeline: int = 1  # stages
    replicas: int = 1  # data parallel
    expert_parallel: bool = False  # whole experts on the ranks of all replicas
    gpu_layers: int | None = None  # the last so many, the output counted as one; None: all
    cpu_experts: int = 0  # the first so many layers whose experts are in host memory
    open_gpu_layers: bool = False  # `auto`: as many as fit
    open_cpu_experts: bool = False  # `auto`: as few as fit
    adapters: Adapters | None = None
    host_kv_bytes: int = 0  # of all replicas, for prefixes that leave the device

    @property
    def devices(self) -> int:
        """Devices for one tensor-parallel rank."""
        return self.pipeline * self.replicas

    @property
    def offloads(self) -> bool:
        """Whether some of the weights are in host memory."""
        return self.gpu_layers is not None or self.cpu_experts > 0

    @property
    def features(self) -> tuple[Feature, ...]:
        """What an engine must be able to do for it."""
        data = Feature.DATA_WITH_EXPERTS if self.expert_parallel else Feature.DATA
        wanted = {
            Feature.PIPELINE: self.pipeline > 1,
            data: self.replicas > 1,
            Feature.EXPERTS: self.expert_parallel,
            Feature.OFFLOAD: self.offloads or self.open_gpu_layers or self.open_cpu_experts,
            Feature.ADAPTERS: self.adapters is not None,
            Feature.HOST_KV: self.host_kv_bytes > 0,
        }
        return tuple(feature for feature, is_wanted in wanted.items() if is_wanted)

    @property
    def is_plain(self) -> bool:
        """Whether every device holds the same share of the whole model."""
        return self.pipeline == self.replicas == 1 and not (self.expert_parallel or self.offloads)


TENSOR_PARALLEL_ONLY = Placement()


@dataclass(frozen=True, slots=True)
class PlacedPart:
    """What a device holds of a model, before tensor parallelism divides it.

    `spec` has the layers of the device alone: its steps, KV and states. `weights` has them at their places in the
    model, and empty layers elsewhere: rules of quantisation name layers by their number.
    """

    stage: int
    layers: range
    whole: ModelSpec  # the model that it is a part of
    spec: ModelSpec
    weights: ModelSpec
    copied_bytes: int = 0  # of host weights that are copied to the device while a prompt is computed
