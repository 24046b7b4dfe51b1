"""Real configs, damaged at random, with random flags: a plan that makes sense, or one line that says what is wrong.

Each case is made from its number alone, run through the command line in this process, and held to the same rules: the
exit code is 0, 1 or 2; bad input is one line on standard error; a plan has no absurd figure, and a larger card never
gives less. A failure prints the case's number, what was changed in the config, and the command.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from brim.cli.main import run
from brim.model.catalogue import entries
from brim.planning.devices import catalogue
from brim.planning.engines import ENGINES
from tests.conftest import CONFIGS, shared_config_names

CASES = 1_000
SOAK_CASES = 10_000
CHUNK = 100
LONGEST_SECONDS = 2

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 64, 10**6, 10**9, 2**31, 2**63, 10**18, -(10**18), 10**400),
    *(0.0, -0.5, 0.5, 1e-300, 1e300, float("nan"), float("inf"), float("-inf")),
    *("", "0", "128", "bfloat16", "日本語\u202e", "x" * 5000, "\x00", "full_attention", "sliding_attention"),
    *([], [0], [1, 2, 3], [None], ["full_attention"], {}, {"a": 1}),
)
QUANTISATIONS: tuple[dict[str, Any], ...] = (
    {"quant_method": "fp8", "weight_block_size": [128, 128]},
    {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
    {"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": True, "dynamic": {"+:.*": {"bits": 8}}},
    {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
    {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
    {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}}},
    {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*self_attn*"]},
    {"quant_method": "hqq", "nbits": 4},
    {"bits": 4, "group_size": 64},
    {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 4, "group_size": 64}}},
        "ignore": ["lm_head", "re:.*gate$"],
    },
)
NO_COUNTS = ("0", "-1", "1e400", "nan", "2^40", "", "ten", "1.5k", "９", str(10**30))
# (option, values that mean something, values that may not)
FLAGS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("--tp", ("1", "2", "4", "8"), ("3", "0", "-2", "x", "4096", str(10**20))),
    ("--max-len", ("512", "4k", "32k", "1M", "1"), NO_COUNTS),
    ("--max-seqs", ("1", "16", "256", "1k"), NO_COUNTS),
    ("--concurrency", ("1", "4", "64"), NO_COUNTS),
    ("--mean-len", ("1", "1k", "8k"), NO_COUNTS),
    ("--kv-tokens", ("1k", "32k", "1M", "1"), NO_COUNTS),
    ("--batch-tokens", ("1", "256", "2k", "64k"), NO_COUNTS),
    ("--kv-dtype", ("auto", "bf16", "fp16", "fp8", "int8"), ("int2", "")),
    ("--weights", ("auto", "bf16", "fp32", "fp8", "fp8-block", "int4", "awq", "nvfp4", "q8_0"), ("q4", "")),
    ("--attn", ("fused", "eager"), ("lazy",)),
    ("--image-pixels", ("1003520", "1280x784", "1x1"), ("0", "9999999x9999999", "x", "-5x5")),
    ("--images-per-prompt", ("1", "4", "0", "100"), NO_COUNTS),
    ("--audio-seconds", ("1", "30", "10k"), NO_COUNTS),
    ("--reserve", ("0", "4GiB", "512MiB"), ("-1GiB", "1e999GiB", "GiB", "1TiB", "nan", "")),
    ("--engine", tuple(ENGINES), ("no-such-engine", "")),
    ("--draft", ("llama-3.2-1b", "qwen3-0.6b"), ("no-such-model", "")),
    ("--draft-tokens", ("1", "5"), NO_COUNTS),
)
MEDIA = ("--image-pixels", "--images-per-prompt", "--audio-seconds")


@dataclass(frozen=True)
class Case:
    """A damaged config and the options it is planned with."""

    number: int
    changes: tuple[str, ...]
    config: dict[str, Any]
    options: tuple[str, ...]

    def described(self, device: str) -> str:
        changes = "\n    ".join(self.changes)
        return f"case {self.number} on {device}\n  options: {' '.join(self.options)}\n  changes:\n    {changes}"


@cache
def sources() -> tuple[tuple[str, str], ...]:
    """(name, config as text) of every real config there is."""
    own = [(entry.name, json.dumps(entry.config)) for entry in entries().values()]
    shared = [(name, (CONFIGS / name / "config.json").read_text()) for name in shared_config_names()]
    return tuple(own + [(name, text) for name, text in shared if len(text) < 20_000])


def make_case(number: int) -> Case:
    draw = random.Random(f"mutation {number}")
    name, text = draw.choice(sources())
    config = json.loads(text)
    options = tuple(make_options(draw, media="vision" in text or "audio" in text))
    changes = [draw.choice(DAMAGES)(config, draw) for _ in range(draw.choice((0, 0, 1, 1, 1, 2, 3)))]
    return Case(number, (name, *changes), config, options)


def make_options(draw: random.Random, *, media: bool) -> Iterator[str]:
    flags = FLAGS if media or draw.random() < 0.05 else [flag for flag in FLAGS if flag[0] not in MEDIA]
    for flag, sound, nonsense in draw.sample(flags, draw.choice((0, 1, 1, 2, 3, 6))):
        yield f"{flag}={draw.choice(nonsense if draw.random() < 0.08 else sound)}"
    if draw.random() < 0.2:
        yield draw.choice(("--graphs", "--no-graphs"))


def places(node: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """(holder, key) of everything in a config, but for long lists, of which the first entries stand for all."""
    items = node.items() if isinstance(node, dict) else enumerate(node[:4]) if isinstance(node, list) else ()
    for key, value in items:
        yield node, key
        if depth < 6:
            yield from places(value, depth + 1)


def somewhere(config: dict[str, Any], draw: random.Random) -> tuple[Any, Any]:
    found = list(places(config))
    return draw.choice(found) if found else (config, "hidden_size")


def left_out(config: dict[str, Any], draw: random.Random) -> str:
    node, key = somewhere(config, draw)
    if isinstance(node, dict):
        node.pop(key, None)
    else:
        del node[key]
    return f"left out {key}"


def replaced(config: dict[str, Any], draw: random.Random) -> str:
    node, key = somewhere(config, draw)
    node[key] = copy.deepcopy(draw.choice(HOSTILE))
    return f"{key} = {str(node[key])[:60]!r}"


def scaled(config: dict[str, Any], draw: random.Random) -> str:
    """A number made another one: nearby, negative, far away, or text."""
    numbers = [(node, key) for node, key in places(config) if type(node[key]) in (int, float)]
    if not numbers:
        return "no number to change"
    node, key = draw.choice(numbers)
    value = node[key]
    node[key] = draw.choice((value + 1, value - 1, -value, value * 2, value * 1000, value * 10**12, 0, str(value)))
    return f"{key}: {value} -> {str(node[key])[:60]}"


def swapped(config: dict[str, Any], draw: random.Random) -> str:
    (one, first), (other, second) = somewhere(config, draw), somewhere(config, draw)
    one[first], other[second] = copy.deepcopy(other[second]), copy.deepcopy(one[first])
    return f"swapped {first} and {second}"


def nested(config: dict[str, Any], draw: random.Random) -> str:
    """A part that is another copy of the whole, or of another part; towers where there were none."""
    name = draw.choice(("text_config", "vision_config", "audio_config", "thinker_config", "llm_config", "vision_tower"))
    parts = [node[key] for node, key in places(config) if isinstance(node[key], dict)]
    config[name] = copy.deepcopy(draw.choice([config, *parts]))
    return f"{name} = a copy of a part"


def deepened(config: dict[str, Any], draw: random.Random) -> str:
    node, key = somewhere(config, draw)
    inner: Any = copy.deepcopy(node[key])
    for _ in range(draw.choice((1, 5, 60))):
        inner = draw.choice(({key: inner}, [inner])) if not isinstance(key, int) else [inner]
    node[key] = inner
    return f"{key} deep inside"


def lengthened(config: dict[str, Any], draw: random.Random) -> str:
    lists = [(node, key) for node, key in places(config) if isinstance(node[key], list)]
    if not lists:
        return "no list to change"
    node, key = draw.choice(lists)
    node[key] = draw.choice((node[key][:1], node[key] * 3, node[key][::-1], [*node[key], None], node[key] * 300))
    return f"{key}: a list of {len(node[key])}"


def quantised(config: dict[str, Any], draw: random.Random) -> str:
    fields = copy.deepcopy(draw.choice(QUANTISATIONS))
    if draw.random() < 0.5:
        replaced(fields, draw)
    name = draw.choice(("quantization_config", "quantization_config", "quantization", "compression_config"))
    config[name] = fields
    return f"{name} = {str(fields)[:200]}"


def renamed(config: dict[str, Any], draw: random.Random) -> str:
    """Another family's name over this one's dimensions; or a class without a family."""
    _, text = draw.choice(sources())
    other = json.loads(text)
    config["model_type"] = draw.choice((other.get("model_type"), None, "", "llama", "no_such_family"))
    config["architectures"] = draw.choice((other.get("architectures"), None, [], ["LlamaForCausalLM"], "Llama"))
    return f"model_type = {config['model_type']!r}, architectures = {config['architectures']!r}"


DAMAGES: tuple[Callable[[dict[str, Any], random.Random], str], ...] = (
    *(left_out, left_out, replaced, replaced, replaced, scaled, scaled, swapped),
    *(nested, deepened, lengthened, quantised, renamed),
)


class TookTooLong(BaseException):
    """Not an `Exception`: nothing on the way may catch it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def plan(path: Path, case: Case, device: str) -> Outcome:
    out, err = io.StringIO(), io.StringIO()
    arguments = ["plan", str(path), f"--gpu={device}", "--json", *case.options]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), time_limit(LONGEST_SECONDS):
        try:
            code = run(arguments)
        except SystemExit as exit_:
            code = int(exit_.code or 0)
    return Outcome(code, out.getvalue(), err.getvalue())


