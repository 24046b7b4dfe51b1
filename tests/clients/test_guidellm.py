"""GuideLLM, a load generator: every request of a short benchmark is answered, at every endpoint that it drives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from brim.model.packaged import packaged_folder
from tests.clients.serving import KEY, MODEL

REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 6, 24, 6
COMMAND = "from guidellm.__main__ import cli; cli()"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_every_request_of_a_benchmark_is_answered(url: str, tmp_path: Path, path: str) -> None:
    written = tmp_path / "report.json"
    settings = {
        "--backend": {"kind": "openai_http", "target": url, "model": MODEL, "api_key": KEY, "request_format": path},
        "--profile": {"kind": "concurrent", "streams": 2},
        "--constraint": {"kind": "max_requests", "count": REQUESTS},
        "--data": {"kind": "synthetic_text", "prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS},
        "--tokenizer": {"kind": "hf_auto", "model": str(packaged_folder(MODEL))},
        "--output": {"kind": "json", "path": str(written)},
    }
    words = [part for option, values in settings.items() for part in (option, json.dumps(values))]
    command = [sys.executable, "-c", COMMAND, "run", *words, "--disable-console"]
    ran = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr[-2000:]
    (found,) = json.loads(written.read_text())["benchmarks"]
    assert found["metrics"]["request_totals"] == {
        "successful": REQUESTS,
        "errored": 0,
        "incomplete": 0,
        "total": REQUESTS,
    }
    assert {request["output_tokens"] for request in found["requests"]["successful"]} == {OUTPUT_TOKENS}
