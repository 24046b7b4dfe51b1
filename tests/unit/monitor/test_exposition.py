"""Prometheus' text format, as it is written and as nobody should write it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.monitor.exposition import MetricSample, read_metrics
from brim.records.histogram import LatencyHistogram
from tests.unit.monitor.metrics_texts import histogram


def test_samples_with_their_labels() -> None:
    text = r"""# HELP a:b Something { that } is no sample 5
a:b 1
a:b{x="1",y="a } b, c=\"d\" \\ e"} 2.5e+3 1700000000000
a:b{} 3
other 4
"""
    assert read_metrics(text, ["a:"]).samples == {
        "a:b": (
            MetricSample({}, 1.0),
            MetricSample({"x": "1", "y": 'a } b, c="d" \\ e'}, 2500.0),
            MetricSample({}, 3.0),
        )
    }


def test_totals_means_and_labels() -> None:
    page = read_metrics('a{m="x"} 1\na{m="x"} 2\na{m="y"} 6\n', ["a"])
    assert (page.total("none", "a"), page.mean("a"), page.total("none")) == (9.0, 3.0, None)
    assert (page.label("m", "a"), page.label("n", "a"), page.by_label("m", "a")) == ("x", "", {"x": 3.0, "y": 6.0})


def test_histograms_of_all_labels_together() -> None:
    text = histogram("a", 'm="1"', {"0.1": 1, "1.0": 3, "+Inf": 4}) + histogram(
        "a", 'm="2"', {"0.1": 0, "1.0": 1, "+Inf": 1}
    )
    found = read_metrics(text, ["a"]).histogram("b", "a")
    assert found == LatencyHistogram((0.1, 1.0), (1.0, 3.0, 1.0))
    assert read_metrics(text, ["a"]).histogram("b") is None
    falling = read_metrics(histogram("a", 'm="1"', {"0.1": 9, "1.0": 3, "+Inf": 4}), ["a"]).histogram("a")
    assert falling is not None
    assert min(falling.counts) == 0


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e999", "0x10", "1_0", "", "five"])
def test_values_that_are_no_counts_are_passed_over(value: str) -> None:
    assert read_metrics(f"a {value}\n", ["a"]).samples == {}


@pytest.mark.parametrize(
    "text",
    [
        "a{" + 'x="' * 200_000,
        'a{x="' + "\\" * 100_000 + '"} 1',
        "a{" + "}" * 8000 + " 1",
        ("a{" + "x" * 7000 + "\n") * 500,
        "\n".join(f'a{{x="{number}"}} 1' for number in range(200_000)),
        "\n".join(f'a_bucket{{le="{number}"}} 1' for number in range(1, 5000)),
    ],
)
def test_what_is_hostile_is_bounded(text: str) -> None:
    began = time.process_time()
    page = read_metrics(text, ["a"])
    assert page.histogram("a") is None
    assert time.process_time() - began < 3
    assert sum(map(len, page.samples.values())) <= 20_000


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    read_metrics(text, ["", "a"])


def test_percentiles_are_between_the_bounds() -> None:
    found = LatencyHistogram((0.1, 0.2, 0.4), (0.0, 10.0, 0.0, 0.0))
    assert found.percentile(50) == pytest.approx(0.15)
    assert found.percentile(99) == pytest.approx(0.199)
    assert LatencyHistogram((0.1,), (0.0, 5.0)).percentile(50) == 0.1
    assert LatencyHistogram((0.1,), (0.0, 0.0)).percentile(50) is None
    assert found.since(LatencyHistogram((0.1, 0.2, 0.4), (0.0, 4.0, 0.0, 0.0))).counts == (0.0, 6.0, 0.0, 0.0)
    assert found.since(LatencyHistogram((0.3,), (1.0, 1.0))) == found


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.floats(0, 100), st.floats(0, 100))
def test_percentiles_grow(counts: list[int], one: float, other: float) -> None:
    found = LatencyHistogram((0.1, 0.5, 2.0), tuple(map(float, counts)))
    low, high = (found.percentile(percent) for percent in sorted((one, other)))
    assert (low is None) == (high is None) == (not sum(counts))
    if low is not None and high is not None:
        assert 0 <= low <= high + 1e-9 <= 2.0 + 1e-8
