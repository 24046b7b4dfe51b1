"""`llm`, the command line tool: a model of its configuration file that Brim serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.clients.serving import ADA, ADA_ANSWER, KEY, MODEL


def test_a_prompt(url: str, tmp_path: Path) -> None:
    written = f"- model_id: brim\n  model_name: {MODEL}\n  api_base: {url}/v1\n  api_key_name: brim\n"
    (tmp_path / "extra-openai-models.yaml").write_text(written)
    (tmp_path / "keys.json").write_text(json.dumps({"brim": KEY}))
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
    for streamed in ([], ["--no-stream"]):
        command = [sys.executable, "-m", "llm", "-m", "brim", "-o", "temperature", "0", *streamed, ADA]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert (ran.returncode, ran.stdout.strip()) == (0, ADA_ANSWER), ran.stderr
