"""What the parts of a plan cost, each computed once: weights, KV, steps, by whatever they depend on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from brim.model.kv import MINIMUM, KvFootprint, KvStorage, kv_footprint
from brim.model.weights import WeightBytes, weight_bytes
from brim.planning.activation import ForwardShape, step_bytes
from brim.planning.engines import device_specs
from brim.planning.placement.adapters import adapter_bytes
from brim.planning.placement.parts import part_settings
from brim.planning.placement.record import PlacedPart, Placement
from brim.planning.settings import PlanSettings
from brim.planning.vllm.pool import in_groups
from brim.records.model import Dtype, ModelSpec, WeightFormat
from brim.records.trace import ActivationCurve, CurvePoint


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What steps are sized for: their tokens, and the most requests that run at once."""

    step_tokens: int
    running: int


@dataclass(frozen=True, slots=True)
class Costs:
    """What does not depend on how many tokens a step has: weights and KV, target and draft."""

    weights: WeightBytes
    draft_weights: WeightBytes | None
    footprint: KvFootprint
    draft_footprint: KvFootprint | None
    adapter_bytes: int = 0  # of LoRA adapters on a rank

    def request_bytes(self, tokens: int) -> int:
        """KV and state of a request, the draft's included."""
        return self.kv_bytes(tokens) + self.state_bytes

    def kv_bytes(self, tokens: int) -> int:
        """KV of a request, the draft's included."""
        return self.footprint.kv_bytes(tokens) + (self.draft_footprint.kv_bytes(tokens) if self.draft_footprint else 0)

    @property
    def state_bytes(self) -> int:
        """Recurrent state of a request, the draft's included."""
        draft = self.draft_footprint.state_bytes_per_request if self.draft_footprint else 0
        return self.footprint.state_bytes_per_request + draft


class Pricer:
    """Computes the bytes of a plan's parts, and caches them: changing one setting leaves other parts as they are."""

    def __init__(self) -> None:
        self._weights: dict[tuple[int, int, WeightFormat | None, Dtype | None], WeightBytes] = {}
        self._steps: dict[tuple[int, ForwardShape], int] = {}
        self._footprints: dict[tuple[int, Dtype, int, KvStorage, bool, bool], KvFootprint] = {}
        self._divided: dict[tuple[int, int], tuple[ModelSpec, ...]] = {}
        self._traced: dict[tuple[int, int], CurvePoint] = {}
        self._placed: dict[tuple[object, ...], tuple[ModelSpec, tuple[PlacedPart | None, ...]]] = {}

    def parts(self, settings: PlanSettings) -> tuple[PlanSettings, ...]:
        """The distinct devices of a placement. The specs of a model's parts are made once, as they are priced once."""
        if settings.placement.is_plain or settings.part is not None:
            return (settings,)
        key = (id(settings.spec), *_places(settings))
        if key not in self._placed:
            self._placed[key] = (settings.spec, tuple(one.part for one in part_settings(settings)))
        return tuple(
            settings if part is None else replace(settings, spec=part.spec, part=part) for part in self._placed[key][1]
        )

    def weights(
        self, spec: ModelSpec, ranks: int, stored: WeightFormat | None = None, dtype: Dtype | None = None
    ) -> WeightBytes:
        key = (id(spec), ranks, stored, dtype)
        if key not in self._weights:
            self._weights[key] = weight_bytes(spec, ranks, stored, dtype)
        return self._weights[key]

    def step(self, spec: ModelSpec, shape: ForwardShape) -> int:
        """The activation of a step."""
        key = (id(spec), shape)
        if key not in self._steps:
            self._steps[key] = step_bytes(spec, shape)
        return self._steps[key]

    def traced(self, curve: ActivationCurve, size: int) -> CurvePoint:
        """What a traced curve says of a size."""
        key = (id(curve), size)
        if key not in self._traced:
            self._traced[key] = CurvePoint(size, curve.peak_bytes(size), curve.reserved_bytes(size))
        return self._traced[key]

    def footprint(self, spec: ModelSpec, settings: PlanSettings, storage: KvStorage) -> KvFootprint:
        key = (id(spec), settings.kv_dtype, settings.ranks, storage, settings.splits_layers, settings.groups_layers)
        if key not in self._footprints:
            found = self._fullest_footprint(spec, settings, storage)
            if settings.groups_layers:
                found = in_groups(found, spec, settings.ranks, storage.window_slack)
            self._footprints[key] = found
        return self._footprints[key]

    def _fullest_footprint(self, spec: ModelSpec, settings: PlanSettings, storage: KvStorage) -> KvFootprint:
        if not settings.splits_layers or settings.part is not None:
            return kv_footprint(spec, settings.kv_dtype, settings.tensor_ranks, storage)
        parts = (kv_footprint(part, settings.kv_dtype, 1, storage) for part in self._parts(spec, settings.ranks))
        return max(parts, key=lambda part: part.request_bytes(spec.max_positions))

    def _fullest_weights(
        self, spec: ModelSpec, settings: PlanSettings, stored: WeightFormat | None, dtype: Dtype | None
    ) -> WeightBytes:
        if not settings.splits_layers:
            return self.weights(spec, settings.ranks, stored, dtype)
        if settings.ranks == 1 and not settings.device.has_host_memory_apart:
            return self.weights(spec, 1, stored, dtype)  # embeddings "on the host" are in this memory
        whole = self.weights(spec, 1, stored, dtype)
        fullest = max(self.weights(part, 1, stored, dtype).rank_bytes for part in self._parts(spec, settings.ranks))
        return replace(whole, rank_bytes=fullest)

    def _part_weights(self, settings: PlanSettings, part: PlacedPart) -> WeightBytes:
        """Of a device that holds a part of the model, in proportion to the files where their size is known."""
        stored, dtype = settings.stored, settings.weights_dtype
        whole = self.weights(part.whole, settings.tensor_ranks, stored, dtype)
        held = self.weights(part.weights, settings.tensor_ranks, stored, dtype).rank_bytes
        if part.whole.files_bytes is not None and stored is None and dtype is None:
            counted = weight_bytes(replace(part.whole, files_bytes=None)).total_bytes
            held = held * part.whole.files_bytes // max(1, counted)
        return replace(whole, rank_bytes=held)

    def _parts(self, spec: ModelSpec, devices: int) -> tuple[ModelSpec, ...]:
        """What each device holds of a model that is divided by layers."""
        key = (id(spec), devices)
        if key not in self._divided:
            self._divided[key] = device_specs(spec, devices)
        return self._divided[key]

    def costs(self, settings: PlanSettings, step_tokens: int) -> Costs:
        storage = settings.engine.storage(step_tokens) if settings.engine else MINIMUM
        draft, part, adapters = settings.draft, settings.part, settings.placement.adapters
        return Costs(
            weights=self._part_weights(settings, part)
            if part is not None
            else self._fullest_weights(settings.spec, settings, settings.stored, settings.weights_dtype),
            draft_weights=self._fullest_weights(draft, settings, None, None) if draft else None,
            footprint=self.footprint(settings.spec, settings, storage),
            draft_footprint=self.footprint(draft, settings, storage) if draft else None,
            adapter_bytes=adapter_bytes(settings.spec, adapters, settings.tensor_ranks) if adapters else 0,
        )


def _places(settings: PlanSettings) -> tuple[Placement | str | int | WeightFormat | Dtype | None, ...]:
    """What decides where the parts of a model are, and how large a copied one is."""
    engine = settings.engine.name if settings.engine else None
    return (settings.placement, engine, settings.ranks, settings.stored, settings.weights_dtype)
