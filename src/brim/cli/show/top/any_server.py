"""A server of any engine for a terminal, by its metrics; what it does not publish is left out."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from brim.cli.show.palette import item_colour
from brim.cli.show.top.rows import delays_text, figures_table, seconds_text
from brim.monitor.engines import TITLES, PoolUse, ServerFigures
from brim.monitor.history import ServerRates, TokenDelay
from brim.monitor.server import ServerReading
from brim.units import format_bytes


def any_server_view(reading: ServerReading, free_bytes: int | None, width: int) -> RenderableType:
    """`free_bytes`: free on the GPU that it has least room on, where that is known."""
    figures, rates = reading.figures, reading.rates
    rows = [
        ("KV pool", _pool(figures)),
        ("tokens/s", _tokens(rates)),
        ("requests", _requests(figures)),
        ("latency", _latency(rates)),
        ("prefixes", "" if rates.cache_hits is None else f"{rates.cache_hits:.0%} of prompt tokens found in the cache"),
        ("headroom", _headroom(figures, free_bytes)),
        ("so far", _so_far(figures, rates)),
    ]
    shown = figures_table([(name, Text(text)) for name, text in rows if text])
    bar = [] if figures.pool is None else [_pool_bar(figures.pool, width), Text()]
    return Group(_headline(reading), Text(), *bar, shown)


def _headline(reading: ServerReading) -> Text:
    figures = reading.figures
    line = Text().append(figures.model or TITLES[figures.engine], style="bold")
    line.append(f" on {TITLES[figures.engine]}  {reading.url}" if figures.model else f"  {reading.url}")
    if figures.started is not None and 0 < figures.started < reading.time:
        line.append(f"  up {seconds_text(reading.time - figures.started)}", style="dim")
    return line


def _pool_bar(pool: PoolUse, width: int) -> Text:
    """Shares of the pool: how many bytes they are is not known of every engine."""
    bar, cells = Text(no_wrap=True), max(10, width)
    for name, share in (("kv_used", pool.held_fraction), ("kv_cached", pool.cached_fraction)):
        room, label = round(share * cells), f" {name} {share:.0%} "
        said = label if len(label) + 2 <= room else ""
        bar.append(said, style=f"reverse {item_colour(name)}")
        bar.append("█" * (room - len(said)), style=item_colour(name))
    return bar.append("·" * (cells - len(bar)), style="dim")


def _pool(figures: ServerFigures) -> str:
    pool = figures.pool
    if pool is None:
        return ""
    cached = f", {pool.cached_fraction:.0%} cached" if pool.cached else ""
    tokens = f", of {pool.tokens:,} tokens" if pool.tokens is not None else ""
    size = f" ({format_bytes(figures.kv_bytes)} reserved)" if figures.kv_bytes is not None else ""
    return f"{pool.held_fraction:.0%} used{cached}{tokens}{size}"


def _tokens(rates: ServerRates) -> str:
    if rates.generated_per_second is None:
        return ""
    prompts = "" if rates.prompt_per_second is None else f", {rates.prompt_per_second:,.0f} of prompts"
    return f"{rates.generated_per_second:,.0f} generated{prompts}"


def _requests(figures: ServerFigures) -> str:
    counts = ((figures.running, "running"), (figures.waiting, "waiting"))
    return ", ".join(f"{count:,} {what}" for count, what in counts if count is not None)


def _latency(rates: ServerRates) -> str:
    """Of the last minute where anything came in it, else since the server's start."""
    both = rates.first_token, rates.between_tokens
    lately = any(one is not None and not one.since_start for one in both)
    first, between = (_percentiles(one) if one and not (lately and one.since_start) else None for one in both)
    return delays_text(first, between, "last minute" if lately else "since its start")


def _percentiles(delay: TokenDelay) -> tuple[float, float]:
    return delay.p50_seconds, delay.p99_seconds


def _headroom(figures: ServerFigures, free_bytes: int | None) -> str:
    told = [] if free_bytes is None else [f"{format_bytes(free_bytes)} free on its GPU now"]
    if figures.headroom_bytes is not None:
        told.append(f"{format_bytes(figures.headroom_bytes)} free after the worst step (Brim's fit)")
    return ", ".join(told)


def _so_far(figures: ServerFigures, rates: ServerRates) -> str:
    told = []
    if figures.preemptions is not None:
        lately = f" ({rates.preempted:,} in the last minute)" if rates.preempted and rates.seconds else ""
        told.append(f"{figures.preemptions:,} preemptions{lately}")
    if figures.finished is not None:
        told.append(f"{figures.finished:,} requests finished")
    return ", ".join(told)
