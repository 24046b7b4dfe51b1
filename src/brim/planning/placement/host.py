"""What a plan takes of host memory.

In: settings and their solution. Out: a `HostLedger`, or None where nothing is asked of the host. It knows no limit:
how much memory a machine has is not in a plan. Weights are there where an engine keeps layers, experts or embeddings
on the host; KV of layers that are there stays with them; a tier holds prefixes that leave the devices.
"""

from __future__ import annotations

from brim.model.kv import kv_footprint
from brim.planning.placement.offload import HostPart, host_part
from brim.planning.placement.ranks import kv_bytes
from brim.planning.pricer import Pricer
from brim.planning.settings import PlanSettings
from brim.planning.solving.solve import Solution
from brim.records.plan import HostLedger, LedgerItem, Source
from brim.units import round_down, round_up


def host_ledger(settings: PlanSettings, pricer: Pricer, solution: Solution) -> HostLedger | None:
    """Weights and KV on the host, and the tier that was asked for."""
    items = _left_on_host(settings, pricer, solution)
    tier = settings.placement.host_kv_bytes
    tokens = prefix_tokens(settings, solution) if tier else 0
    if tier:
        items.append(LedgerItem("kv tier", tier, Source.GIVEN, f"prefixes of {tokens:,} tokens (--host-kv)"))
    return HostLedger(tuple(items), tokens) if items else None


def prefix_tokens(settings: PlanSettings, solution: Solution) -> int:
    """Tokens of prefixes that the tiers of all replicas hold: each rank keeps its own share of a token."""
    replicas = settings.placement.replicas
    size, length = settings.placement.host_kv_bytes // replicas, solution.max_len
    if not _replica_bytes(settings, solution, length):
        return 0
    low, high = 0, 1
    while _replica_bytes(settings, solution, high) <= size:
        low, high = high, high * 2
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if _replica_bytes(settings, solution, middle) <= size else (low, middle)
    return replicas * round_down(low, settings.block_tokens)


def _replica_bytes(settings: PlanSettings, solution: Solution, tokens: int) -> int:
    """KV of so many tokens on all ranks of a replica, in requests of the longest context."""
    return sum(settings.tensor_ranks * kv_bytes(one, tokens, solution.max_len) for one in solution.filled.devices)


def _left_on_host(settings: PlanSettings, pricer: Pricer, solution: Solution) -> list[LedgerItem]:
    if not settings.splits_layers or not settings.device.has_host_memory_apart:
        return []
    spec, part = settings.spec, host_part(settings.spec, settings.placement)
    whole = pricer.weights(spec, 1, settings.stored, settings.weights_dtype)
    held = pricer.weights(part.weights, 1, settings.stored, settings.weights_dtype).rank_bytes
    items = [LedgerItem("weights", held, _source(whole.hypothetical), _words(settings, part))]
    if part.keeping is not None:
        items.append(_kv(settings, solution, part))
    return items


def _source(hypothetical: bool) -> Source:
    return Source.FORMULA if hypothetical else Source.EXACT


def _words(settings: PlanSettings, part: HostPart) -> str:
    found = ["input embeddings"]
    found += [f"layers 0 to {part.layers.stop - 1}"] if part.layers else []
    experts = settings.placement.cpu_experts
    found += [f"experts of layers 0 to {experts - 1}"] if experts > part.layers.stop else []
    return ", ".join(found)


def _kv(settings: PlanSettings, solution: Solution, part: HostPart) -> LedgerItem:
    """KV of the layers on the host, for as many tokens as the GPUs hold; their states too."""
    assert part.keeping is not None
    assert settings.engine is not None
    footprint = kv_footprint(part.keeping, settings.kv_dtype, 1, settings.engine.storage(solution.batch_tokens))
    occupied = round_up(solution.max_len, settings.block_tokens)
    whole, rest = divmod(solution.kv_tokens, occupied)
    size = whole * footprint.kv_bytes(occupied) + footprint.kv_bytes(rest)
    states = solution.max_seqs * footprint.state_bytes_per_request
    words = f"{solution.kv_tokens:,} tokens of {len(part.layers)} layers"
    return LedgerItem("kv", size + states, Source.EXACT, words + (", with their states" if states else ""))