def check(case: Case, folder: Path) -> str:
    """Run a case on a card and on the next larger one, and hold both answers to the rules; which kind it was."""
    path = folder / "config.json"
    path.write_text(json.dumps(case.config), encoding="utf-8")
    smaller, larger = pair_of_cards(case.number)
    first = judged(plan(path, case, smaller), case, smaller)
    if first is None:
        return "refused"
    second = judged(plan(path, case, larger), case, larger)
    assert second is not None, "refused on a larger card"
    check_larger_card(first, second)
    return "fits" if first["fits"] else "does not fit"


@cache
def cards() -> tuple[tuple[str, ...], ...]:
    """The catalogue by what a process can use: cards of a generation, which the same engines run on."""
    usable = sorted(catalogue(), key=lambda device: device.usable_bytes - device.context_bytes - device.workspace_bytes)
    kinds = dict.fromkeys((device.generation, device.unified) for device in usable)
    alike = (tuple(one.key for one in usable if (one.generation, one.unified) == kind) for kind in kinds)
    return tuple(keys for keys in alike if len(keys) > 1)


def pair_of_cards(number: int) -> tuple[str, str]:
    draw = random.Random(f"cards {number}")
    alike = draw.choices(cards(), weights=[len(keys) for keys in cards()])[0]
    smaller = draw.randrange(len(alike) - 1)
    return alike[smaller], alike[min(len(alike) - 1, smaller + draw.choice((1, 1, 4, 20)))]


