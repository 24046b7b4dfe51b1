"""What the engine of a plan would do by itself: with its own memory fraction, and its own limits where none were given.

In: settings. Out: `EngineDefault`, or None for engines that have no size of their own. vLLM's rules were compared with
real starts; those of other engines are their published ones (`engines.by_itself`), and the result says so.
"""

from __future__ import annotations

from brim.planning.activation import ForwardShape
from brim.planning.engines import EngineRules
from brim.planning.engines.by_itself import BareStart, OwnSize
from brim.planning.placement.adapters import adapter_bytes
from brim.planning.pricer import Pricer
from brim.planning.settings import PlanSettings
from brim.records.model import Dtype
from brim.records.plan import EngineDefault
from brim.units import round_down

_CHECKED = "by its own rules, not measured here"


def engine_default(settings: PlanSettings, pricer: Pricer) -> EngineDefault | None:
    """What the engine would do with what was given."""
    engine = settings.engine
    if engine is None or settings.device.is_cpu or not settings.placement.is_plain:
        return None
    if engine.own_rules:
        return _of_vllm(settings, pricer)
    return (
        None
        if engine.by_itself is None
        else _by_rule(settings, pricer, engine, engine.by_itself(_start(settings, pricer)))
    )


def _of_vllm(settings: PlanSettings, pricer: Pricer) -> EngineDefault:
    from brim.planning.vllm.default import engine_default as default  # other plans do without

    run = settings.vllm_run(batch_tokens=settings.batch_tokens, max_seqs=settings.max_seqs, max_len=settings.max_len)
    return default(settings.spec, settings.device, _weights(settings, pricer), run)


def _start(settings: PlanSettings, pricer: Pricer) -> BareStart:
    draft = settings.draft
    drafts = 0 if draft is None else pricer.weights(draft, settings.ranks).rank_bytes
    return BareStart(
        spec=settings.spec,
        device=settings.device,
        ranks=settings.ranks,
        weights_bytes=_weights(settings, pricer) + drafts,
        step_bytes=lambda tokens: pricer.step(settings.spec, ForwardShape(tokens, ranks=settings.tensor_ranks)),
        max_len=settings.max_len,
        max_seqs=settings.max_seqs,
        batch_tokens=settings.batch_tokens,
        graphs=settings.graphs is not False,
        media=settings.images_per_prompt != 0,
    )


def _by_rule(settings: PlanSettings, pricer: Pricer, engine: EngineRules, own: OwnSize) -> EngineDefault:
    """Bytes as tokens of requests of the longest context, states included."""
    costs = pricer.costs(settings, settings.batch_tokens or engine.default_step)
    tokens = max(0, own.kv_bytes) * own.max_len // max(1, costs.request_bytes(own.max_len))
    if own.most_tokens is not None:
        tokens = min(tokens, own.most_tokens)
    tokens = round_down(tokens, engine.block_tokens)
    return EngineDefault(
        kv_tokens=tokens,
        request_tokens=tokens,
        activation_bytes=own.activation_bytes,
        dies_from_fraction=None,
        max_len=own.max_len,
        starts=own.kv_bytes > 0 and tokens > 0 and own.holds_a_step,
        fraction=own.fraction,
        checked=_CHECKED,
    )


def _weights(settings: PlanSettings, pricer: Pricer) -> int:
    """Of a rank, as engines load them: those in fp32 as bf16."""
    spec = settings.spec
    dtype = Dtype.BF16 if spec.dtype is Dtype.FP32 and settings.weights_dtype is None else settings.weights_dtype
    own = dtype if spec.quantisation is None and settings.stored is None else settings.weights_dtype
    adapters = settings.placement.adapters
    more = adapter_bytes(spec, adapters, settings.ranks) if adapters else 0
    return pricer.weights(spec, settings.ranks, settings.stored, own).rank_bytes + more
