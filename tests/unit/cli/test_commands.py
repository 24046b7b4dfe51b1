"""The commands as processes and as functions: keys, exit codes, one-line errors, no heavy imports."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from brim.cli.main import run

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
    "tp is no number": ["plan", "qwen3-8b", "--gpu", "h100", "--tp", "many"],
    "length is no number": ["plan", "qwen3-8b", "--gpu", "h100", "--max-len", "long"],
    "negative": ["plan", "qwen3-8b", "--gpu", "h100", "--max-len", "-5"],
    "reserve": ["plan", "qwen3-8b", "--gpu", "h100", "--reserve", "some"],
    "svg and compare": ["plan", "qwen3-8b", "--gpu", "h100", "--compare", "--svg", "x.svg"],
    "svg nowhere": ["plan", "qwen3-8b", "--gpu", "h100", "--svg", "/no/such/folder/x.svg"],
    "no model": ["plan"],
    "no command": [],
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
    assert time.perf_counter() - started < 5  # a second on an idle machine; tests share theirs


def test_neither_the_command_nor_the_library_imports_a_heavy_library() -> None:
    code = (
        "import sys, brim; from brim.cli.main import run; run(['plan', 'qwen3-8b', '--gpu', 'h100', '--json']); "
        "brim.plan('qwen2.5-vl-7b', gpu='rtx-4090', max_len=32768); "
        "heavy = {'torch', 'transformers', 'numpy', 'huggingface_hub', 'rich'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_help_names_every_command() -> None:
    done = process("--help")
    assert done.returncode == 0
    for command in ("plan", "models", "gpus"):
        assert command in done.stdout
        assert process(command, "--help").returncode == 0


@pytest.mark.parametrize("command", ["fit brim-tiny --memory 1GiB", "generate brim-tiny --prompt hello"])
def test_without_torch_an_engine_is_refused_in_one_line(command: str) -> None:
    script = (
        f"import sys; sys.modules['torch'] = None; from brim.cli.main import run; sys.exit(run({command.split()!r}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"brim {command.split()[0]}: running a model needs torch: pip install 'brim[engine]'"
    ]


def test_a_reader_that_has_gone_does_not_say_that_nothing_fits() -> None:
    arguments = [sys.executable, "-m", "brim.cli.main", "plan", "llama-3.1-8b", "--compare"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (0, b"")
