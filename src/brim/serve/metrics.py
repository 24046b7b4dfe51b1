"""`/metrics` for Prometheus: requests as they end, and the engine as it is when somebody looks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from brim.serve.device_bar import BarSegment
from brim.serve.lifecycle import AnyServer, HttpFigures, RunningServer, ServerLifecycle, ServerState
from brim.serve.log import RequestLogEntry

_FIRST_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """The registry of one server."""

    def __init__(self, lifecycle: ServerLifecycle, *, names_clients: bool = False) -> None:
        """`names_clients`: they have keys, whose names tell nothing; addresses are not for everybody's eyes."""
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_EngineCollector(lifecycle, names_clients))

        def counter(name: str, said: str, *labels: str) -> Counter:
            return Counter(name, said, labels, registry=self.registry)

        self._requests = counter("brim_requests", "Requests that have ended", "path", "status")
        self._prompt = counter("brim_prompt_tokens", "Tokens of prompts")
        self._cached = counter("brim_cached_tokens", "Tokens of prompts that were found in the KV pool")
        self._generated = counter("brim_completion_tokens", "Tokens of answers")
        self._evicted = counter("brim_evicted_tokens", "Tokens that rolling conversations have dropped")
        self._first = Histogram(
            "brim_first_token_seconds", "To the first token", buckets=_FIRST_TOKEN_SECONDS, registry=self.registry
        )
        self._whole = Histogram(
            "brim_request_seconds", "To the end of a request", buckets=_SECONDS, registry=self.registry
        )

    def count(self, entry: RequestLogEntry) -> None:
        self._requests.labels(entry.path, str(entry.status)).inc()
        self._prompt.inc(entry.prompt_tokens)
        self._cached.inc(entry.cached_tokens)
        self._generated.inc(entry.completion_tokens)
        self._evicted.inc(entry.evicted_tokens)
        self._whole.observe(entry.seconds)
        if entry.first_token_seconds is not None:
            self._first.observe(entry.first_token_seconds)

    def page(self, parts: Sequence[BarSegment]) -> bytes:
        """What `/metrics` answers; `parts` are the device as one bar."""
        return generate_latest(self.registry) + generate_latest(_DeviceCollector(parts))


class _DeviceCollector(CollectorRegistry):
    def __init__(self, parts: Sequence[BarSegment]) -> None:
        super().__init__()
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        found = GaugeMetricFamily("brim_device_bytes", "Memory of the device, part by part: all of it", labels=["part"])
        for part in self._parts:
            found.add_metric([part.name], part.bytes)
        yield found


class _EngineCollector(Collector):
    def __init__(self, lifecycle: ServerLifecycle, names_clients: bool) -> None:
        self._lifecycle = lifecycle
        self._names_clients = names_clients

    def collect(self) -> Iterator[Metric]:
        state = GaugeMetricFamily("brim_state", "1 for the state that the server is in", labels=["state"])
        now = self._lifecycle.state
        for one in ServerState:
            state.add_metric([str(one)], float(one is now))
        yield state
        yield from _of_connections(self._lifecycle.http)
        buckets, seconds = self._lifecycle.watch.latencies.between_tokens.published()
        yield HistogramMetricFamily("brim_inter_token_seconds", "From a token to the next", buckets, seconds)
        if self._lifecycle.running is not None:
            yield from of_gateways(self._lifecycle.running)
        if self._lifecycle.any_running is not None:
            yield from _of_engine(self._lifecycle.any_running)
            if self._names_clients:
                yield _of_clients(self._lifecycle.any_running)


