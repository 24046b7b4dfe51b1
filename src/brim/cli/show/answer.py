"""The answer of a plan in words: what fits, or what is missing."""

from __future__ import annotations

from brim.records.plan import EngineDefault, Lowered, MemoryPlan
from brim.units import format_bytes


def answer(plan: MemoryPlan) -> list[str]:
    """A few lines, the most important first."""
    return _fits(plan) if plan.fits else _missing(plan)


def _fits(plan: MemoryPlan) -> list[str]:
    lines = [
        f"{requests(plan.concurrency)} × {plan.max_len:,} tokens at once: {plan.kv_tokens:,} tokens of {plan.kv_dtype} "
        "KV cache",
        f"at most {requests(plan.max_seqs)} run at once, in steps of {plan.batch_tokens:,} tokens; limited by "
        f"{plan.limited_by}",
    ]
    if plan.mean_requests is not None:
        lines.append(f"with {plan.mean_len:,} tokens on average, {requests(plan.mean_requests)} run at once")
    if plan.lowered:
        lines.append("lowered, so that it fits: " + ", ".join(_change(one) for one in plan.lowered))
    return [*lines, _prices(plan)]


def _missing(plan: MemoryPlan) -> list[str]:
    wanted = f"{requests(max(1, plan.concurrency))} of {plan.max_len:,} tokens"
    lines = [f"{format_bytes(plan.shortfall_bytes)} missing for {wanted}; limited by {plan.limited_by}"]
    if plan.lowered:
        lowest = ", ".join(f"{_name(one)} {_number(one.lowered)}" for one in plan.lowered)
        lines.append(f"even with what was left open at its lowest: {lowest}")
    return [*lines, _prices(plan)]


def by_itself(engine: str, default: EngineDefault) -> str:
    """What an engine does that is not told a size."""
    if not default.starts:
        return f"{engine} by itself would not start with a context of {default.max_len:,} tokens"
    return (
        f"{engine} by itself takes {default.request_tokens:,} tokens, and would begin to die at a memory fraction of "
        f"{default.dies_from_fraction:.3f}"
    )


def _prices(plan: MemoryPlan) -> str:
    each = f"a token takes {format_bytes(plan.kv_bytes_per_token)}, a request {format_bytes(plan.request_bytes)}"
    state = f" ({format_bytes(plan.state_bytes_per_request)} of it state)" if plan.state_bytes_per_request else ""
    return each + state


def _change(one: Lowered) -> str:
    return f"{_name(one)} {_number(one.usual)} → {_number(one.lowered)}"


def _name(one: Lowered) -> str:
    return one.knob.replace("_", "-")


def _number(text: str) -> str:
    return f"{int(text):,}" if text.isdigit() else text


def requests(count: int) -> str:
    """A number of requests in words."""
    return f"{count:,} request{'' if count == 1 else 's'}"