def judged(found: Outcome, case: Case, device: str) -> dict[str, Any] | None:
    """The plan, checked; None where the input was refused, in one line."""
    assert found.code in (0, 1, 2), f"exit code {found.code}: {found.err[:300]}"
    if found.code == 2:
        assert found.out == ""
        assert found.err.count("\n") == 1, f"{found.err.count(chr(10))} lines: {found.err[:300]}"
        assert found.err.endswith("\n")
        assert len(found.err) < 1000, found.err[:300]
        assert "Traceback" not in found.err
        return None
    answer: dict[str, Any] = json.loads(found.out, parse_constant=not_a_number)
    assert answer["fits"] is (found.code == 0)
    check_figures(answer)
    return answer


def not_a_number(text: str) -> float:
    raise AssertionError(f"{text} in the answer")


def check_figures(answer: dict[str, Any]) -> None:
    sizes = {item["name"]: item["bytes"] for item in answer["items"]}
    assert sum(sizes.values()) == answer["device"]["total_bytes"]
    for name, size in sizes.items():
        assert isinstance(size, int)
        assert size >= 0 or (name == "kv" and not answer["fits"]), f"{name} is {size}"
    never_negative = [
        *("shortfall_bytes", "weights_bytes", "kv_bytes_per_token", "state_bytes_per_request", "request_bytes"),
        *("activation_bytes", "kv_tokens", "max_len", "max_seqs", "batch_tokens"),
    ]
    for name in never_negative:
        assert answer[name] >= 0, f"{name} is {answer[name]}"
    assert answer["weights_bytes"] > 0
    if answer["fits"]:
        assert answer["shortfall_bytes"] == 0
        assert answer["kv_tokens"] >= 1
        assert min(answer["max_len"], answer["max_seqs"], answer["batch_tokens"]) >= 1
    for kind in answer["kv_kinds"]:
        assert min(kind["layers"], kind["bytes_per_token"], kind["stride"]) >= 1, kind
        assert kind["window"] is None or kind["window"] >= 1, kind
    for one in answer["advice"]:
        assert one["kv_tokens_after"] >= 0, one


def check_larger_card(smaller: dict[str, Any], larger: dict[str, Any]) -> None:
    """What was asked for is the same, and there is more room for it."""
    assert larger["fits"] or not smaller["fits"], "fits, and not on a larger card"
    assert larger["kv_tokens"] >= smaller["kv_tokens"], f"{smaller['kv_tokens']} -> {larger['kv_tokens']} KV tokens"


def check_all(numbers: range, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    monkeypatch.setenv("BRIM_CACHE", str(folder / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    kinds = dict.fromkeys(("fits", "does not fit", "refused"), 0)
    failures = []
    for number in numbers:
        case = make_case(number)
        try:
            kinds[check(case, folder)] += 1
        except (Exception, TookTooLong) as error:  # noqa: BLE001 - a traceback is what this looks for
            failures.append(f"{type(error).__name__}: {error}\n  {case.described(' and '.join(pair_of_cards(number)))}")
    assert not failures, f"{len(failures)} of {len(numbers)} cases\n" + "\n".join(failures[:5])
    return kinds


@pytest.mark.parametrize("start", range(0, CASES, CHUNK))
def test_mutated_configs_and_flags(start: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = check_all(range(start, start + CHUNK), tmp_path, monkeypatch)
    assert min(kinds.values()) >= 3, f"cases of one kind only prove little: {kinds}"


@pytest.mark.soak
@pytest.mark.parametrize("start", range(CASES, CASES + SOAK_CASES, 10 * CHUNK))
def test_many_mutated_configs_and_flags(start: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_all(range(start, start + 10 * CHUNK), tmp_path, monkeypatch)


def test_a_case_is_made_from_its_number() -> None:
    assert [make_case(number).options for number in range(50)] == [make_case(number).options for number in range(50)]
    assert str(make_case(7)) == str(make_case(7))
