"""The smallest change that prevents an incident: a flag of that engine, its number, and its price in KV tokens.

A number is given only where something has checked it: a plan of the model on that device, the ledger that the source
itself states, or a step of that size that ran. Where nothing has, there is no fix, and `brim explain` says what is
missing. A ledger knows the shortfall of the first allocation that failed, and not what would have been asked for next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import floor

from brim.explain.causes import MemoryCause
from brim.explain.facts import Incident, Sign
from brim.record.entries import StepState
from brim.records.fit import CANARY_BYTES
from brim.records.plan import MemoryPlan
from brim.units import MIB, round_down

PLAN, LEDGER, RECORDING = "plan", "ledger", "recording"
_TAKEN_FROM_POOL = frozenset(
    {
        MemoryCause.GRAPHS,
        MemoryCause.FRACTION,
        MemoryCause.SAMPLING,
        MemoryCause.LARGE_STEP,
        MemoryCause.SCORED_PROMPTS,
        MemoryCause.MEDIA,
        MemoryCause.DRAFTS,
    }
)
_FRACTIONS = {"vllm": "--gpu-memory-utilization", "sglang": "--mem-fraction-static"}
_LEAST_FRACTION = 0.05
_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Fix:
    """A change. Tokens of None: not known."""

    engine: str
    flag: str
    value: str
    kv_tokens_before: int | None
    kv_tokens_after: int | None
    checked_by: str

    def to_json(self) -> dict[str, object]:
        return {
            "engine": self.engine,
            "flag": self.flag,
            "value": self.value,
            "kv_tokens_before": self.kv_tokens_before,
            "kv_tokens_after": self.kv_tokens_after,
            "checked_by": self.checked_by,
        }


Fixer = Callable[[MemoryCause, Incident, "MemoryPlan | None"], "Fix | None"]


def fixes_for(cause: MemoryCause, incident: Incident, plan: MemoryPlan | None) -> tuple[Fix, ...]:
    """Those that were checked, the smallest change first."""
    found = (fixer(cause, incident, plan) for fixer in _FIXERS)
    return tuple(fix for fix in found if fix is not None)


def _lower_fraction(cause: MemoryCause, incident: Incident, plan: MemoryPlan | None) -> Fix | None:
    """What was missing, and a canary, taken from the pool: by the figures of the log itself."""
    flag = _FRACTIONS.get(incident.engine)
    fraction, total, kv = incident.last("fraction"), incident.value("total_bytes"), incident.value("kv_bytes")
    if flag is None or cause not in _TAKEN_FROM_POOL or fraction is None or not total or not kv:
        return None
    graphs = incident.value("graphs_bytes") or 0
    if cause is MemoryCause.GRAPHS and not graphs:
        return None  # how much the rest of the capture would have taken is not known
    lower = floor((fraction.value - (_missing_bytes(incident) + graphs + CANARY_BYTES) / total) * 100) / 100
    less = round((fraction.value - lower) * total)
    if lower < _LEAST_FRACTION or less >= kv:
        return None
    before = incident.value("kv_tokens")
    after = None if before is None else int(before * (kv - less) / kv)
    longest = incident.value("max_len")
    if after is not None and longest is not None and after < longest:
        return None  # it would not start
    return Fix(incident.engine, flag, f"{lower:.2f}", before, after, LEDGER)


def _missing_bytes(incident: Incident) -> int:
    shortfalls = [(one.tried_bytes or 0) - (one.free_bytes or 0) for one in incident.refusals if one.tried_bytes]
    return max([0, *shortfalls])


def _planned_size(cause: MemoryCause, incident: Incident, plan: MemoryPlan | None) -> Fix | None:
    """The size that a plan of this model on this device gives the pool, with the worst step and graphs beside it."""
    if plan is None or not plan.fits or cause not in _TAKEN_FROM_POOL or incident.engine != "vllm":
        return None
    flags = dict(zip(plan.flags, plan.flags[1:], strict=False))
    value = flags.get("--kv-cache-memory-bytes")
    if value is None:
        return None
    return Fix("vllm", "--kv-cache-memory-bytes", value, incident.value("kv_tokens"), plan.kv_tokens, PLAN)


def _beside_neighbours(cause: MemoryCause, incident: Incident, plan: MemoryPlan | None) -> Fix | None:
    """The fraction of the device that was free at the start, less a canary."""
    total, free = incident.value("total_bytes"), incident.value("free_at_start_bytes")
    if cause is not MemoryCause.NEIGHBOUR or incident.engine != "vllm" or not total or free is None:
        return None
    fraction = floor((free - CANARY_BYTES) / total * 100) / 100
    weights = incident.value("weights_bytes") or 0
    if fraction < _LEAST_FRACTION or fraction * total <= weights:
        return None
    return Fix("vllm", "--gpu-memory-utilization", f"{fraction:.2f}", None, None, LEDGER)


def _shorter_requests(cause: MemoryCause, incident: Incident, plan: MemoryPlan | None) -> Fix | None:
    """A pool that is below one request: requests as long as the pool."""
    tokens = incident.value("kv_tokens")
    if cause is not MemoryCause.POOL or incident.first_seen(Sign.POOL_BELOW_REQUEST) is None or not tokens:
        return None
    if incident.engine == "brim":
        longest = incident.value("max_len") or 0
        return Fix("brim", "--kv-tokens", str(longest), tokens, longest, LEDGER)
    length = round_down(tokens, _BLOCK_TOKENS)
    return Fix("vllm", "--max-model-len", str(length), tokens, tokens, LEDGER) if length else None


def _growing_segments(cause: MemoryCause, incident: Incident, plan: MemoryPlan | None) -> Fix | None:
    """Segments that grow are not cut into pieces: what is unused in them can be had again."""
    if cause is not MemoryCause.FRAGMENTATION or not incident.refusals:
        return None
    tokens = incident.value("kv_tokens")
    return Fix(incident.engine, "PYTORCH_ALLOC_CONF", "expandable_segments:True", tokens, tokens, LEDGER)


def _step_that_ran(cause: MemoryCause, incident: Incident, plan: MemoryPlan | None) -> Fix | None:
    """Brim's engine: the largest step that ran before one was refused."""
    if cause is not MemoryCause.LARGE_STEP or not incident.recordings:
        return None
    steps = incident.recordings[0].recorded.steps
    refused = next((step.time for step in steps if step.state is StepState.OUT_OF_MEMORY), None)
    ran = [
        step.tokens for step in steps if step.state is StepState.LAUNCHED and (refused is None or step.time < refused)
    ]
    if not ran or not max(ran):
        return None
    tokens = incident.value("kv_tokens")
    return Fix("brim", "--batch-tokens", str(max(ran)), tokens, tokens, RECORDING)


