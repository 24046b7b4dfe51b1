"""The answer of a plan in words: what fits, or what is missing."""

from __future__ import annotations

import shlex

from brim.cli.show.placement import replica_line
from brim.records.plan import EngineDefault, Lowered, MemoryPlan, PlannedCommand, UsersAnswer
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
    if plan.parallelism.data > 1:
        lines.append(replica_line(plan))
    if plan.users is not None:
        lines += _users(plan.users, plan.mean_len or 0)
    elif plan.mean_requests is not None:
        lines.append(f"with {plan.mean_len:,} tokens on average, {requests(plan.mean_requests)} run at once")
    elif plan.usual_lengths:
        at = ", ".join(f"{one.tokens:,} tokens each: {requests(one.requests)}" for one in plan.usual_lengths)
        lines.append(f"at {at}")
    if plan.lowered:
        lines.append("lowered, so that it fits: " + ", ".join(_change(one) for one in plan.lowered))
    return [*lines, _prices(plan)]


def _users(found: UsersAnswer, mean_len: int) -> list[str]:
    waiting = found.users - found.at_once
    lines = [
        f"{found.at_once:,} of {found.users:,} users with {mean_len:,} tokens on average run at once"
        + (f", {waiting:,} wait" if waiting else "")
    ]
    if found.most_tokens_per_second is None:
        return lines
    most = f"at most {found.most_tokens_per_second:,.1f} tokens a second for each"
    why = f"a step reads {format_bytes(found.read_bytes)} of weights and KV, and the rest comes on top"
    wanted, allows = found.wanted_tokens_per_second, found.bandwidth_allows
    verdict = "" if allows is None else f": the bandwidth {'allows' if allows else 'does not allow'} {wanted:,}"
    return [*lines, f"{most}{verdict} ({why})"]


def _missing(plan: MemoryPlan) -> list[str]:
    lines = [
        f"asked for: {_wanted(plan)}, for which the device would need {format_bytes(plan.asked.needed_bytes)}: "
        f"{format_bytes(plan.shortfall_bytes)} missing, limited by {plan.limited_by}",
        _what_fits(plan),
    ]
    if plan.lowered:
        lowest = ", ".join(f"{_name(one)} {_number(one.lowered)}" for one in plan.lowered)
        lines.append(f"even with what was left open at its lowest: {lowest}")
    return [*lines, _prices(plan)]


def _wanted(plan: MemoryPlan) -> str:
    """What was asked for."""
    each = f"{requests(plan.asked.requests)} of {plan.max_len:,} tokens"
    tokens = plan.asked.request.kv_tokens
    return each if tokens is None else f"{tokens:,} tokens of KV cache, in requests of {plan.max_len:,} tokens"


def _what_fits(plan: MemoryPlan) -> str:
    instead = plan.fits_instead
    if instead is None:
        return "nothing fits: not even one request of a short context"
    return f"what fits: {requests(instead.concurrency)} of {instead.max_len:,} tokens"


def by_itself(engine: str, default: EngineDefault) -> str:
    """What an engine does that is not told a size."""
    if not default.starts:
        verdict = f"would not start with a context of {default.max_len:,} tokens"
    else:
        verdict = f"takes {default.request_tokens:,} tokens at its memory fraction of {default.fraction:.3f}"
    if default.dies_from_fraction is None:
        return f"{engine} by itself {verdict} ({default.checked})"
    dies = f", and would run out of memory from {default.dies_from_fraction:.3f}" if default.starts else ""
    return f"{engine} by itself {verdict}{dies}"


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


def command_lines(command: PlannedCommand) -> str:
    """A command for a shell, a line for each option; what it writes into files first stays as it is."""
    before = command.shell.removesuffix(shlex.join(command.args))
    lines: list[list[str]] = [[]]
    for word in command.args:
        if word.startswith("--") and lines[-1]:
            lines.append([])
        lines[-1].append(word)
    return before + " \\\n  ".join(shlex.join(words) for words in lines)
