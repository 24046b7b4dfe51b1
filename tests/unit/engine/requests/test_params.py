"""What a request may ask of the sampler, and how it is refused."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from brim.engine.requests.params import SamplingParams
from brim.errors import InvalidRequest

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("max_tokens", 0, "1.."),
        ("max_tokens", True, "1.."),
        ("max_tokens", 2.0, "integer"),
        ("max_tokens", None, "integer"),
        ("temperature", -0.1, "[0, 100]"),
        ("temperature", NAN, "[0, 100]"),
        ("temperature", INF, "[0, 100]"),
        ("temperature", 100.5, "[0, 100]"),
        ("temperature", True, "[0, 100]"),
        ("temperature", "1", "[0, 100]"),
        ("temperature", 10**400, "[0, 100]"),
        ("top_k", -2, "-1.."),
        ("top_k", False, "-1.."),
        ("top_p", -0.1, "[0, 1]"),
        ("top_p", 1.01, "[0, 1]"),
        ("top_p", NAN, "[0, 1]"),
        ("min_p", -0.1, "[0, 1]"),
        ("min_p", 1.1, "[0, 1]"),
        ("repetition_penalty", 0.0, "(0, 10]"),
        ("repetition_penalty", 10.5, "(0, 10]"),
        ("repetition_penalty", INF, "(0, 10]"),
        ("presence_penalty", -2.1, "[-2, 2]"),
        ("presence_penalty", NAN, "[-2, 2]"),
        ("frequency_penalty", 2.1, "[-2, 2]"),
        ("seed", 1.5, "integer"),
        ("seed", True, "integer"),
        ("seed", 2**63, "integer"),
        ("stop", "text", "tuple"),
        ("stop", ("a",) * 17, "at most 16"),
        ("stop", ("a", ""), "not empty"),
        ("stop", (7,), "string"),
        ("stop", ("a" * 1024, "a" * 1025), "at most 1024 characters long (it has 1025): shorten it"),
        ("stop_token_ids", [1], "tuple"),
        ("stop_token_ids", (-1,), "token id"),
        ("stop_token_ids", (True,), "token id"),
        ("ignore_eos", 1, "true or false"),
        ("skip_special_tokens", None, "true or false"),
        ("include_stop", "yes", "true or false"),
        ("allowed_token_ids", (), "at least one"),
        ("allowed_token_ids", [1], "tuple"),
        ("allowed_token_ids", (1.0,), "token id"),
        ("allowed_token_ids", (0,) * 65_537, "at most 65536"),
        ("banned_sequences", ((),), "not empty"),
        ("banned_sequences", ((1, -1),), "token id"),
        ("banned_sequences", ((1,) * 257,), "at most 256"),
        ("banned_sequences", ((1,),) * 513, "at most 512"),
        ("logit_bias", {1: 2.0}, "tuple"),
        ("logit_bias", ((1,),), "pair"),
        ("logit_bias", ((-1, 1.0),), "token id"),
        ("logit_bias", ((1, 100.5),), "[-100, 100]"),
        ("logit_bias", ((1, NAN),), "[-100, 100]"),
        ("logit_bias", ((1, -INF),), "[-100, 100]"),
        ("logit_bias", ((1, 1.0), (1, 2.0)), "once"),
        ("logit_bias", tuple((token, 1.0) for token in range(1025)), "at most 1024"),
        ("stop", ("\n", "no\ud800"), "its character 2 is half of a surrogate pair"),
        ("logprobs", -1, "0..20"),
        ("logprobs", 21, "0..20"),
        ("logprobs", True, "0..20"),
        ("prompt_logprobs", 21, "0..20"),
        ("top_k_logits", -1, "0..1024"),
        ("top_k_logits", 1025, "0..1024"),
        ("top_k_logits", None, "0..1024"),
        ("top_k_logits", 2.0, "0..1024"),
        ("n", 0, "1..64"),
        ("n", 65, "1..64"),
        ("min_tokens", -1, "0.."),
        ("min_tokens", 129, "max_tokens, 128"),
    ],
)
def test_an_absurd_value_is_refused_by_name(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        SamplingParams(**{field: value})
    message = str(refusal.value)
    assert message.startswith(f"{field} is ")
    assert allowed in message
    assert len(message) < 250


def test_the_message_holds_the_value() -> None:
    with pytest.raises(InvalidRequest, match=r"^top_p is 1\.5; it must be a number in \[0, 1\]$"):
        SamplingParams(top_p=1.5)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(max_tokens=1, min_tokens=1),
        SamplingParams(temperature=0),
        SamplingParams(temperature=100, top_p=1, min_p=1, repetition_penalty=10),
        SamplingParams(presence_penalty=-2, frequency_penalty=2, n=64, logprobs=20, prompt_logprobs=0),
        SamplingParams(seed=-(2**63), stop=("x" * 1024,) * 16, logit_bias=((0, -100), (1, 100.0))),
    ],
)
def test_the_ends_of_the_ranges_are_inside(params: SamplingParams) -> None:
    params.check(vocab=2)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (SamplingParams(logit_bias=((3, 1.0), (10, 1.0))), "logit_bias"),
        (SamplingParams(stop_token_ids=(10,)), "stop_token_ids"),
    ],
)
def test_a_token_outside_the_vocabulary_is_refused(params: SamplingParams, field: str) -> None:
    params.check(vocab=11)
    with pytest.raises(InvalidRequest, match=rf"^{field} is 10; it must be a token id in 0\.\.9$"):
        params.check(vocab=10)


def test_more_logits_than_the_vocabulary_has_are_refused() -> None:
    SamplingParams(top_k_logits=10).check(vocab=10)
    with pytest.raises(InvalidRequest, match=r"^top_k_logits is 11; it must be at most the size of"):
        SamplingParams(top_k_logits=11).check(vocab=10)


def test_what_is_greedy() -> None:
    plain = SamplingParams(temperature=0, top_p=0.5, seed=3, stop=("a",), ignore_eos=True)
    assert plain.greedy
    assert plain.plain_greedy
    assert SamplingParams(top_k=1).plain_greedy
    assert SamplingParams(temperature=1e-9).plain_greedy
    assert not SamplingParams().greedy
    more: list[dict[str, Any]] = [
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
        {"logit_bias": ((1, 1.0),)},
        {"logprobs": 0},
        {"min_tokens": 1},
    ]
    for change in more:
        changed = replace(plain, **change)
        assert changed.greedy
        assert not changed.plain_greedy
        assert changed.needs_history == any("penalty" in name for name in change)


def test_no_torch_is_loaded() -> None:
    code = "import sys, brim.engine.requests.params; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
