"""`brim generate` and `brim fit` on the model that needs no files: keys, exit codes, errors in one line."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.cli.main import run

SMALL = ["--device", "cpu", "--max-seqs", "4", "--batch-tokens", "64", "--max-len", "128"]
ANSWER_KEYS = {"request_id", "index", "prompt_tokens", "reused_tokens", "tokens", "text", "finish_reason", "logprobs"}
FIT_KEYS = {
    *("kv_tokens", "kv_bytes", "needed_tokens", "needed_bytes", "cache_tokens", "cache_bytes", "canary_bytes"),
    *("keep_free_bytes", "provable", "attempts", "items", "seconds", "from_store", "warnings", "scaling"),
}


def generate(*arguments: str) -> int:
    return run(["generate", "brim-random", *arguments, *SMALL])


def fit(*arguments: str) -> int:
    return run(["fit", "brim-random", *arguments, *SMALL[2:]])


def test_one_prompt_appears_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("--prompt", "Hello", "--max-tokens", "8") == 0
    shown = capsys.readouterr().out
    assert generate("--prompt", "Hello", "--max-tokens", "8", "--json") == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert shown == answer["text"] + "\n"
    assert set(answer) >= ANSWER_KEYS
    assert len(answer["tokens"]) == 8
    assert answer["finish_reason"] == "length"


def test_speculation_changes_no_token_and_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    words = "Write the word apple five times: apple apple apple apple"
    asked = ["generate", "brim-tiny", "--prompt", words, "--max-tokens", "24", "--ignore-eos", "--json", *SMALL]
    assert run(asked) == 0
    plain = json.loads(capsys.readouterr().out)
    assert run([*asked, "--speculate", "lookup"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["answers"] == plain
    found = shown["speculation"]
    assert set(found) >= {"open", "reason", "proposed", "accepted", "rate", "depth", "steps"}
    assert found["open"]
    assert found["reason"].startswith("open: ")
    assert found["accepted"] > 0
    assert found["rate"] == found["accepted"] / found["proposed"]


def test_a_file_of_prompts_is_answered_in_its_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text('Once\n{"prompt": "upon"}\n\n{"prompt": [5, 6, 7]}\n', encoding="utf-8")
    answers = tmp_path / "answers.jsonl"
    assert (
        generate("--input", str(prompts), "--output", str(answers), "--max-tokens", "4", "--n", "2", "--seed", "3") == 0
    )
    rows = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
    assert [(row["prompt_tokens"], row["index"]) for row in rows] == [(5, 0), (5, 1), (5, 0), (5, 1), (3, 0), (3, 1)]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prompt", "x", "--temperature", "-1"], "temperature"),
        (["--prompt", "x", "--max-tokens", "0"], "max_tokens"),
        (["--prompt", ""], None),
        (["--prompt-ids", "1,two"], "prompt-ids"),
        (["--prompt-ids", "1,99999"], "vocabulary"),
        (["--prompt", "x" * 500], "context"),
        (["--input", "/nowhere/at/all"], "input"),
        (["--prompt", "x", "--kv-tokens", "many"], "kv-tokens"),
        (["--prompt", "x", "--image", "cat.png"], "images"),
        (["--prompt", "x", "--audio", "cat.wav"], "audios"),
        (["--prompt", "x", "--audio-seconds", "long"], "audio-seconds"),
        (["--prompt", "x", "--tp", "2"], "torchrun"),
        (["--prompt", "x", "--speculate", "lookup", "--speculate-max-weight", "2"], "speculate_max_weight"),
        (["--prompt", "x", "--speculate", "lookup", "--draft-tokens", "0"], "draft_tokens"),
        (["--prompt", "x", "--draft", "brim-tiny-draft"], "vocabulary has"),
        (["--prompt", "x", "--draft", "brim-tiny-draft", "--speculate", "lookup"], "leave out one of the two"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: list[str], says: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    code = generate(*arguments)
    error = capsys.readouterr().err
    if says is None:  # an empty text still has the token that begins it
        assert code == 0
        return
    assert code == 2
    assert says in error
    assert error.count("\n") == 1


def test_a_fit_has_its_keys_and_fills_the_budget(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit("--memory", "32MiB", "--canary", "1MiB", "--no-store", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) >= FIT_KEYS
    assert set(found["attempts"][0]) == {"kv_tokens", "outcome", "shortfall_bytes"}
    assert {"name", "predicted_bytes", "measured_bytes"} <= set(found["items"][0])
    seconds = found["seconds"]
    assert set(seconds) == {"probe", "stress", "rebuild", "scaling", "validate", "predict", "other", "total"}
    assert seconds["predict"] > 0
    assert seconds.pop("total") == pytest.approx(sum(seconds.values()))
    assert found["attempts"][-1] == {
        "kv_tokens": found["kv_tokens"],
        "outcome": "proven",
        "shortfall_bytes": None,
    }


def test_a_fit_logs_its_phases_and_is_silent_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--memory", "32MiB", "--canary", "1MiB", "--no-store")
    assert fit(*small) == 0
    lines = capsys.readouterr().err.splitlines()
    phases = [line.removeprefix("brim: ").split(" ")[0] for line in lines]
    assert [phase for phase, _ in groupby(phases)] == [
        *("load", "probe", "build", "stress", "rebuild", "build", "scaling", "validate", "predict")
    ]
    assert "brim: stress (prefill, 64 tokens)" in lines
    for quiet in ("--quiet", "--json"):
        assert fit(*small, quiet) == 0
        assert capsys.readouterr().err == ""


def test_the_next_fit_comes_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BRIM_CACHE", str(tmp_path))
    found = []
    for _ in range(2):
        assert fit("--memory", "32MiB", "--canary", "1MiB", "--json") == 0
        found.append(json.loads(capsys.readouterr().out))
    assert [one["from_store"] for one in found] == [False, True]
    assert found[0]["kv_tokens"] == found[1]["kv_tokens"]


def test_a_budget_is_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for where in (["--memory", "32MiB"], ["--device", "cpu:32MiB"], ["--device", "cpu:laptop:32MiB"]):
        assert fit(*where, "--canary", "1MiB", "--no-store", "--json") == 0
        found.append(json.loads(capsys.readouterr().out)["kv_tokens"])
    assert found[0] == found[1] == found[2]


def test_a_budget_refuses_what_is_beyond_it(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ["generate", "brim-random", "--prompt", "x", "--max-tokens", "4", *SMALL[2:]]
    assert run([*answer, "--device", "cpu:256MiB"]) == 0
    assert run([*answer, "--device", "cpu:1MiB"]) == 1
    assert "out of memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--memory", "32MiB", "--device", "cpu:32MiB"], 2, "give it once"),
        (["--memory", "32MiB", "--device", "1"], 2, "a budget for the CPU only"),
        (["--device", "0,1"], 2, "a process runs on one"),
        (["--device", "h100"], 2, "is not one of this machine"),
        (["--device", "8xh100"], 2, "is not one of this machine"),
        (["--memory", "4MiB"], 1, "the shortfall is"),
        (["--memory", "1MiB"], 1, "out of memory"),
        (["--memory", "much"], 2, "memory"),
        (["--memory", "32MiB", "--memory-fraction", "1.5"], 2, "memory_fraction"),
        (["--memory", "32MiB", "--memory-fraction", "0"], 2, "memory_fraction"),
        (["--memory", "32MiB", "--kv-tokens", "8"], 2, "kv_tokens"),
        (["--memory", "32MiB", "--keep-free", "some"], 2, "keep-free"),
        (["--memory", "32MiB", "--keep-free", "30MiB"], 1, "keep_free"),
        ([], 2, "memory"),
    ],
)
def test_what_does_not_fit_says_so(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    if not arguments and torch.cuda.is_available():
        pytest.skip("a GPU needs no budget")
    assert fit(*arguments, "--no-store") == code
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prompt", "x", "--system", "y", "--raw"], "leave out one of the two"),
        (["--prompt-ids", "1,2", "--chat"], "prompt-ids"),
    ],
)
def test_forms_of_a_prompt_that_contradict_each_other(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(*arguments) == 2
    assert says in capsys.readouterr().err


MANUAL = '{"prefill": {"bytes_per_unit": 65536}, "next_token": {"constant_bytes": 1e6}}'


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--scaling", "sometimes"], "scaling is 'sometimes'; it must be one of auto, manual, off"),
        (["--scaling", "manual"], "scaling is manual without coefficients"),
        (["--scaling-coefficients", MANUAL], "scaling is auto; use --scaling manual"),
        (["--scaling", "manual", "--scaling-coefficients", "no such file"], "'no such file' cannot be read"),
        (
            ["--scaling", "manual", "--scaling-coefficients", MANUAL.replace("65536", "-1")],
            "prefill.bytes_per_unit is -1",
        ),
        (["--scaling", "manual", "--scaling-coefficients", MANUAL.replace("1e6", "NaN")], "constant_bytes is nan"),
        (["--safety-margin", "100"], "safety_margin is 100.0; it must be a percentage"),
        (["--safety-margin", "-1"], "safety_margin is -1.0; it must be a percentage"),
        (["--safety-margin", "nan"], "safety_margin is nan; it must be a percentage"),
    ],
)
def test_bad_scaling_is_refused_in_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit("--memory", "32MiB", "--no-store", *arguments) == 2
    error = capsys.readouterr().err.strip()
    assert says in error
    assert len(error.splitlines()) == 1


def test_a_margin_that_is_given_is_applied_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    coefficients = tmp_path / "laws.json"
    coefficients.write_text(MANUAL, encoding="utf-8")
    manual = ("--scaling", "manual", "--scaling-coefficients", str(coefficients))
    small = ("--memory", "32MiB", "--canary", "1MiB", "--no-store", "--quiet", "--safety-margin", "5", *manual)
    assert fit(*small) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "scaling (manual): a batch may weigh" in shown
    assert "the safety margin given is 5 %; the residuals say it should be" in shown
    assert fit(*small, "--json") == 0
    found = json.loads(capsys.readouterr().out)["scaling"]
    assert (found["mode"], found["margin_percent"]) == ("manual", 5)
    assert found["limit_bytes"] == int(found["budget_bytes"] * 0.95)
