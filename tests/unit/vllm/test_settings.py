"""The settings of Brim inside vLLM: read once, wrong values named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brim.errors import InvalidRequest
from brim.folders import fits_folder
from brim.records.lease import Expected, SizeWish
from brim.units import GIB, MIB
from brim.vllm.settings import RescueMode, WorkerSettings, read_settings


def test_without_settings_everything_has_its_default() -> None:
    assert read_settings({}, {}) == WorkerSettings(store=fits_folder())
    assert read_settings(None, {}) == WorkerSettings(store=fits_folder())


def test_all_settings() -> None:
    raw = {
        "enabled": True,
        "on_refusal": "stock",
        "canary": "512MiB",
        "keep_free": "1GiB",
        "memory_fraction": 0.5,
        "utilization_given": True,
        "growing_segments": False,
        "rescue": "on",
        "store": "/somewhere",
        "report": "/tmp/fit.json",
        "budget": 64 * MIB,
        "budget_name": "cpu:lab",
        "share": "2GiB",
        "expect_neighbours": ["embedder"],
        "wait_neighbours": "30s",
    }
    assert read_settings({"brim": raw, "other": 1}, {"BRIM": "on"}) == WorkerSettings(
        enabled=True,
        stock_where_refused=True,
        canary_bytes=512 * MIB,
        keep_free_bytes=GIB,
        memory_fraction=0.5,
        utilization_given=True,
        growing_segments=False,
        rescue=RescueMode.ON,
        store=Path("/somewhere"),
        report=Path("/tmp/fit.json"),
        budget_bytes=64 * MIB,
        budget_name="cpu:lab",
        share=SizeWish(bytes=2 * GIB),
        expected=Expected(roles=("embedder",)),
        wait_seconds=30.0,
    )


@pytest.mark.parametrize("said", ["off", "OFF", "0", "false"])
def test_the_environment_switches_brim_off(said: str) -> None:
    assert not read_settings({"brim": {"enabled": True}}, {"BRIM": said}).enabled


def test_the_setting_switches_brim_off() -> None:
    assert not read_settings({"brim": {"enabled": False}}, {}).enabled


def test_the_environment_says_that_a_utilization_was_written() -> None:
    said = {"BRIM_UTILIZATION_GIVEN": "1"}
    assert read_settings({}, said).utilization_given
    assert not read_settings({"brim": {"utilization_given": False}}, said).utilization_given


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"canary": "much"}, "additional_config.brim.canary"),
        ({"canary": -1}, "additional_config.brim.canary"),
        ({"memory_fraction": 0}, "above 0"),
        ({"memory_fraction": True}, "above 0"),
        ({"enabled": "yes"}, "true or false"),
        ({"on_refusal": "ignore"}, "stop or stock"),
        ({"canaries": 1}, "canaries is no setting"),
        ({"expect_neighbours": "embedder"}, "expect_neighbours"),
        ({"store": 3}, "additional_config.brim.store"),
        ("canary", "write an object"),
    ],
)
def test_a_wrong_value_is_named(raw: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        read_settings({"brim": raw}, {})


def test_a_wrong_switch_is_named() -> None:
    with pytest.raises(InvalidRequest, match="BRIM is 'maybe'"):
        read_settings({}, {"BRIM": "maybe"})
