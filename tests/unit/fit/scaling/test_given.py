"""Coefficients and margins that an operator sets: taken as they are, or refused with the field and the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brim.errors import InvalidRequest
from brim.fit.scaling.given import check_given, check_margin, check_mode, parse_scaling, read_scaling
from brim.records.scaling import Coefficients, Law, Scaling, ScalingMode

GOOD: dict[str, Any] = {"prefill": {"bytes_per_unit": 119336}, "next_token": {"constant_bytes": 4e6}}
LAWS = Scaling(Law(Coefficients(bytes_per_unit=119336.0)), Law(Coefficients(constant_bytes=4e6)))


def test_terms_that_are_not_given_are_0() -> None:
    assert parse_scaling(json.dumps(GOOD)) == LAWS


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), float("-inf"), "7", None, True, [1], 10**400])
def test_a_coefficient_that_is_no_number_or_negative_is_refused(value: Any) -> None:
    raw = {**GOOD, "prefill": {"bytes_per_unit": value}}
    with pytest.raises(InvalidRequest, match=r"prefill\.bytes_per_unit is .*; it must be a number"):
        read_scaling(raw)


def test_json_s_nan_is_refused_too() -> None:
    with pytest.raises(InvalidRequest, match=r"next_token\.constant_bytes is nan"):
        parse_scaling('{"prefill": {"bytes_per_unit": 1}, "next_token": {"constant_bytes": NaN}}')


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ([], "an object with prefill and next_token"),
        ({"prefill": {"bytes_per_unit": 1}}, "an object with prefill and next_token"),
        ({**GOOD, "decode": {}}, "an object with prefill and next_token"),
        ({**GOOD, "prefill": 5}, "prefill is 5; it must be an object"),
        ({**GOOD, "prefill": {"per_token": 1}}, r"prefill\.per_token is not known"),
        ({**GOOD, "prefill": {}}, "all of prefill are 0"),
        ({**GOOD, "prefill": {"bytes_per_unit": 1, "slice_units": 0}}, r"prefill\.slice_units is 0"),
        ({**GOOD, "prefill": {"bytes_per_unit": 1, "least_units": 1.5}}, r"prefill\.least_units is 1\.5"),
        ({**GOOD, "prefill": {"bytes_per_unit": 1, "allowance": -0.1}}, r"prefill\.allowance is -0\.1"),
    ],
)
def test_anything_else_names_its_field(raw: Any, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        read_scaling(raw)


def test_text_that_is_not_json_shows_an_example() -> None:
    with pytest.raises(InvalidRequest, match=r"are not JSON .*write \{\"prefill\""):
        parse_scaling("{")


@pytest.mark.parametrize("percent", [-0.1, 100, 250, float("nan"), float("inf"), True, "5"])
def test_a_margin_outside_its_range_is_refused(percent: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"safety_margin is .*; it must be a percentage from 0 to below 100"):
        check_margin(percent)


@pytest.mark.parametrize("percent", [None, 0, 5, 99.9])
def test_a_margin_inside_its_range_is_taken(percent: float | None) -> None:
    assert check_margin(percent) == percent


def test_modes() -> None:
    assert [check_mode(name) for name in ("auto", "manual", "off")] == list(ScalingMode)
    with pytest.raises(InvalidRequest, match="scaling is 'on'; it must be one of auto, manual, off"):
        check_mode("on")


def test_coefficients_belong_to_manual() -> None:
    check_given(ScalingMode.MANUAL, LAWS)
    check_given(ScalingMode.OFF, None)
    with pytest.raises(InvalidRequest, match="manual without coefficients"):
        check_given(ScalingMode.MANUAL, None)
    with pytest.raises(InvalidRequest, match="scaling is auto; use --scaling manual"):
        check_given(ScalingMode.AUTO, LAWS)
