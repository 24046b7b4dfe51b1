"""A plan from end to end: resolve the request, solve, advise, and print it as an engine's flags."""

from __future__ import annotations

from dataclasses import replace

from brim.model.kv import kv_footprint
from brim.planning.activation import AttentionKind, ForwardShape, step_bytes
from brim.planning.advise import advise
from brim.planning.encoder import media_step
from brim.planning.engine_default import engine_default
from brim.planning.engines import draft_notes, version_notes
from brim.planning.flags import check_engine, engine_command, engine_ruling
from brim.planning.node import ledgers, stage_ledgers, tightest
from brim.planning.placement.automatic import settle
from brim.planning.placement.host import host_ledger
from brim.planning.placement.ranks import rank_ledgers
from brim.planning.pricer import Pricer
from brim.planning.settings import Curves, PlanSettings, only_eager, resolve
from brim.planning.solving.instead import what_fits_instead
from brim.planning.solving.solve import Solution, solve
from brim.planning.users import answer_users
from brim.records.model import Dtype, ModelSpec
from brim.records.plan import (
    Asked,
    Device,
    EngineProof,
    Instead,
    KvKindBytes,
    MemoryPlan,
    Parallelism,
    PlannedCommand,
    PlanRequest,
    Source,
)
from brim.units import format_bytes


def make_plan(
    spec: ModelSpec,
    devices: tuple[Device, ...],
    request: PlanRequest,
    draft: ModelSpec | None = None,
    curves: Curves = Curves(),  # noqa: B008 - frozen
) -> MemoryPlan:
    """What fits on the devices of all ranks, what limits it, and what each setting would gain."""
    device = tightest(devices)
    asked = resolve(spec, device, request, draft, curves)
    check_engine(asked)
    pricer = Pricer()
    settings = settle(asked, pricer)
    solution = solve(settings, pricer)
    footprint = solution.costs.footprint
    instead = None if solution.fits else what_fits_instead(settings, pricer, solution)
    command = engine_command(settings, solution)
    proof = _engine_proof(settings, solution)
    ranks = rank_ledgers(settings, pricer, solution)
    activation = next(item.bytes for item in solution.items if item.name == "activation")
    return MemoryPlan(
        model=spec.name,
        family=spec.family,
        device=device,
        ranks=settings.devices,
        asked=Asked(request, settings.full_requests, device.total_bytes - solution.slack_bytes),
        fits=solution.fits,
        shortfall_bytes=max(0, -solution.slack_bytes),
        fits_concurrency=_fits_concurrency(solution, instead),
        fits_instead=_instead(instead),
        items=solution.items,
        ledgers=ledgers(devices, device, solution.items)
        if not solution.filled.others
        else stage_ledgers(devices, device, ranks, settings.tensor_ranks),
        parallelism=_parallelism(settings),
        rank_ledgers=ranks,
        host=host_ledger(settings, pricer, solution),
        weights_bytes=solution.costs.weights.total_bytes,
        kv_bytes_per_token=footprint.bytes_per_token,
        kv_kinds=tuple(
            KvKindBytes(kind.kind, kind.layers, kind.bytes_per_token, kind.window, kind.stride)
            for kind in footprint.kinds
        ),
        kv_dtype=str(footprint.dtype),
        state_bytes_per_request=footprint.state_bytes_per_request,
        request_bytes=footprint.request_bytes(solution.max_len),
        activation_bytes=activation,
        encoder_bytes=_encoder_bytes(settings, pricer, solution, activation),
        kv_tokens=solution.kv_tokens,
        max_len=solution.max_len,
        max_seqs=solution.max_seqs,
        concurrency=solution.concurrency,
        mean_len=settings.mean_len,
        mean_requests=solution.mean_requests,
        usual_lengths=solution.usual_lengths,
        users=answer_users(settings, pricer, solution, request),
        batch_tokens=solution.batch_tokens,
        limited_by=solution.limited_by,
        lowered=solution.lowered,
        traced_with=_traced_with(settings, solution),
        advice=advise(settings, solution, pricer),
        engine=settings.engine.name if settings.engine else None,
        engine_version=settings.engine.version if settings.engine else None,
        engine_default=engine_default(settings, pricer),
        proof=proof,
        flags=command.flags if command else (),
        command=command.args if command else (),
        shell=command.shell if command else None,
        commands=_commands(settings, solution, instead),
        warnings=(
            *_warnings(settings, solution),
            *(version_notes(settings.engine, request.engine) if settings.engine else ()),
            *(_proof_notes(proof, settings) if proof else ()),
            *(command.notes if command else ()),
        ),
    )


def _parallelism(settings: PlanSettings) -> Parallelism:
    """An engine that divides by layers has a stage on every GPU."""
    placement = settings.placement
    stages = settings.ranks if settings.splits_layers else placement.pipeline
    return Parallelism(settings.tensor_ranks, stages, placement.replicas, placement.expert_parallel)


