"""The ledger: one function per line item, each with the source of its figure.

In: settings, and the load that a step is sized for. Out: `LedgerItem`s of one device. The solver gives the rest to the
KV cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from brim.planning.activation import AttentionKind, ForwardShape, logits_bytes
from brim.planning.encoder import MediaStep, media_step
from brim.planning.engines import graph_bytes
from brim.planning.pricer import Costs, Pricer, StepLoad
from brim.planning.settings import PlanSettings
from brim.records.plan import LedgerItem, Source
from brim.records.trace import ActivationCurve
from brim.units import MIB

_LARGEST_CAPTURE = 256  # requests in a decode step that engines capture as a CUDA graph
_NCCL_BYTES = 512 * MIB  # channels and all-reduce buffers of a rank
_LOWEST_SLACK_PERCENT = 10  # what expandable segments reserve beyond the peak, in the median
_SAMPLER_BYTES = 4 + 4 + 8  # fp32 logits, probabilities, sorted indices, for a row and an entry of the vocabulary
_NO_GRAPHS = LedgerItem("graphs", 0, Source.GIVEN, "switched off")


def fixed_items(
    settings: PlanSettings, pricer: Pricer, costs: Costs, load: StepLoad, context: int
) -> tuple[LedgerItem, ...]:
    """Every item but state and KV, in the order of the ledger."""
    own = settings.engine is not None and settings.engine.own_rules
    running = _with_own_rules(settings, load, context) if own else _running_items(settings, pricer, load)
    return (
        _context(settings),
        _weights(costs, settings),
        _draft(settings, pricer, costs, load, running.activation.bytes),
        _encoder(media_step(settings, pricer, context, running.activation.bytes), running.activation.bytes),
        running.activation,
        running.workspace,
        running.graphs,
        _neighbours(settings),
        LedgerItem("canary", settings.canary_bytes, Source.CONSTANT, "safety margin"),
    )


@dataclass(frozen=True, slots=True)
class _Running:
    """What running steps takes beside weights and KV."""

    activation: LedgerItem
    workspace: LedgerItem
    graphs: LedgerItem


def _running_items(settings: PlanSettings, pricer: Pricer, load: StepLoad) -> _Running:
    activation = _activation(settings, pricer, load)
    workspace = _workspace(settings, pricer, load, activation.bytes)
    return _Running(activation, workspace, _graphs(settings, pricer, load))


def _with_own_rules(settings: PlanSettings, load: StepLoad, context: int) -> _Running:
    """What vLLM's own code takes in the worst steps that its API allows, and not what its profile believes."""
    from brim.planning.vllm.held import held_under_worst_load  # other plans do without
    from brim.planning.vllm.proof import margin_bytes

    run = settings.vllm_run(batch_tokens=load.step_tokens, max_seqs=load.running, max_len=context)
    held = held_under_worst_load(settings.spec, settings.device, run)
    margin = margin_bytes(held.step, settings.vllm_unproven(run))
    workspace = held.libraries + held.made_at_load + held.kept + held.collectives + held.slack + margin
    detail = f"vllm: libraries, tables and workspaces, allocator slack {held.slack // MIB} MiB"
    if margin:
        detail += f", {margin // MIB} MiB because no fit of this kind is stored"
    step = f"the worst step that vllm's API allows: {load.step_tokens:,} tokens, {load.running:,} requests"
    graphs = held.driver_graphs + held.graph_pool
    return _Running(
        activation=LedgerItem("activation", held.step, Source.FORMULA, step),
        workspace=LedgerItem("workspace", workspace, Source.FORMULA, detail),
        graphs=LedgerItem(
            "graphs", graphs, Source.FORMULA, f"captured up to {run.captured_tokens} tokens, and the driver's"
        )
        if run.captured_tokens
        else _NO_GRAPHS,
    )


def _context(settings: PlanSettings) -> LedgerItem:
    device = settings.device
    source = device.source if device.source in (Source.CATALOGUE, Source.PUBLISHED) else Source.FORMULA
    detail = f"driver {device.hidden_bytes // MIB} MiB, context {device.context_bytes // MIB} MiB"
    return LedgerItem("context", device.hidden_bytes + device.context_bytes, source, detail)


def _weights(costs: Costs, settings: PlanSettings) -> LedgerItem:
    found, adapters = costs.weights, settings.placement.adapters
    share = (
        "" if found.rank_bytes == found.total_bytes else f", this rank's share of {found.total_bytes / 2**30:,.1f} GiB"
    )
    source = Source.FORMULA if found.hypothetical else Source.EXACT
    detail = found.detail + share
    if adapters is not None:
        loras = f"{adapters.count} LoRA adapter{'' if adapters.count == 1 else 's'} of rank {adapters.rank}"
        detail += f", and {loras}: {costs.adapter_bytes / MIB:,.1f} MiB"
    return LedgerItem("weights", found.rank_bytes + costs.adapter_bytes, source, detail)


def _draft(settings: PlanSettings, pricer: Pricer, costs: Costs, load: StepLoad, activation: int) -> LedgerItem:
    """The speculator's weights; its step only where it is wider than the target's. Its KV is added when solved."""
    if settings.draft is None or costs.draft_weights is None:
        return LedgerItem("draft", 0, Source.EXACT, "no draft model")
    step = pricer.step(settings.draft, _step_shape(settings, load))
    beyond = max(0, step - activation)
    detail = f"{settings.draft.name}: {costs.draft_weights.detail}"
    return LedgerItem("draft", costs.draft_weights.rank_bytes + beyond, Source.EXACT, detail)


