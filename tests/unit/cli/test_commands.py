"""The commands as processes and as functions: keys, exit codes, one-line errors, no heavy imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import brim
from brim.cli.main import COMMANDS, run
from brim.errors import BrimError
from brim.install import install_command
from brim.model.catalogue import entries
from brim.records.trace import ActivationCurve, CurvePoint, Phase
from brim.trace.store import CurveStore
from brim.trace.versions import traced_with

KEYS = {
    "model",
    "fits",
    "device",
    "items",
    "weights_bytes",
    "kv_bytes_per_token",
    "state_bytes_per_request",
    "request_bytes",
    "activation_bytes",
    "kv_tokens",
    "max_len",
    "max_seqs",
    "limited_by",
    "advice",
    "flags",
    "warnings",
}


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "brim.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_json_has_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "qwen3-8b", "--gpu", "l40s", "--engine", "sglang", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) >= KEYS
    assert set(found["items"][0]) == {"name", "bytes", "source", "detail"}
    assert set(found["advice"][0]) >= {"knob", "from", "to", "frees_bytes", "kv_tokens_after"}
    assert "--context-length" in found["flags"]


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "qwen3-8b", "--gpu", "h100"]) == 0
    assert run(["plan", "qwen3-32b", "--gpu", "rtx-4090"]) == 1
    assert run(["plan", "qwen3-32b", "--compare"]) == 0
    assert run(["plan", "deepseek-v3", "--gpu", "t4,l4"]) == 1
    assert run(["models"]) == run(["models", "--families"]) == run(["gpus"]) == 0
    assert "qwen3-32b" in capsys.readouterr().out


def test_a_person_sees_the_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    run(["plan", "qwen3.5-27b", "--gpu", "h100", "--tp", "2"])
    text = capsys.readouterr().out
    for word in (
        "2 × NVIDIA H100",
        "weights",
        "encoder",
        "activation",
        "state",
        "KV cache",
        "What each setting would gain",
    ):
        assert word in text


def test_several_gpus_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "qwen3-8b", "--gpu", "l4", "--gpu", "h100", "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert [plan["device"]["name"] for plan in plans] == ["NVIDIA L4", "NVIDIA H100 80GB SXM"]


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    run(["plan", "llama-3.3-70b", *arguments, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_node_is_planned_over_all_its_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    node = planned(capsys, "--gpu", "8xh100")
    assert (node["device"]["count"], node["fits"]) == (8, True)
    assert node == planned(capsys, "--gpu", "h100", "--tp", "8") == planned(capsys, "--gpu", "H100:8")
    assert planned(capsys, "--gpu", "8xh100", "--tp", "2") == planned(capsys, "--gpu", "h100", "--tp", "2")
    nodes = planned(capsys, "--gpu", "4xh100,2xh200")["plans"]
    assert [plan["device"]["count"] for plan in nodes] == [4, 2]


def test_the_api_takes_a_node_and_its_devices() -> None:
    whole = brim.plan("llama-3.3-70b", gpu="4xh100")
    assert whole.ranks == 4
    assert whole == brim.plan("llama-3.3-70b", gpu=brim.find_devices("h100:4"))
    assert whole == brim.plan("llama-3.3-70b", gpu=brim.find_device("h100"), tp=4)
    with pytest.raises(BrimError, match="tp is 8 and gpu names 4 devices"):
        brim.plan("llama-3.3-70b", gpu="4xh100", tp=8)
    with pytest.raises(BrimError, match="gpu is an empty list"):
        brim.plan("llama-3.3-70b", gpu=())


def test_the_api_finds_the_curves_that_commands_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_CACHE", str(tmp_path))
    assert brim.plan("qwen3-8b", gpu="2xh100").item("activation").source is brim.Source.FORMULA
    points = (CurvePoint(1024, 1 << 20, 1 << 21), CurvePoint(8192, 1 << 30, 1 << 31))
    curve = ActivationCurve("qwen3-8b", Phase.PREFILL, "tokens", points, 0.0, traced_with() or "none", ranks=2)
    CurveStore(tmp_path / "curves").write(brim.load_model("qwen3-8b"), curve)
    assert brim.plan("qwen3-8b", gpu="2xh100").item("activation").source is brim.Source.TRACED


def test_a_sibling_s_plan_says_which_entry_was_taken(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "Meta-Llama-3.1-8B", "--gpu", "h100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "taken as llama-3.1-8b of the catalogue" in found["warnings"][0]


@pytest.mark.parametrize("model", ["qwen3-8b", "qwen3-32b"])
def test_the_picture_is_svg(tmp_path: Path, model: str) -> None:
    path = tmp_path / "plan.svg"
    run(["plan", model, "--gpu", "rtx-4090", "--svg", str(path)])
    root = ElementTree.parse(path).getroot()
    assert root.tag.endswith("svg")
    bars = [part for part in root.iter() if part.tag.endswith("rect")]
    assert len(bars) > 8


BAD = {
    "unknown model": ["plan", "no-such-model", "--gpu", "h100"],
    "unknown gpu": ["plan", "qwen3-8b", "--gpu", "abacus"],
    "wrong tp": ["plan", "qwen3-8b", "--gpu", "h100", "--tp", "3"],
    "more ranks than GPUs": ["plan", "qwen3-8b", "--gpu", "2xh100", "--tp", "4"],
    "no GPUs": ["plan", "qwen3-8b", "--gpu", "0xh100"],
    "a budget without a size": ["plan", "qwen3-8b", "--gpu", "cpu"],
    "tp is no number": ["plan", "qwen3-8b", "--gpu", "h100", "--tp", "many"],
    "length is no number": ["plan", "qwen3-8b", "--gpu", "h100", "--max-len", "long"],
    "negative": ["plan", "qwen3-8b", "--gpu", "h100", "--max-len", "-5"],
    "reserve": ["plan", "qwen3-8b", "--gpu", "h100", "--reserve", "some"],
    "svg and compare": ["plan", "qwen3-8b", "--gpu", "h100", "--compare", "--svg", "x.svg"],
    "svg nowhere": ["plan", "qwen3-8b", "--gpu", "h100", "--svg", "/no/such/folder/x.svg"],
    "no model": ["plan"],
    "svg that is called otherwise": ["plan", "qwen3-8b", "--gpu", "h100", "--svg", "x.png"],
    "a command that is misspelt": ["plna", "qwen3-8b"],
    "unknown option": ["plan", "qwen3-8b", "--gpu", "h100", "--faster"],
    "missing file": ["plan", "./none/config.json", "--gpu", "h100"],
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_line_and_exit_code_2(kind: str) -> None:
    started = time.perf_counter()
    done = process(*BAD[kind])
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert time.perf_counter() - started < 20  # a second on an idle machine; nobody is asked, nothing is waited for


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("plna qwen3-8b", "brim: 'plna' is no command; did you mean plan?"),
        ("plan qwen3-8b --gpus h100", "option '--gpus' is not known; did you mean --gpu?; see brim plan --help"),
        ("plan qwen3-8b --maxlen 8k", "did you mean --max-len?; see brim plan --help"),
        ("plan qwen3-8b --max_len=8k", "did you mean --max-len?"),
        ("serve --prot 80", "did you mean --port?; see brim serve --help"),
        ("plan qwen3-8b --gpu h100 --engine vlm", "engine 'vlm' is not known; did you mean vllm?"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_right_one(
    words: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = run(words.split())
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert meant in capsys.readouterr().err


def test_other_engines_names_of_options_mean_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    ours = "--gpu 2xh200 --max-len 8k --max-seqs 64 --batch-tokens 4k --kv-dtype fp8 --no-graphs"
    theirs = (
        "--gpu h200 --max-model-len 8k --max-num-seqs 64 --max-num-batched-tokens 4k --kv-cache-dtype fp8 "
        "--enforce-eager --tensor-parallel-size 2"
    )
    assert planned(capsys, *theirs.split()) == planned(capsys, *ours.split())
    llama = "--gpu 2xh200 --engine llamacpp --max-len 8k -np 4 --ubatch-size 256"
    slots = planned(capsys, *llama.split())
    assert slots["engine"] == "llama.cpp"
    assert (slots["asked"]["concurrency"], slots["batch_tokens"]) == (4, 256)


def test_the_bare_command_prints_help_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    said = capsys.readouterr().out
    assert "brim plan qwen3-8b --gpu rtx-4090" in said
    assert all(command in said for command in COMMANDS)


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
@pytest.mark.parametrize("more", [["--gpu", "rtx-4090"], ["--compare"]])
def test_an_encoding_without_blocks_and_arrows_is_written_plainly(encoding: str, more: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "brim", "plan", "qwen3-8b", *more],
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"qwen3-8b" in done.stdout
    assert b"?" not in done.stdout
    assert done.stdout.decode(encoding)


def test_names_are_whole_in_a_narrow_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run(["models"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(entries())
    assert not any("…" in line for line in lines)


def test_a_trace_that_was_asked_for_is_not_forgotten_without_torch() -> None:
    script = (
        "import sys; sys.modules['torch'] = None; from brim.cli.main import run; "
        "sys.exit(run('plan qwen3-8b --gpu h100 --trace'.split()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"brim plan: trace: tracing needs torch: {install_command('engine')}, or leave out --trace"
    ]


def test_the_catalogue_of_gpus_says_where_its_figures_are_from(capsys: pytest.CaptureFixture[str]) -> None:
    run(["gpus", "--json"])
    found = {row["key"]: row for row in json.loads(capsys.readouterr().out)["gpus"]}
    keys = ("vendor", "generation", "source")
    assert [found["h200"][key] for key in keys] == ["NVIDIA", "hopper", "catalogue"]
    assert [found["tpu-v6e"][key] for key in keys] == ["Google", "tpu", "published"]


@pytest.mark.parametrize(
    "words",
    ["fit qwen3-8b", "serve qwen3-8b", "generate qwen3-8b --prompt hello", "chat qwen3-8b", "serve --draft qwen3-8b"],
)
def test_a_name_of_the_catalogue_has_no_weights_to_run(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words.split()) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert f"brim {words.split()[0]}: {'draft: ' if 'draft' in words else ''}'qwen3-8b' is a name" in said
    assert "has no weights; write Qwen/Qwen3-8B to download them (15.26 GiB, once)" in said
    assert "hf download Qwen/Qwen3-8B --local-dir DIR" in said
    assert "--load-format dummy" in said
    assert said.endswith("brim plan qwen3-8b")


def test_without_a_gpu_a_budget_that_holds_the_model_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("brim.cli.fit._has_cuda", lambda: False)
    assert run(["fit", "qwen3-8b", "--load-format", "dummy"]) == 2
    said = capsys.readouterr().err
    assert "torch sees no GPU" in said
    assert "--memory 21GiB, which holds the 15.26 GiB of its weights" in said
    assert "brim plan qwen3-8b --gpu h100" in said


def test_a_lease_without_a_gpu_names_a_budget_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert run(["hold", "4GiB", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert "cpu:lab:4GiB" in said
    assert "24GiB" not in said


def test_neither_the_command_nor_the_library_imports_a_heavy_library() -> None:
    code = (
        "import sys, brim; from brim.cli.main import make_parser, run; make_parser(); "
        "run(['plan', 'qwen3-8b', '--gpu', 'h100', '--json']); run(['completion', 'bash']); "
        "brim.plan('qwen2.5-vl-7b', gpu='rtx-4090', max_len=32768); "
        "heavy = {'torch', 'transformers', 'numpy', 'huggingface_hub', 'rich'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_command_imports_no_other_command() -> None:
    code = (
        "import sys; from brim.cli.main import COMMANDS, run; run(['plan', 'qwen3-8b', '--gpu', 'h100', '--json']); "
        "others = {name for name, module in COMMANDS.items() if module in sys.modules} - {'plan'}; "
        "sys.exit(f'imported {others}' if others else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], *([command, "--help"] for command in COMMANDS)):
        with pytest.raises(SystemExit) as ended:
            run(words)
        assert ended.value.code == 0
        said = capsys.readouterr().out
        wanted = COMMANDS if words == ["--help"] else words[:1]
        assert all(command in said for command in wanted)


@pytest.mark.parametrize("command", ["fit brim-random --memory 1GiB", "generate brim-random --prompt hello"])
def test_without_torch_an_engine_is_refused_in_one_line(command: str) -> None:
    script = (
        f"import sys; sys.modules['torch'] = None; from brim.cli.main import run; sys.exit(run({command.split()!r}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"brim {command.split()[0]}: running a model needs torch: {install_command('engine')}"
    ]


def test_a_reader_that_has_gone_does_not_say_that_nothing_fits() -> None:
    arguments = [sys.executable, "-m", "brim.cli.main", "plan", "llama-3.1-8b", "--compare"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (0, b"")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("trace qwen3-0.6b --tokens 0", "tokens is 0; a step has at least 1"),
        ("fit --memory 0", "memory is 0; give a budget"),
        ("fit --memory 1GiB --draft-tokens 3", "draft-tokens is given and nothing drafts; name a model with --draft"),
        ("plan qwen3-8b --gpu h100 --draft=", "model is empty"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_own_name(
    command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command.split()) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
