"""What a run says."""

from __future__ import annotations

from array import array
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from brim.bench.records import Ask, Ending, MemoryPoint, RequestOutcome
from brim.bench.report import Report, Slo, latency
from brim.cli.bench.table import summary
from brim.cli.show.load_picture import load_svg

ASK = Ask(10, 3)
GOOD = RequestOutcome(ASK, Ending.ANSWERED, 0.0, 1.0, 0.5, array("f", [0.25, 0.25]), 10, 3)
SLOW = RequestOutcome(ASK, Ending.ANSWERED, 0.0, 4.0, 3.0, array("f", [0.5, 0.5]), 10, 3, 4)
FULL = RequestOutcome(ASK, Ending.REFUSED, 1.0, 1.0, error="429 queue_full", said="come back", retry_after=1)
GONE = RequestOutcome(ASK, Ending.LEFT, 1.0, 2.0, 1.5, array("f"), 0, 1)
POINTS = (
    MemoryPoint(0.0, 100, 0, 0, 0, 0, 1, 0, 0, 1000),
    MemoryPoint(1.0, 100, 40, 5, 3, 2, 3, 1, 0, 1200),
    MemoryPoint(4.0, 100, 0, 9, 0, 0, 3, 1, 0, 1100),
)


def report(*outcomes: RequestOutcome, slo: Slo | None = None) -> Report:
    return Report("http://s", "m", "2 clients", 4.0, outcomes, POINTS, slo or Slo(), 0.1)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=300))
def test_percentiles_are_values_that_so_many_do_not_exceed(values: list[float]) -> None:
    found = latency(values)
    assert found is not None
    for share, value in ((50, found.p50), (90, found.p90), (99, found.p99)):
        assert value in values
        assert sum(one <= value for one in values) * 100 >= share * len(values)
        assert sum(one < value for one in values) * 100 < share * len(values)
    assert found.most == max(values)


def test_a_report_in_json() -> None:
    found = report(GOOD, SLOW, FULL, GONE, slo=Slo(ttft=1.0, tpot=0.3)).to_json()
    assert found["requests"] == {"sent": 4, "answered": 2, "left": 1, "refused": 1, "failed": 0}
    assert found["errors"] == {"429 queue_full": 1}
    assert (found["prompt_tokens"], found["completion_tokens"], found["cached_tokens"]) == (20, 7, 4)
    assert found["throughput"] == {"requests_per_second": 0.5, "completion_tokens_per_second": 1.8}
    assert found["ttft"]["p50_ms"] == 500.0
    assert found["inter_token"] == {
        "count": 4,
        "mean_ms": 375.0,
        "p50_ms": 250.0,
        "p90_ms": 500.0,
        "p99_ms": 500.0,
        "max_ms": 500.0,
    }
    assert found["end_to_end"]["max_ms"] == 4000.0
    assert found["goodput"] == {"requests": 1, "requests_per_second": 0.25}
    assert found["memory"]["kv_blocks_held_most"] == 40
    assert (found["memory"]["preemptions"], found["memory"]["rescues"]) == (2, 1)
    assert found["memory"]["device_used_bytes_most"] == 1200


def test_an_answer_is_good_if_it_keeps_all_objectives() -> None:
    assert Slo(ttft=0.5, tpot=0.25, e2e=1.0).met(GOOD)
    for slo in (Slo(ttft=0.4), Slo(tpot=0.2), Slo(e2e=0.9)):
        assert not slo.met(GOOD)
    assert not Slo(e2e=9.0).met(FULL)
    assert report(GOOD).good is None


def test_a_run_without_an_answer_is_told_too() -> None:
    found = report(FULL)
    assert (found.to_json()["ttft"], found.to_json()["goodput"]) == (None, None)
    assert any("429 queue_full: come back" in line for line in summary(found))
    ElementTree.fromstring(load_svg(found))


def test_the_picture_shows_every_chart() -> None:
    root = ElementTree.fromstring(load_svg(report(GOOD, SLOW, FULL, GONE)))
    names = {element.get("id") for element in root.iter("{http://www.w3.org/2000/svg}g")}
    assert names == {"tokens", "memory", "first-token", "between-tokens", "whole-answer"}
