"""Plans as tables a person reads at a glance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from brim.cli.show.answer import answer, by_itself, command_lines, requests
from brim.cli.show.bars import ledger_mark, memory_bar
from brim.cli.show.console import ReportConsole
from brim.cli.show.palette import MISSING, item_colour, item_keys
from brim.cli.show.placement import placement_lines
from brim.planning.diff import DiffRow
from brim.planning.options import Option
from brim.records.plan import MemoryPlan, PlanRequest, Source
from brim.records.trace import Trace
from brim.units import format_bytes

_WIDEST_BAR = 120
_SHORT_BAR_CELLS = 12
_SHOWN_TENSORS = 12
_SHOWN_OPTIONS = 8  # and as many with everything as it is stored
_SIZE_SOURCES = {Source.GIVEN: "as given", Source.PUBLISHED: "as its datasheet says", Source.FORMULA: "estimated"}


def show_plan(plan: MemoryPlan) -> None:
    """The answer and the command, then the ledger, then what to change."""
    console = ReportConsole()
    verdict = "[bold green]fits[/]" if plan.fits else "[bold red]does not fit[/]"
    device = escape(plan.device.name) if plan.ranks == 1 else f"{plan.ranks} × {escape(plan.device.name)}"
    console.print(f"\n[bold]{escape(plan.model)}[/] on [bold]{device}[/]{_engine(plan)}: {verdict}")
    for line in answer(plan):
        console.print(f"  {escape(line)}", soft_wrap=True)
    for line in _commands(plan):
        console.print(line, soft_wrap=True, highlight=False)
    console.print()
    console.print(_bar(plan, console.width))
    console.print(_ledger(plan))
    for line in (*placement_lines(plan), *_other_devices(plan)):
        console.print(f"[dim]{escape(line)}[/]")
    if plan.advice:
        console.print(_advice(plan))
    if plan.engine_default is not None:
        console.print(f"[dim]{escape(by_itself(plan.engine or '', plan.engine_default))}[/]", soft_wrap=True)
    for warning in plan.warnings:
        console.print(f"[yellow]note:[/] {escape(warning)}")
    console.print()


def _commands(plan: MemoryPlan) -> list[str]:
    """Each command with what it is for: never that of a plan that does not fit."""
    if not plan.engine:
        return ["  [dim]as a command: --engine vllm, sglang, llama.cpp, brim, …[/]"] if plan.fits else []
    found = []
    for one in plan.commands:
        what = f"with {plan.engine} {plan.engine_version}"
        less = "" if one.as_asked else f", for what fits: {requests(one.concurrency)} of {one.max_len:,} tokens"
        found += [f"\n[bold]{escape(what)}[/]{less}", escape(command_lines(one))]
    return found


def _engine(plan: MemoryPlan) -> str:
    """The engine whose rules the plan follows, and their version."""
    return escape(f", {plan.engine} {plan.engine_version}") if plan.engine else ""


def _bar(plan: MemoryPlan, width: int) -> Text:
    """The device as one line, followed by what is missing."""
    items = [(item.name, item.bytes, item_colour(item.name)) for item in plan.items]
    return memory_bar(items, plan.device.total_bytes, min(width, _WIDEST_BAR), plan.shortfall_bytes)


def _ledger(plan: MemoryPlan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("item")
    table.add_column("size", justify="right")
    table.add_column("share", justify="right")
    table.add_column("source")
    table.add_column("detail", overflow="fold")
    keys = item_keys([item.name for item in plan.items])
    for item in plan.items:
        if not item.bytes and item.name not in ("kv", "weights"):
            continue
        share = f"{item.bytes * 100 / plan.device.total_bytes:.1f} %" if item.bytes >= 0 else ""
        name = ledger_mark(keys[item.name], item_colour(item.name)).append(f" {item.name}", style="default")
        size = format_bytes(item.bytes)
        table.add_row(name, f"[red]{size}[/]" if item.bytes < 0 else size, share, str(item.source), escape(item.detail))
    table.add_row(
        "device",
        format_bytes(plan.device.total_bytes),
        "",
        str(plan.device.source),
        _SIZE_SOURCES.get(plan.device.source, "as the driver reports it"),
        style="bold",
    )
    return table


def _other_devices(plan: MemoryPlan) -> list[str]:
    """Where the devices of a node differ: what the tightest leaves free on each."""
    if len(plan.rank_ledgers) > 1 and not any(one.device.neighbour_bytes for one in plan.ledgers):
        return []  # stages differ, and each has its line
    free = [sum(item.bytes for item in one.items if item.name == "free") for one in plan.ledgers]
    if not any(free):
        return []
    return [
        f"device {index}: {one.device.name}, {format_bytes(one.device.neighbour_bytes)} in use by others, "
        f"{format_bytes(left)} left free"
        for index, (one, left) in enumerate(zip(plan.ledgers, free, strict=True))
    ]


def _advice(plan: MemoryPlan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", title_justify="left", title_style="bold")
    table.title = "What each setting would gain" if plan.fits else "What would make it fit, least loss of quality first"
    table.add_column("change", no_wrap=True)
    table.add_column("from")
    table.add_column("frees", justify="right")
    table.add_column("KV tokens after", justify="right")
    table.add_column("")
    for one in plan.advice:
        mark = "[green]fits[/]" if one.fits_after and not plan.fits else ""
        table.add_row(
            escape(" ".join(one.flags) or f"no {one.knob}"),
            escape(one.current),
            format_bytes(one.frees_bytes),
            f"{one.kv_tokens_after:,}",
            mark,
        )
    return table


def show_comparison(plans: Sequence[MemoryPlan]) -> None:
    """One line per GPU."""
    console = ReportConsole()
    table = Table(box=None, pad_edge=False, header_style="dim", title_justify="left", title_style="bold")
    several = len({plan.model for plan in plans}) > 1
    table.title = f"░ is KV cache{_engine(plans[0])}" if several else _weights_title(plans[0])
    if several:
        table.add_column("model", no_wrap=True)
    table.add_column("GPU", no_wrap=True)
    table.add_column("", width=_SHORT_BAR_CELLS)
    table.add_column("verdict")
    for name in ("requests", "× tokens", "KV tokens"):
        table.add_column(name, justify="right")
    table.add_column("limited by")
    for plan in plans:
        name = plan.device.key if plan.ranks == 1 else f"{plan.ranks} × {plan.device.key}"
        verdict = "[green]fits[/]" if plan.fits else f"[red]{format_bytes(plan.shortfall_bytes)} short[/]"
        numbers = (plan.concurrency, plan.max_len, plan.kv_tokens) if plan.fits else ("", "", "")
        model = [escape(plan.model)] if several else []
        shown = (f"{n:,}" if n != "" else "" for n in numbers)
        table.add_row(*model, name, _short_bar(plan), verdict, *shown, plan.limited_by)
    console.print(table)


def _weights_title(plan: MemoryPlan) -> str:
    return f"{plan.model}{_engine(plan)}: {format_bytes(plan.weights_bytes)} of weights (░ is KV cache)"


def show_options(model: str, written: str, request: PlanRequest, options: Sequence[Option]) -> None:
    """The GPUs that would do, least memory first."""
    console = ReportConsole()
    length = f" of {request.max_len:,} tokens" if request.max_len else ""
    users = f"{request.users:,} users with {request.mean_len or 0:,} tokens on average" if request.users else None
    wanted = users or f"{requests(request.concurrency or 1)}{length}"
    if not options:
        console.print(f"\n[bold]{escape(model)}[/]: no GPUs of the catalogue hold {wanted}, up to eight of each\n")
        return
    table = Table(box=None, pad_edge=False, header_style="dim", title_justify="left", title_style="bold")
    table.title = f"{model}: what holds {wanted}, least memory first"
    table.add_column("GPUs", no_wrap=True)
    for name in ("memory", "weights", "KV", "tp", "requests", "× tokens", "KV tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    smallest = {*options[:_SHOWN_OPTIONS], *[one for one in options if one.as_stored][:_SHOWN_OPTIONS]}
    shown = [one for one in options if one in smallest]
    for one in shown:
        gpus = one.device.key if one.count == 1 else f"{one.count} × {one.device.key}"
        numbers = (f"{one.concurrency:,}", f"{one.max_len:,}", f"{one.kv_tokens:,}")
        table.add_row(gpus, format_bytes(one.total_bytes), one.weights, one.kv_dtype, str(one.count), *numbers)
    console.print_whole(table)
    if len(options) > len(shown):
        console.print(f"[dim]and {len(options) - len(shown)} more (--json has all)[/]")
    first = escape(" ".join(options[0].flags))
    console.print(f"[dim]the whole plan of one: brim plan {escape(written)} {first} …[/]", soft_wrap=True)
    console.print("[dim]by memory alone: neither speed nor price is known here[/]\n")


def show_diff(before: str, after: str, rows: Sequence[DiffRow]) -> None:
    """What changed between two plans, line by line."""
    console = ReportConsole()
    console.print(f"\n[bold]before[/] {escape(before)}\n[bold]after[/]  {escape(after)}\n", soft_wrap=True)
    if not rows:
        console.print("no line of the ledger changed\n")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("item")
    for name in ("before", "after", "change"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for row in rows:
        sizes = (row.before_bytes, row.after_bytes)
        change = row.after_bytes - row.before_bytes
        sign = "+" if change > 0 else ""
        table.add_row(row.item, *map(format_bytes, sizes), f"{sign}{format_bytes(change)}", escape(row.why))
    console.print(table)
    console.print()


def _short_bar(plan: MemoryPlan) -> Text:
    kv = max(0, plan.item("kv").bytes)
    cells = round(kv * _SHORT_BAR_CELLS / plan.device.total_bytes)
    bar = Text("▓" * (_SHORT_BAR_CELLS - cells), style=item_colour("weights") if plan.fits else MISSING)
    return bar.append("░" * cells, style=item_colour("kv"))


def show_models(rows: Sequence[Mapping[str, object]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, right in (("name", 0), ("hub id", 0), ("family", 0), ("parameters", 1), ("weights", 1), ("context", 1)):
        table.add_column(name, justify="right" if right else "left")
    for row in rows:
        parameters, weights, context = (int(str(row[key])) for key in ("parameters", "weights_bytes", "max_positions"))
        sizes = (f"{parameters / 1e9:,.1f} B", format_bytes(weights), f"{context:,}")
        table.add_row(str(row["name"]), str(row["hub_id"]), str(row["family"]), *sizes)
    ReportConsole().print_whole(table)


def show_gpus(rows: Sequence[Mapping[str, object]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, right in (("name", 0), ("GPU", 0), ("memory", 1), ("for processes", 1), ("context", 1), ("source", 0)):
        table.add_column(name, justify="right" if right else "left")
    for row in rows:
        sizes = (format_bytes(int(str(row[key]))) for key in ("total_bytes", "usable_bytes", "context_bytes"))
        table.add_row(str(row["key"]), str(row["name"]), *sizes, str(row["source"]))
    ReportConsole().print_whole(table)


def show_trace(trace: Trace) -> None:
    """The peak, where it is, and what is alive there."""
    console = ReportConsole()
    shape = trace.shape
    what = f"{shape.phase} of {shape.batch} × {shape.tokens:,}"
    context = f" after {shape.context:,}" if shape.context else ""
    console.print(f"\n[bold]{escape(trace.model)}[/], {what}{context} tokens, {escape(trace.attention)} attention")
    console.print(f"peak      [bold]{format_bytes(trace.peak_bytes)}[/] above the weights")
    console.print(f"at        {escape(trace.at_module or 'the model itself')} ({escape(trace.at_op)})")
    console.print(
        f"reserved  {format_bytes(trace.reserved_bytes)} with expandable segments, "
        f"{format_bytes(trace.reserved_default_bytes)} without"
    )
    table = Table(box=None, pad_edge=False, header_style="dim", title="Alive at the peak", title_justify="left")
    table.add_column("size", justify="right")
    table.add_column("share", justify="right")
    table.add_column("shape")
    table.add_column("allocated by")
    table.add_column("in", overflow="fold")
    for one in trace.live[:_SHOWN_TENSORS]:
        share = f"{one.bytes * 100 / max(1, trace.peak_bytes):.1f} %"
        dims = " × ".join(map(str, one.shape))
        table.add_row(format_bytes(one.bytes), share, dims, escape(one.op), escape(one.module or "the model itself"))
    console.print(table)
    rest = trace.live[_SHOWN_TENSORS:]
    if rest:
        console.print(f"[dim]and {len(rest)} more, {format_bytes(sum(one.bytes for one in rest))}[/]")
    console.print(f"[dim]{trace.seconds:.2f} s, on the meta device, without weights[/]\n")
