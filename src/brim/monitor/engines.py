"""What servers publish, as the same figures: Brim, vLLM, SGLang and TGI.

In: the text of `/metrics`. Out: `ServerFigures`; what an engine does not publish is None. Each engine has a table of
names, newest first, and its own way to say how full its KV pool is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from brim.monitor.exposition import Labels, MetricsPage, read_metrics
from brim.records.histogram import LatencyHistogram
from brim.units import GIB

_MILLIONTHS = 1_000_000  # of a pool of which only the share is known
_LONGEST_NAME = 120
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PoolUse:
    """The KV pool in units of the engine's own: blocks, tokens, or millionths where only its share is known."""

    held: int
    cached: int  # prefixes that make room when others need it
    free: int
    unit_tokens: float | None = None  # tokens of a unit; None: not known

    @property
    def total(self) -> int:
        return self.held + self.cached + self.free

    @property
    def held_fraction(self) -> float:
        return self.held / max(1, self.total)

    @property
    def cached_fraction(self) -> float:
        return self.cached / max(1, self.total)

    @property
    def tokens(self) -> int | None:
        return None if self.unit_tokens is None else round(self.total * self.unit_tokens)

    @property
    def held_tokens(self) -> int | None:
        return None if self.unit_tokens is None else round(self.held * self.unit_tokens)


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """A server at one moment."""

    engine: str = ""  # brim, vllm, sglang, tgi; empty: none of these
    model: str = ""
    running: int | None = None
    waiting: int | None = None
    pool: PoolUse | None = None
    kv_bytes: int | None = None  # what the pool has reserved, on each device
    weight_bytes: int | None = None
    headroom_bytes: int | None = None  # free beside the worst step, as Brim has proven it inside vLLM
    started: float | None = None  # Unix seconds
    preemptions: int | None = None  # since the start, as all below
    finished: int | None = None
    generated_tokens: float | None = None
    prompt_tokens: float | None = None
    cache_asked: float | None = None  # tokens of prompts that were looked for among prefixes
    cache_found: float | None = None
    first_token: LatencyHistogram | None = None
    between_tokens: LatencyHistogram | None = None


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Which metric of an engine is which."""

    engine: str
    title: str
    mark: str  # how a metric begins that only this engine has
    prefixes: Names
    pool: Callable[[MetricsPage], PoolUse | None]
    model: Names = ()
    running: Names = ()
    waiting: Names = ()
    preemptions: Names = ()
    finished: Names = ()
    generated: Names = ()
    prompts: Names = ()
    cache_asked: Names = ()
    cache_found: Names = ()
    kv_bytes: Names = ()
    kv_gib: Names = ()
    weight_bytes: Names = ()
    weight_gib: Names = ()
    headroom: Names = ()
    first_token: Names = ()
    between_tokens: Names = ()


def _brim_pool(page: MetricsPage) -> PoolUse | None:
    blocks = page.by_label("state", "brim_kv_blocks")
    size = _number(page.label("block_size", "vllm:cache_config_info"))
    held, cached, free = (int(blocks.get(name, 0)) for name in ("held", "cached", "free"))
    return PoolUse(held, cached, free, size) if blocks else None


def _vllm_pool(page: MetricsPage) -> PoolUse | None:
    usage = page.mean("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    if usage is None:
        return None
    config = page.found("vllm:cache_config_info")
    blocks = sum(_number(one.labels.get("num_gpu_blocks", "")) or 0 for one in config)
    size = _number(page.label("block_size", "vllm:cache_config_info"))
    return _share(usage, int(blocks), size) if blocks and size else _share(usage, _MILLIONTHS, None)


def _sglang_pool(page: MetricsPage) -> PoolUse | None:
    used, cached = page.total("sglang:kv_used_tokens"), page.total("sglang:kv_evictable_tokens")
    free = page.total("sglang:kv_available_tokens")
    if used is not None and cached is not None and free is not None and used + cached + free > 0:
        return PoolUse(int(used), int(cached), int(free), 1.0)
    usage, tokens = page.mean("sglang:token_usage"), page.total("sglang:max_total_num_tokens")
    if usage is None:
        return None
    return _share(usage, int(tokens), 1.0) if tokens else _share(usage, _MILLIONTHS, None)


def _share(usage: float, total: int, unit_tokens: float | None) -> PoolUse:
    held = round(min(1.0, usage) * total)
    return PoolUse(held, 0, total - held, unit_tokens)


BRIM = EngineMetrics(
    engine="brim",
    title="Brim",
    mark="brim_",
    prefixes=("brim_", "vllm:cache_config_info", "process_start_time_seconds"),
    pool=_brim_pool,
    running=("brim_running",),
    waiting=("brim_waiting",),
    preemptions=("brim_preemptions_total",),
    finished=("brim_requests_total",),
    generated=("brim_drawn_tokens_total",),
    prompts=("brim_prompt_tokens_total",),
    cache_asked=("brim_prompt_tokens_total",),
    cache_found=("brim_cached_tokens_total",),
    kv_bytes=("brim_kv_bytes",),
    weight_bytes=("brim_weight_bytes",),
    first_token=("brim_first_token_seconds",),
    between_tokens=("brim_inter_token_seconds",),
)
SGLANG = EngineMetrics(
    engine="sglang",
    title="SGLang",
    mark="sglang:",
    prefixes=("sglang:", "process_start_time_seconds"),
    pool=_sglang_pool,
    model=("sglang:num_running_reqs", "sglang:token_usage", "sglang:generation_tokens_total"),
    running=("sglang:num_running_reqs",),
    waiting=("sglang:num_queue_reqs",),
    preemptions=("sglang:num_retracted_requests_total",),
    finished=("sglang:num_requests_total",),
    generated=("sglang:generation_tokens_total",),
    prompts=("sglang:prompt_tokens_total",),
    cache_asked=("sglang:prompt_tokens_total",),
    cache_found=("sglang:cached_tokens_total",),
    kv_gib=("sglang:kv_cache_memory_usage_gb",),
    weight_gib=("sglang:weight_memory_usage_gb",),
    first_token=("sglang:time_to_first_token_seconds",),
    between_tokens=("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
)
VLLM = EngineMetrics(
    engine="vllm",
    title="vLLM",
    mark="vllm:",
    prefixes=("vllm:", "brim:", "process_start_time_seconds"),
    pool=_vllm_pool,
    model=("vllm:num_requests_running", "vllm:generation_tokens_total"),
    running=("vllm:num_requests_running",),
    waiting=("vllm:num_requests_waiting",),
    preemptions=("vllm:num_preemptions_total", "vllm:num_preemptions"),
    finished=("vllm:request_success_total", "vllm:request_success"),
    generated=("vllm:generation_tokens_total", "vllm:generation_tokens"),
    prompts=("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
    cache_asked=("vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries"),
    cache_found=("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits"),
    kv_bytes=("brim:kv_bytes",),
    headroom=("brim:headroom_bytes",),
    first_token=("vllm:time_to_first_token_seconds",),
    between_tokens=("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
)
TGI = EngineMetrics(
    engine="tgi",
    title="TGI",
    mark="tgi_",
    prefixes=("tgi_",),
    pool=lambda page: None,
    running=("tgi_batch_current_size",),
    waiting=("tgi_queue_size",),
    finished=("tgi_request_success",),
)
ENGINES = (BRIM, SGLANG, VLLM, TGI)  # a server of Brim publishes some of vLLM's names too
TITLES = {one.engine: one.title for one in ENGINES}


def figures_from(text: str) -> ServerFigures:
    """From the text of `/metrics`."""
    page = read_metrics(text, {prefix for one in ENGINES for prefix in (one.mark, *one.prefixes)}, _is_counted)
    names = next((one for one in ENGINES if page.has(one.mark)), None)
    return ServerFigures() if names is None else _figures(page, names)


def _is_counted(labels: Labels) -> bool:
    """Other ranks of one engine publish the same requests again, and SGLang each priority beside their sum."""
    return labels.get("tp_rank", "0") == labels.get("pp_rank", "0") == "0" and not labels.get("priority")


def _figures(page: MetricsPage, names: EngineMetrics) -> ServerFigures:
    return ServerFigures(
        engine=names.engine,
        model=printable(page.label("model_name", *names.model)),
        running=_count(page.total(*names.running)),
        waiting=_count(page.total(*names.waiting)),
        pool=names.pool(page),
        kv_bytes=_size(page.mean(*names.kv_bytes), page.mean(*names.kv_gib)),
        weight_bytes=_size(page.mean(*names.weight_bytes), page.mean(*names.weight_gib)),
        headroom_bytes=_size(page.mean(*names.headroom)),
        started=page.mean("process_start_time_seconds"),
        preemptions=_count(page.total(*names.preemptions)),
        finished=_count(page.total(*names.finished)),
        generated_tokens=page.total(*names.generated),
        prompt_tokens=page.total(*names.prompts),
        cache_asked=page.total(*names.cache_asked),
        cache_found=page.total(*names.cache_found),
        first_token=page.histogram(*names.first_token),
        between_tokens=page.histogram(*names.between_tokens),
    )


def printable(text: str, most: int = _LONGEST_NAME) -> str:
    """As it can be shown: a server may say anything, and a terminal obeys control characters."""
    return "".join(one if one.isprintable() else "�" for one in text[:most])


def _count(value: float | None) -> int | None:
    return None if value is None else int(value)


def _size(own: float | None, gib: float | None = None) -> int | None:
    value = own if gib is None else gib * GIB
    return None if value is None else int(value)


def _number(text: str) -> float | None:
    return float(text) if text.isdecimal() and len(text) <= 15 else None
