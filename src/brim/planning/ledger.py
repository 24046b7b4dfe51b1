"""The ledger: one function per line item, each with the source of its figure.

In: settings, and the tokens of a step and the sequences it serves. Out: `LedgerItem`s of one device. The solver gives
the rest to the KV cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from brim.model.kv import MINIMUM, KvFootprint, KvStorage, kv_footprint
from brim.model.weights import WeightBytes, weight_bytes
from brim.planning.activation import AttentionKind, StepShape, logits_bytes, step_bytes, tower_bytes
from brim.planning.engines import graph_bytes
from brim.planning.media import worst_positions
from brim.planning.settings import Settings
from brim.records.model import Dtype, Media, ModelSpec, TowerSpec, WeightFormat
from brim.records.plan import LedgerItem, Source
from brim.records.trace import ActivationCurve
from brim.units import MIB, ceil_div

DEFAULT_SEQUENCES = 256  # rows of logits when the concurrency is solved for
_NCCL_BYTES = 512 * MIB  # channels and all-reduce buffers of a rank
_LOWEST_SLACK_PERCENT = 10  # what expandable segments reserve beyond the peak, in the median
_SAMPLER_BYTES = 4 + 4 + 8  # fp32 logits, probabilities, sorted indices, for a row and an entry of the vocabulary


@dataclass(frozen=True, slots=True)
class Costs:
    """What does not depend on how many tokens a step has: weights and KV, target and draft."""

    weights: WeightBytes
    draft_weights: WeightBytes | None
    footprint: KvFootprint
    draft_footprint: KvFootprint | None

    def request_bytes(self, tokens: int) -> int:
        """KV and state of a request, the draft's included."""
        own = self.footprint.request_bytes(tokens)
        return own + (self.draft_footprint.request_bytes(tokens) if self.draft_footprint else 0)


class Pricer:
    """Computes the bytes of a plan's parts, and caches them: changing one setting leaves other parts as they are."""

    def __init__(self) -> None:
        self._weights: dict[tuple[int, int, WeightFormat | None, Dtype | None], WeightBytes] = {}
        self._steps: dict[tuple[int, StepShape], int] = {}
        self._footprints: dict[tuple[int, Dtype, int, KvStorage], KvFootprint] = {}

    def weights(
        self, spec: ModelSpec, ranks: int, stored: WeightFormat | None = None, dtype: Dtype | None = None
    ) -> WeightBytes:
        key = (id(spec), ranks, stored, dtype)
        if key not in self._weights:
            self._weights[key] = weight_bytes(spec, ranks, stored, dtype)
        return self._weights[key]

    def step(self, spec: ModelSpec, shape: StepShape) -> int:
        """The activation of a step."""
        key = (id(spec), shape)
        if key not in self._steps:
            self._steps[key] = step_bytes(spec, shape)
        return self._steps[key]

    def footprint(self, spec: ModelSpec, settings: Settings, storage: KvStorage) -> KvFootprint:
        key = (id(spec), settings.kv_dtype, settings.ranks, storage)
        if key not in self._footprints:
            self._footprints[key] = kv_footprint(spec, settings.kv_dtype, settings.ranks, storage)
        return self._footprints[key]

    def costs(self, settings: Settings, step_tokens: int) -> Costs:
        storage = settings.engine.storage(step_tokens) if settings.engine else MINIMUM
        draft = settings.draft
        return Costs(
            weights=self.weights(settings.spec, settings.ranks, settings.stored, settings.weights_dtype),
            draft_weights=self.weights(draft, settings.ranks) if draft else None,
            footprint=self.footprint(settings.spec, settings, storage),
            draft_footprint=self.footprint(draft, settings, storage) if draft else None,
        )


def fixed_items(
    settings: Settings, pricer: Pricer, costs: Costs, step_tokens: int, context: int
) -> tuple[LedgerItem, ...]:
    """Every item but state and KV, in the order of the ledger."""
    activation = _activation(settings, pricer, step_tokens)
    return (
        _context(settings),
        _weights(costs.weights),
        _draft(settings, pricer, costs, step_tokens, activation.bytes),
        _encoder(settings, context),
        activation,
        _workspace(settings, step_tokens, activation.bytes),
        _graphs(settings, pricer),
        _neighbours(settings),
        LedgerItem("canary", settings.canary_bytes, Source.CONSTANT, "safety margin"),
    )


def _context(settings: Settings) -> LedgerItem:
    device = settings.device
    source = Source.CATALOGUE if device.source is Source.CATALOGUE else Source.FORMULA
    detail = f"driver {device.hidden_bytes // MIB} MiB, CUDA context {device.context_bytes // MIB} MiB"
    return LedgerItem("context", device.hidden_bytes + device.context_bytes, source, detail)


def _weights(found: WeightBytes) -> LedgerItem:
    share = (
        "" if found.rank_bytes == found.total_bytes else f", this rank's share of {found.total_bytes / 2**30:,.1f} GiB"
    )
    return LedgerItem("weights", found.rank_bytes, Source.EXACT, found.detail + share)


