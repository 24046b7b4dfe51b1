"""`brim explain`, its picture and its difference; `brim fit --against`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from brim.cli.fit_against import compared, read_earlier
from brim.cli.main import run
from brim.errors import InvalidRequest
from tests.unit.explain.incidents import FOLDER

START = """INFO [api_server.py] vLLM API server version {version}
INFO total_gpu_memory (139.80GiB) x gpu_memory_utilization (0.92) = 128.6GiB
INFO model weights take 15.00GiB; non_torch_memory takes 0.28GiB; PyTorch activation peak memory takes \
{activation}GiB; the rest of the memory reserved for KV Cache is {kv}GiB.
INFO GPU KV cache size: {tokens} tokens
INFO Graph capturing finished in 22 secs, took {graphs} GiB
"""


def test_json_and_words(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(FOLDER / "vllm-31273.log")
    assert run(["explain", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cause"], found["engine"]) == ("weights", "vllm")
    assert found["evidence"][0]["source"] == "vllm-31273.log"
    assert run(["explain", path]) == 0
    assert "cause: weights" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["vllm-15598.log", "made-leak-3.brimrec.gz", "vllm-1765.log"])
def test_the_picture_is_xml(name: str, tmp_path: Path) -> None:
    assert run(["explain", str(FOLDER / name), "--svg", str(tmp_path / "x.svg")]) == 0
    assert ElementTree.fromstring((tmp_path / "x.svg").read_text(encoding="utf-8")).tag.endswith("svg")


def test_a_fix_with_its_price_checked_by_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(
        "vllm serve meta-llama/Llama-3.1-8B-Instruct --gpu-memory-utilization 0.98 --max-model-len 8192\n"
        + START.format(version="0.26", activation="1.10", kv="110.00", tokens="900,000", graphs="0.60").replace(
            "0.92", "0.98"
        )
        + "INFO Application startup complete\n"
        + "ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.20 GiB. GPU 0 has a total capacity of "
        "139.80 GiB of which 0.10 GiB is free. Including non-PyTorch memory, this process has 139.60 GiB memory in "
        "use. Of the allocated memory 138.00 GiB is allocated by PyTorch, and 20.00 MiB is reserved by PyTorch but "
        "unallocated.\n"
    )
    assert run(["explain", str(log), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cause"] == "large_step"
    by = {fix["checked_by"]: fix for fix in found["fixes"]}
    assert by["ledger"]["flag"] == "--gpu-memory-utilization"
    assert float(by["ledger"]["value"]) < 0.98
    assert by["ledger"]["kv_tokens_before"] == 900_000
    assert by["ledger"]["kv_tokens_after"] < 900_000
    assert by["plan"]["flag"] == "--kv-cache-memory-bytes"
    weights = next(row for row in found["ledger"] if row["name"] == "weights")
    assert abs(weights["difference_bytes"]) < 1 << 30


def test_two_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "a.log", tmp_path / "b.log"
    before.write_text(START.format(version="0.32", activation="1.10", kv="112.20", tokens="919,824", graphs="0.50"))
    after.write_text(START.format(version="0.33", activation="1.50", kv="109.70", tokens="846,238", graphs="2.60"))
    assert run(["explain", str(before), str(after), "--diff", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["words"] == "vllm 0.32 → vllm 0.33: 8.0 % fewer KV tokens: graphs +2.10 GiB, profile +409.6 MiB"
    assert run(["explain", str(before), "--diff"]) == 2
    assert run(["explain", str(before), str(FOLDER / "vllm-1765.log"), "--diff"]) == 2


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", str(tmp_path / "missing.log")]) == 2
    assert "missing.log" in capsys.readouterr().err
    assert run(["explain", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_one_file_that_cannot_be_read_beside_one_that_can(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", str(FOLDER / "limo-29.log"), str(tmp_path / "missing.log"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cause"] == "pool"
    assert any("missing.log" in line for line in found["unknown"])


# -- brim fit --against --------------------------------------------------------------------------------------------


def options(path: Path | None, allowed_drop: float = 2.0) -> argparse.Namespace:
    return argparse.Namespace(against=path, allowed_drop=allowed_drop)


def test_tokens_that_fell_are_exit_code_1(tmp_path: Path) -> None:
    report = tmp_path / "fit.json"
    report.write_text('{"kv_tokens": 1000}')
    earlier = read_earlier(options(report))
    assert [compared(tokens, earlier, options(report)) for tokens in (1200, 1000, 981, 980, 979)] == [0, 0, 0, 0, 1]
    assert compared(850, earlier, options(report, 20)) == 0
    assert read_earlier(options(None)) is None
    assert compared(1, None, options(None)) == 0


@pytest.mark.parametrize("text", ["", "[]", '{"kv_tokens": "many"}', '{"kv_tokens": 0}', "{}", '{"kv_tokens": true}'])
def test_reports_that_are_none_are_refused_before_anything_starts(tmp_path: Path, text: str) -> None:
    (tmp_path / "fit.json").write_text(text)
    with pytest.raises(InvalidRequest, match=r"against .*fit\.json"):
        read_earlier(options(tmp_path / "fit.json"))
    with pytest.raises(InvalidRequest, match="allowed-drop"):
        read_earlier(options(None, 100))
