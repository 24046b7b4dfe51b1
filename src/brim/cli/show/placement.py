"""Where a plan puts the parts of a model, in words: stages, replicas and host memory."""

from __future__ import annotations

from brim.records.plan import HostLedger, LedgerItem, MemoryPlan, RankLedger
from brim.units import format_bytes


def placement_lines(plan: MemoryPlan) -> list[str]:
    """A line for every stage, one for the host; none where all devices hold the same and the host nothing."""
    ranks = plan.rank_ledgers
    stages = [_stage(one, plan.device.name) for one in ranks] if len(ranks) > 1 else []
    return stages + ([_host(plan.host)] if plan.host else [])


def replica_line(plan: MemoryPlan) -> str:
    """What all replicas hold together."""
    shared = ", which share the experts" if plan.parallelism.experts else ""
    return (
        f"on each of {plan.parallelism.data} replicas{shared}: {plan.total_concurrency:,} requests and "
        f"{plan.total_kv_tokens:,} tokens in all"
    )


def _stage(one: RankLedger, device: str) -> str:
    sizes = {item.name: item.bytes for item in one.items}
    free = f", {format_bytes(sizes['free'])} free" if sizes.get("free") else ""
    layers = f"layers {one.layers.start} to {one.layers.stop - 1}" if one.layers else "no layers"
    return (
        f"stage {one.stage}: {layers} on {one.count} × {device}: weights {format_bytes(sizes['weights'])}, "
        f"KV {format_bytes(sizes['kv'])}{free}"
    )


def _host(host: HostLedger) -> str:
    return f"host memory: {format_bytes(host.total_bytes)}: " + "; ".join(_host_item(item) for item in host.items)


def _host_item(item: LedgerItem) -> str:
    return f"{item.name} {format_bytes(item.bytes)} ({item.detail})"
