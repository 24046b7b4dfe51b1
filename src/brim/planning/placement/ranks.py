"""The ledger of every device that differs by what it holds, once the device with the least room has decided.

In: settings and their solution. Out: `RankLedger`s in the order of stages. KV on a device is what the tokens of the
solution take there; what is left is free. Where a plan does not fit, KV is the rest, which may be negative.
"""

from __future__ import annotations

from dataclasses import replace

from brim.planning.placement.offload import device_parts
from brim.planning.pricer import Pricer
from brim.planning.settings import PlanSettings
from brim.planning.solving.fill import Filled, Filler
from brim.planning.solving.solve import Solution, ledger_items
from brim.records.plan import LedgerItem, RankLedger, Source
from brim.units import round_up


def rank_ledgers(settings: PlanSettings, pricer: Pricer, solution: Solution) -> tuple[RankLedger, ...]:
    """One for each stage, with how many devices are alike: tensor-parallel ranks, of every replica."""
    alike = settings.tensor_ranks
    return tuple(
        RankLedger(
            rank=stage * alike,
            stage=stage,
            layers=one.settings.part.layers if one.settings.part else range(len(settings.spec.layers)),
            count=alike * settings.placement.replicas,
            items=_items(one, solution, decides=alone),
        )
        for stage, (one, alone) in enumerate(_devices(settings, pricer, solution))
    )


def kv_bytes(filled: Filled, tokens: int, length: int) -> int:
    """KV on a device of so many tokens, in requests of a length that occupy whole blocks."""
    return filled.bytes_of(tokens, round_up(length, filled.settings.block_tokens))


def _devices(settings: PlanSettings, pricer: Pricer, solution: Solution) -> list[tuple[Filled, bool]]:
    """Every distinct device, and whether it decides."""
    if not settings.splits_layers or settings.ranks == 1 or settings.placement.offloads:
        decides = solution.filled.tightest(solution.max_len)
        return [(one, one == decides) for one in solution.filled.devices]
    found = []  # the solution is that of the fullest device, which no single one may be
    for part in device_parts(
        settings.spec, settings.placement, settings.ranks, settings.stored, settings.weights_dtype
    ):
        own = replace(solution.filled.settings, spec=part.spec, part=replace(part, copied_bytes=0))
        found.append((Filler(own, pricer).filled(solution.filled.load, solution.max_len), False))
    return found


def _items(filled: Filled, solution: Solution, *, decides: bool) -> tuple[LedgerItem, ...]:
    items = ledger_items(filled, solution.max_len)
    if decides or not solution.fits:
        return items
    kv = next(item for item in items if item.name == "kv")
    needed = kv_bytes(filled, solution.kv_tokens, solution.max_len)
    draft = next(item for item in items if item.name == "draft")
    taken = min(kv.bytes, needed + filled.null_bytes + filled.costs.footprint.scale_bytes)
    kept = (*(item for item in items if item.name != "kv"), replace(kv, bytes=taken, detail=_detail(kv, draft)))
    free = filled.settings.device.total_bytes - sum(item.bytes for item in kept)
    if free <= 0:
        return kept
    return (*kept, LedgerItem("free", free, Source.SOLVED, "beyond what the device with the least room can hold"))


def _detail(kv: LedgerItem, draft: LedgerItem) -> str:
    beside = ", beside the draft's" if draft.bytes else ""
    return kv.detail.replace("the rest", f"as many tokens as the device with the least room holds{beside}", 1)
