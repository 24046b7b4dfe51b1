"""The text format of Prometheus (`/metrics`) as samples by name.

In: a text, from anybody. Out: `MetricsPage`. Nothing in it is trusted: lines that are longer than any real one, values
that are no plain numbers and whatever is beyond a bounded number of samples are passed over. Knows no metric.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from brim.records.histogram import LatencyHistogram

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]{0,150})(?:\{(.{0,6000})\})?[ \t]+([-+0-9.eEInf]{1,40})(?:[ \t]+-?\d{1,20})?\s*")
_LABEL = re.compile(r'([a-zA-Z_]\w{0,100})="((?:[^"\\]|\\.){0,1000})"')
_LONGEST_LINE = 8192
_MOST_SAMPLES = 20_000  # of the metrics that are asked for: a server has some hundreds
_LARGEST = 1e18
_MOST_BOUNDS = 200
_ESCAPES = {"\\n": " ", '\\"': '"', "\\\\": "\\"}
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MetricSample:
    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """Samples by name. Where several names are given, the first that is there counts: engines rename their metrics."""

    samples: Mapping[str, tuple[MetricSample, ...]] = field(default_factory=dict)

    def has(self, prefix: str) -> bool:
        return any(name.startswith(prefix) for name in self.samples)

    def found(self, *names: str) -> tuple[MetricSample, ...]:
        return next((self.samples[name] for name in names if name in self.samples), ())

    def total(self, *names: str) -> float | None:
        """The sum over all labels: engines beside each other have one sample each."""
        found = self.found(*names)
        return sum(one.value for one in found) if found else None

    def mean(self, *names: str) -> float | None:
        found = self.found(*names)
        return sum(one.value for one in found) / len(found) if found else None

    def label(self, label: str, *names: str) -> str:
        """Of the first sample that has it."""
        return next((one.labels[label] for one in self.found(*names) if label in one.labels), "")

    def by_label(self, label: str, *names: str) -> dict[str, float]:
        totals: dict[str, float] = {}
        for one in self.found(*names):
            if label in one.labels:
                totals[one.labels[label]] = totals.get(one.labels[label], 0.0) + one.value
        return totals

    def histogram(self, *names: str) -> LatencyHistogram | None:
        """The counts up to each bound, of all labels together."""
        reached = self.by_label("le", *(f"{name}_bucket" for name in names))
        finite = sorted((bound, count) for text, count in reached.items() if (bound := _bound(text)) is not None)
        if not finite or len(finite) > _MOST_BOUNDS:
            return None
        steps = [*(count for _, count in finite), max(reached.get("+Inf", 0.0), finite[-1][1])]
        counts = (max(0.0, now - before) for before, now in zip([0.0, *steps], steps, strict=False))
        return LatencyHistogram(tuple(bound for bound, _ in finite), tuple(counts))


def read_metrics(
    text: str, prefixes: Iterable[str], counted: Callable[[Labels], bool] = lambda labels: True
) -> MetricsPage:
    """The samples whose names begin with one of these; `counted` leaves out those that would be counted twice."""
    begins = tuple(prefixes)
    found: dict[str, list[MetricSample]] = {}
    left = _MOST_SAMPLES
    for line in text.splitlines():
        if not line.startswith(begins) or len(line) > _LONGEST_LINE:
            continue
        match = _SAMPLE.fullmatch(line)
        value = None if match is None else _plain(match[3])
        if match is None or value is None:
            continue
        labels = {name: _text(said) for name, said in _LABEL.findall(match[2] or "")}
        if counted(labels):
            found.setdefault(match[1], []).append(MetricSample(labels, value))
            left -= 1
        if not left:
            break
    return MetricsPage({name: tuple(samples) for name, samples in found.items()})


def _plain(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= _LARGEST else None


def _bound(text: str) -> float | None:
    value = _plain(text) if len(text) <= 40 else None
    return value if value else None


def _text(said: str) -> str:
    return re.sub(r'\\[n"\\]', lambda match: _ESCAPES[match[0]], said)
