"""The alert rules: every metric exists, every rule has a test in promtool's format, and that test holds.

promtool is not needed: the expressions use few functions, which are evaluated here. Where it is installed it runs too.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
pytest.importorskip("prometheus_client")
pytest.importorskip("starlette")

FOLDER = Path(__file__).parents[3] / "deploy" / "alerts"
RULES = yaml.safe_load((FOLDER / "brim.rules.yml").read_text(encoding="utf-8"))
TESTS = yaml.safe_load((FOLDER / "brim.test.yml").read_text(encoding="utf-8"))
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
SOURCE = Path(__file__).parents[3] / "src" / "brim"
OF_VLLM = {"vllm:num_preemptions_total", "vllm:kv_cache_usage_perc"}  # of its own /metrics
_NAME = re.compile(r"\b((?:brim|vllm)[_:][a-z_]+)")
_COMPARED = re.compile(r"(.+) (>|<|==) ([\d.]+)", re.DOTALL)
_CALL = re.compile(r"(increase|rate)\((\S+)\[(\d+)m\]\)")
_SUMS = re.compile(r"sum by \(instance\) \(([^)]+)\)")

Series = dict[str, tuple[dict[str, str], list[float]]]


def test_every_metric_exists() -> None:
    served = (SOURCE / "serve" / "metrics.py").read_text(encoding="utf-8")
    inside = (SOURCE / "vllm" / "metrics.py").read_text(encoding="utf-8")
    known = {f"{name}{end}" for name in re.findall(r'"(brim_\w+)"', served) for end in ("", "_total")}
    known |= set(re.findall(r'"(brim:\w+)"', inside)) | OF_VLLM
    for rule in ALERTS.values():
        used = set(_NAME.findall(rule["expr"]))
        assert used
        assert used <= known, rule["alert"]


def test_every_alert_has_a_test_a_severity_and_a_remedy() -> None:
    tested = {one["alertname"] for test in TESTS["tests"] for one in test["alert_rule_test"]}
    assert tested == set(ALERTS)
    for rule in ALERTS.values():
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"].keys() == {"summary", "remedy"}


@pytest.mark.parametrize("number", range(len(TESTS["tests"])))
def test_the_rules_fire_as_their_tests_say(number: int) -> None:
    test = TESTS["tests"][number]
    series = {one["series"]: (_labels(one["series"]), _values(one["values"])) for one in test["input_series"]}
    for case in test["alert_rule_test"]:
        rule = ALERTS[case["alertname"]]
        fires = _fires(rule, series, _minutes(case["eval_time"]))
        assert fires == bool(case["exp_alerts"]), case
        for expected in case["exp_alerts"]:
            assert expected["exp_annotations"] == rule["annotations"]
            assert expected["exp_labels"]["severity"] == rule["labels"]["severity"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_agrees() -> None:
    done = subprocess.run(["promtool", "test", "rules", "brim.test.yml"], cwd=FOLDER, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout


# -- as much of PromQL as the rules use ----------------------------------------------------------------------------


def _fires(rule: dict[str, Any], series: Series, at: int) -> bool:
    """True where the expression has held for as long as the rule says."""
    held = _minutes(rule.get("for", "0m"))
    return all(_holds(rule["expr"].strip(), series, minute) for minute in range(max(0, at - held), at + 1))


def _holds(expression: str, series: Series, minute: int) -> bool:
    match = _COMPARED.fullmatch(expression)
    assert match, expression
    value = _value(match[1].strip(), series, minute)
    limit = float(match[3])
    return {">": value > limit, "<": value < limit, "==": value == limit}[match[2]]


def _value(expression: str, series: Series, minute: int) -> float:
    if match := _CALL.fullmatch(expression):
        values = _selected(match[2], series)[0][max(0, minute - int(match[3])) : minute + 1]
        grown = sum(max(0.0, later - earlier) for earlier, later in itertools.pairwise(values))
        return grown if match[1] == "increase" else grown / (60 * max(1, len(values) - 1))
    if " / " in expression:
        upper, lower = (_value(part.strip(), series, minute) for part in expression.split(" / "))
        return upper / lower
    if match := _SUMS.fullmatch(expression):
        return sum(values[minute] for values in _selected(match[1], series))
    return _selected(expression, series)[0][minute]


def _selected(selector: str, series: Series) -> list[list[float]]:
    name, wanted = selector.partition("{")[0], _labels(selector)
    found = [
        values
        for key, (labels, values) in series.items()
        if key.partition("{")[0] == name and wanted.items() <= labels.items()
    ]
    assert found, selector
    return found


def _labels(text: str) -> dict[str, str]:
    return dict(re.findall(r'(\w+)="([^"]*)"', text))


def _values(written: str) -> list[float]:
    """Of promtool: `a+bxn` is a, a + b, … (n + 1 values), `axn` is a so often."""
    found: list[float] = []
    for part in written.split():
        match = re.fullmatch(r"([\d.]+)(?:\+([\d.]+))?x(\d+)", part)
        assert match, part
        found += [float(match[1]) + float(match[2] or 0) * step for step in range(int(match[3]) + 1)]
    return found


def _minutes(text: str) -> int:
    return int(text.removesuffix("m"))