def _fits_concurrency(solution: Solution, instead: Solution | None) -> int:
    """Requests of the length that was asked for."""
    if solution.fits:
        return solution.concurrency
    return instead.concurrency if instead is not None and instead.max_len == solution.max_len else 0


def _instead(solution: Solution | None) -> Instead | None:
    if solution is None:
        return None
    return Instead(
        concurrency=solution.concurrency,
        max_len=solution.max_len,
        kv_tokens=solution.kv_tokens,
        max_seqs=solution.max_seqs,
        batch_tokens=solution.batch_tokens,
    )


def _commands(settings: PlanSettings, solution: Solution, instead: Solution | None) -> tuple[PlannedCommand, ...]:
    """The engine's command of what fits: as asked, or instead."""
    one = solution if solution.fits else instead
    command = None if one is None else engine_command(settings, one)
    if one is None or command is None:
        return ()
    return (PlannedCommand(one is solution, one.concurrency, one.max_len, command.args, command.env, command.shell),)


def _engine_proof(settings: PlanSettings, solution: Solution) -> EngineProof | None:
    """What of the plan no fit has proven inside the engine, and the margin that it has for that."""
    if settings.engine is None or not settings.engine.own_rules:
        return None
    from brim.planning.vllm.proof import margin_bytes  # other plans do without

    limits = {"batch_tokens": solution.batch_tokens, "max_seqs": solution.max_seqs, "max_len": solution.max_len}
    missing = settings.vllm_unproven(settings.vllm_run(**limits))
    step = next(item.bytes for item in solution.items if item.name == "activation")
    return EngineProof(missing, margin_bytes(step, missing))


def _proof_notes(proof: EngineProof, settings: PlanSettings) -> list[str]:
    assert settings.engine is not None
    if not proof.unproven:
        return []
    return [
        f"{settings.engine.name}: no fit of this kind has been stored ({', '.join(proof.unproven)}); the size has a "
        f"margin of {format_bytes(proof.margin_bytes)}: brim plan --verify measures it"
    ]


def _traced_with(settings: PlanSettings, solution: Solution) -> str | None:
    traced = any(item.name == "activation" and item.source is Source.TRACED for item in solution.items)
    return settings.curves.step.versions if traced and settings.curves.step else None


def _encoder_bytes(settings: PlanSettings, pricer: Pricer, solution: Solution, activation: int) -> int:
    media = replace(settings, image_pixels=solution.image_pixels, images_per_prompt=solution.images_per_prompt)
    return media_step(media, pricer, solution.max_len, activation).bytes


def _warnings(settings: PlanSettings, solution: Solution) -> tuple[str, ...]:
    spec, found = settings.spec, [*settings.spec.warnings]
    if settings.draft:
        found += [f"draft {settings.draft.name}: {text}" for text in settings.draft.warnings]
    if spec.draft_only:
        found.append("this is a draft model: plan its target model instead, with this one as --draft")
    if spec.dtype is Dtype.FP32 and settings.stored is None and settings.weights_dtype is None:
        found.append("the config says fp32; engines usually load such weights as bf16: plan that with --weights bf16")
    if solution.max_len > spec.max_positions:
        found.append(f"max-len {solution.max_len:,} is beyond the {spec.max_positions:,} positions of the model")
    if solution.fits and settings.max_len is None and solution.max_len < spec.max_positions:
        found.append(f"the context is limited to {solution.max_len:,} of the model's {spec.max_positions:,} tokens")
    if settings.engine:
        found += _engine_warnings(settings, solution)
    elif settings.attention is AttentionKind.FUSED and only_eager(spec):
        shape = ForwardShape(solution.batch_tokens, attention=AttentionKind.EAGER, ranks=settings.tensor_ranks)
        found.append(
            "planned with fused attention, as in serving engines; transformers' own code materialises the scores, and "
            f"a step would take {format_bytes(step_bytes(spec, shape))} (--attn eager)"
        )
    return tuple(found)


def _engine_warnings(settings: PlanSettings, solution: Solution) -> list[str]:
    assert settings.engine is not None
    found = [
        *engine_ruling(settings, settings.engine).notes,
        *draft_notes(settings.engine, settings.spec, settings.draft),
    ]
    minimum = kv_footprint(settings.spec, settings.kv_dtype, settings.tensor_ranks).request_bytes(solution.max_len)
    stored = solution.costs.footprint.request_bytes(solution.max_len)
    if stored > minimum * 1.01:
        found.append(
            f"{settings.engine.name} {settings.engine.note}: {format_bytes(stored)} for a request of "
            f"{solution.max_len:,} tokens, where the model needs {format_bytes(minimum)}"
        )
    if settings.attention is AttentionKind.EAGER:
        fused = step_bytes(settings.spec, ForwardShape(solution.batch_tokens, ranks=settings.tensor_ranks))
        found.append(
            f"eager attention materialises its scores: with a fused kernel a step would take {format_bytes(fused)}"
        )
    return found