def of_gateways(running: RunningServer) -> Iterator[Metric]:
    """The same figures under the names that gateways look for: those of vLLM's server."""
    figures, engine = running.engine.figures, running.engine
    blocks = figures.blocks_held + figures.blocks_cached + figures.blocks_free
    waiting = max(figures.waiting, running.gate.inside - figures.running)  # those whose prompts are being made too
    for name, said, value in (
        ("vllm:num_requests_running", "brim_running, as gateways read it", figures.running),
        ("vllm:num_requests_waiting", "Answers that were let in and do not run, as gateways read it", waiting),
        ("vllm:kv_cache_usage_perc", "Part of the KV blocks held, 0 to 1", figures.blocks_held / max(1, blocks)),
    ):
        yield GaugeMetricFamily(name, said, value=value)
    labels = {"block_size": str(engine.settings.block_size), "num_gpu_blocks": str(blocks)}
    config = GaugeMetricFamily("vllm:cache_config_info", "How the KV cache is set up", labels=list(labels))
    config.add_metric(list(labels.values()), 1)
    yield config


def _of_clients(running: AnyServer) -> Metric:
    inside = GaugeMetricFamily("brim_client_inside", "Answers of a key that are inside", labels=["key"])
    for name, answers in running.gate.by_share.items():
        inside.add_metric([name], answers)
    return inside


def _of_connections(http: HttpFigures) -> Iterator[Metric]:
    yield GaugeMetricFamily("brim_http_connections", "Connections that are open", value=http.connections)
    said = "Connections beyond the bound, and what came over one and is no request"
    refused = CounterMetricFamily("brim_http_refusals", said, labels=["status"])
    for status, count in sorted(http.refusals.items()):
        refused.add_metric([str(status)], count)
    yield refused


def _of_engine(running: AnyServer) -> Iterator[Metric]:
    figures, health = running.engine.figures, running.serving.health
    admission, gate = figures.admission, running.gate
    blocks = GaugeMetricFamily("brim_kv_blocks", "Blocks of the KV pool", labels=["state"])
    for name, value in (
        ("held", figures.blocks_held),
        ("cached", figures.blocks_cached),
        ("free", figures.blocks_free),
    ):
        blocks.add_metric([name], value)
    yield blocks
    held = CounterMetricFamily("brim_admission_held", "Decisions that a request waits", labels=["cause"])
    held.add_metric(["slots"], admission.held_for_slots)
    held.add_metric(["blocks"], admission.held_for_blocks)
    yield held
    for name, said, value in (
        ("brim_running", "Answers that the engine computes", figures.running),
        ("brim_waiting", "Answers that wait in the engine", figures.waiting),
        ("brim_inside", "Answers that were let in and have not ended", gate.inside),
        ("brim_places", "Answers that may be inside", gate.places),
        ("brim_clients", "Keys, or addresses where there are no keys, with answers inside", len(gate.by_share)),
        ("brim_kv_bytes", "Size of the KV pool", figures.kv_bytes),
        ("brim_weight_bytes", "Size of the weights", figures.weight_bytes),
        ("brim_step_tokens", "Most tokens of a step now", health.step_tokens),
    ):
        yield GaugeMetricFamily(name, said, value=value)
    for name, said, count in (
        ("brim_steps", "Steps of the engine", figures.steps),
        (
            "brim_computed_tokens",
            "Tokens that the engine has computed, of prompts, inputs and answers",
            figures.computed,
        ),
        ("brim_drawn_tokens", "Tokens that the engine has drawn", figures.drawn),
        ("brim_preemptions", "Times that a request gave its blocks up for others", figures.preemptions),
        ("brim_admission_started", "Decisions that a request starts", admission.started),
        ("brim_admission_passes", "Requests that started before one that waited longer", admission.passes),
        ("brim_queue_refusals", "Requests refused because the queue was full", gate.refused),
        ("brim_queue_displaced", "Waiting requests that gave their place to a client with fewer", gate.displaced),
        ("brim_client_refusals", "Requests refused because their client had --max-per-key", gate.refused_by_share),
        ("brim_rescues", "Steps that ran out of memory and were run again in parts", health.rescues),
        ("brim_ended_by_memory", "Requests that ended because they could not run alone", health.ended_requests),
        ("brim_rebuilds", "Times that the KV pool was rebuilt", health.rebuilds),
    ):
        yield CounterMetricFamily(name, said, value=count)