def _encoder(step: MediaStep, activation: int) -> LedgerItem:
    """What a step with the largest image or audio takes beyond the largest text step."""
    beyond = max(0, step.bytes - activation)
    detail = f"{step.detail}: {step.bytes / MIB:,.0f} MiB, of which activation is a part" if beyond else step.detail
    return LedgerItem("encoder", beyond, step.source, detail)


def _logit_rows(settings: PlanSettings, load: StepLoad) -> int:
    """Rows of logits in a step: one for every request, and one for each of its drafted tokens."""
    return min(load.running * (1 + settings.draft_tokens), load.step_tokens)


def _step_shape(settings: PlanSettings, load: StepLoad) -> ForwardShape:
    return ForwardShape(load.step_tokens, 1, _logit_rows(settings, load), settings.attention, settings.tensor_ranks)


def _activation(settings: PlanSettings, pricer: Pricer, load: StepLoad) -> LedgerItem:
    """The layers of a step, or what scores its prompts behind them, where that is more."""
    layers = _layers(settings, pricer, load)
    scoring = settings.engine.scoring_bytes if settings.engine else 0
    hidden = load.step_tokens * settings.spec.hidden * settings.spec.dtype.bytes
    if not scoring or layers.bytes >= hidden + scoring:
        return layers
    detail = f"prompt log-probabilities of {load.step_tokens:,} tokens in {scoring // MIB} MiB: more than the layers"
    return LedgerItem("activation", hidden + scoring, Source.FORMULA, detail)


def _layers(settings: PlanSettings, pricer: Pricer, load: StepLoad) -> LedgerItem:
    shape, step_tokens = _step_shape(settings, load), load.step_tokens
    curve = _step_curve(settings)
    if curve is not None:
        size = max(pricer.traced(curve, step_tokens).peak_bytes, logits_bytes(settings.spec, shape))
        detail = f"a step of {step_tokens:,} tokens, by the model's own code"
        return LedgerItem("activation", size, Source.TRACED, detail)
    detail = f"largest set of live tensors in a step of {step_tokens:,} tokens"
    if settings.attention is AttentionKind.EAGER:
        detail += ", with attention scores"
    return LedgerItem("activation", pricer.step(settings.spec, shape), Source.FORMULA, detail)


def _workspace(settings: PlanSettings, pricer: Pricer, load: StepLoad, activation: int) -> LedgerItem:
    rows = _logit_rows(settings, load)
    slack, words = _slack(settings, pricer, load.step_tokens, activation)
    sampler = rows * settings.spec.vocab * _SAMPLER_BYTES
    ranks = _NCCL_BYTES if settings.communicates else 0
    copied = settings.part.copied_bytes if settings.part else 0
    kernels = f"kernels and matmul {settings.device.workspace_bytes // MIB} MiB"
    detail = f"{kernels}, allocator slack {words}, sampler of {rows} rows" + (", NCCL" if ranks else "")
    detail += f", a copy of a host matrix {copied // MIB} MiB" if copied else ""
    size = settings.device.workspace_bytes + slack + sampler + ranks + copied
    return LedgerItem("workspace", size, Source.FORMULA, detail)


def _slack(settings: PlanSettings, pricer: Pricer, step_tokens: int, activation: int) -> tuple[int, str]:
    """What the allocator reserves beyond a step's peak: by the curve with expandable segments, else a fixed share."""
    percent = settings.engine.slack_percent if settings.engine else _LOWEST_SLACK_PERCENT
    curve = _step_curve(settings)
    if curve is None or percent > _LOWEST_SLACK_PERCENT:
        return activation * percent // 100, f"{percent} %"
    traced = pricer.traced(curve, step_tokens)
    slack = max(0, traced.reserved_bytes - traced.peak_bytes)
    return slack, f"{slack // MIB} MiB as traced"


def _step_curve(settings: PlanSettings) -> ActivationCurve | None:
    """The traced curve of a step, if it matches these settings: number of ranks, fused attention."""
    curve = settings.curves.step
    if curve is None or curve.ranks != settings.tensor_ranks or settings.attention is not AttentionKind.FUSED:
        return None
    return curve


def _graphs(settings: PlanSettings, pricer: Pricer, load: StepLoad) -> LedgerItem:
    if settings.graphs is False:
        return _NO_GRAPHS
    captured = min(load.running, _LARGEST_CAPTURE)
    step = pricer.step(settings.spec, ForwardShape(captured, captured, captured, ranks=settings.tensor_ranks))
    size = graph_bytes(len(settings.spec.layers), step)
    return LedgerItem("graphs", size, Source.FORMULA, f"decode captured up to {captured} requests, one pool")


def _neighbours(settings: PlanSettings) -> LedgerItem:
    seen = settings.device.neighbour_bytes
    source = Source.MEASURED if seen and not settings.reserve_bytes else Source.GIVEN
    words = [f"{seen // MIB} MiB in use now"] if seen else []
    words += ["--reserve"] if settings.reserve_bytes else []
    return LedgerItem("neighbours", seen + settings.reserve_bytes, source, ", ".join(words) or "none")