def _draft(settings: Settings, pricer: Pricer, costs: Costs, step_tokens: int, activation: int) -> LedgerItem:
    """The speculator's weights; its step only where it is wider than the target's. Its KV is added when solved."""
    if settings.draft is None or costs.draft_weights is None:
        return LedgerItem("draft", 0, Source.EXACT, "no draft model")
    step = pricer.step(settings.draft, _step_shape(settings, step_tokens))
    beyond = max(0, step - activation)
    detail = f"{settings.draft.name}: {costs.draft_weights.detail}"
    return LedgerItem("draft", costs.draft_weights.rank_bytes + beyond, Source.EXACT, detail)


def _encoder(settings: Settings, context: int) -> LedgerItem:
    """Towers run one after the other: the largest of them at its worst input."""
    worst = LedgerItem("encoder", 0, Source.EXACT, "no vision or audio tower")
    for tower in settings.spec.towers:
        positions, words = worst_positions(
            tower,
            image_pixels=settings.image_pixels,
            images_per_prompt=settings.images_per_prompt,
            audio_seconds=settings.audio_seconds,
            max_len=context,
        )
        size, source = _tower_bytes(settings, tower, positions)
        if size > worst.bytes or not worst.bytes:
            worst = LedgerItem("encoder", size, source, f"{words}, {positions:,} positions")
    return worst


def _tower_bytes(settings: Settings, tower: TowerSpec, positions: int) -> tuple[int, Source]:
    """By the traced curve where there is one for this tower, else by the formula."""
    curve = settings.curves.vision
    if curve is None or settings.ranks > 1 or tower.media is not Media.IMAGE or not positions:
        return tower_bytes(tower, positions, settings.spec.dtype.bytes, settings.ranks), Source.FORMULA
    per_tile = tower.limits.tile_pixels // tower.pixels_per_patch + 1 if curve.unit == "tiles" else 1
    return curve.peak_bytes(ceil_div(positions, per_tile)), Source.TRACED


def _step_shape(settings: Settings, step_tokens: int) -> StepShape:
    rows = min(settings.max_seqs or DEFAULT_SEQUENCES, step_tokens)
    return StepShape(step_tokens, 1, rows, settings.attention, settings.ranks)


def _activation(settings: Settings, pricer: Pricer, step_tokens: int) -> LedgerItem:
    shape = _step_shape(settings, step_tokens)
    curve = _step_curve(settings)
    if curve is not None:
        size = max(curve.peak_bytes(step_tokens), logits_bytes(settings.spec, shape))
        detail = f"a step of {step_tokens:,} tokens, by the model's own code ({curve.versions})"
        return LedgerItem("activation", size, Source.TRACED, detail)
    detail = f"largest set of live tensors in a step of {step_tokens:,} tokens"
    if settings.attention is AttentionKind.EAGER:
        detail += ", with attention scores"
    return LedgerItem("activation", pricer.step(settings.spec, shape), Source.FORMULA, detail)


def _workspace(settings: Settings, step_tokens: int, activation: int) -> LedgerItem:
    rows = min(settings.max_seqs or DEFAULT_SEQUENCES, step_tokens)
    slack, words = _slack(settings, step_tokens, activation)
    sampler = rows * settings.spec.vocab * _SAMPLER_BYTES
    ranks = _NCCL_BYTES if settings.ranks > 1 else 0
    kernels = f"kernels and matmul {settings.device.workspace_bytes // MIB} MiB"
    detail = f"{kernels}, allocator slack {words}, sampler of {rows} rows" + (", NCCL" if ranks else "")
    return LedgerItem("workspace", settings.device.workspace_bytes + slack + sampler + ranks, Source.FORMULA, detail)


def _slack(settings: Settings, step_tokens: int, activation: int) -> tuple[int, str]:
    """What the allocator reserves beyond a step's peak: by the curve with expandable segments, else a fixed share."""
    percent = settings.engine.slack_percent if settings.engine else _LOWEST_SLACK_PERCENT
    curve = _step_curve(settings)
    if curve is None or percent > _LOWEST_SLACK_PERCENT:
        return activation * percent // 100, f"{percent} %"
    slack = max(0, curve.reserved_bytes(step_tokens) - curve.peak_bytes(step_tokens))
    return slack, f"{slack // MIB} MiB as traced"


def _step_curve(settings: Settings) -> ActivationCurve | None:
    """The traced curve of a step, if it matches these settings: number of ranks, fused attention."""
    curve = settings.curves.step
    if curve is None or curve.ranks != settings.ranks or settings.attention is not AttentionKind.FUSED:
        return None
    return curve


def _graphs(settings: Settings, pricer: Pricer) -> LedgerItem:
    if not settings.graphs:
        return LedgerItem("graphs", 0, Source.GIVEN, "switched off")
    captured = min(settings.max_seqs or DEFAULT_SEQUENCES, DEFAULT_SEQUENCES)
    step = pricer.step(settings.spec, StepShape(captured, captured, captured, ranks=settings.ranks))
    size = graph_bytes(len(settings.spec.layers), step)
    return LedgerItem("graphs", size, Source.FORMULA, f"decode captured up to {captured} sequences, one pool")


def _neighbours(settings: Settings) -> LedgerItem:
    seen = settings.device.neighbour_bytes
    source = Source.MEASURED if seen and not settings.reserve_bytes else Source.GIVEN
    words = [f"{seen // MIB} MiB in use now"] if seen else []
    words += ["--reserve"] if settings.reserve_bytes else []
    return LedgerItem("neighbours", seen + settings.reserve_bytes, source, ", ".join(words) or "none")