def _kept_free(cause: MemoryCause, incident: Incident, plan: MemoryPlan | None) -> Fix | None:
    """Brim's engine: so much stays free for a neighbour as the one that came has taken."""
    if cause is not MemoryCause.NEIGHBOUR or incident.engine != "brim":
        return None
    others = [one.held_bytes for one in incident.holders if not one.own]
    kv, tokens = incident.value("kv_bytes"), incident.value("kv_tokens")
    if not others or not kv or not tokens or max(others) >= kv:
        return None
    size = -(-max(others) // MIB)
    return Fix("brim", "--keep-free", f"{size}MiB", tokens, int(tokens * (kv - size * MIB) / kv), LEDGER)


_FIXERS: tuple[Fixer, ...] = (
    *(_lower_fraction, _planned_size, _beside_neighbours, _shorter_requests, _growing_segments),
    *(_step_that_ran, _kept_free),
)
BRIM_WOULD = {
    MemoryCause.LARGE_STEP: "`brim vllm serve` and `brim serve` run the largest step before they size the pool",
    MemoryCause.SCORED_PROMPTS: "`brim vllm serve` scores prompts some rows at a time, within a fixed amount of memory",
    MemoryCause.SAMPLING: "`brim vllm serve` sizes the pool beside a full batch that samples",
    MemoryCause.GRAPHS: "`brim vllm serve` sizes the pool after the graphs were captured, and proves it",
    MemoryCause.WEIGHTS: "`brim plan MODEL --gpu GPU` says before the start that they do not fit, and what would",
    MemoryCause.FRACTION: "`brim vllm serve` needs no fraction: it measures, sizes and proves the pool",
    MemoryCause.NEIGHBOUR: "a lease (`brim hold`) or a floor (--keep-free) keeps the neighbour's part out of the pool",
    MemoryCause.MEDIA: "`brim vllm serve` sizes the pool beside the largest image that the processor lets through",
    MemoryCause.DRAFTS: "`brim vllm serve` sizes the pool with the draft model loaded and drafts in the worst step",
    MemoryCause.FRAGMENTATION: "`brim vllm serve` uses growing segments, and counts what its allocator cannot use",
    MemoryCause.POOL: "`brim plan` says how many requests of a length fit; `brim serve` admits as many",
    MemoryCause.LEAK: "`brim fit` reports what a teardown leaves behind, with the largest tensors that are alive",
    MemoryCause.HOST: "Brim bounds what it takes of the host (--host-memory, --media-cache)",
}
