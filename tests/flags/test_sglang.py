"""SGLang's own server arguments take every command."""

from __future__ import annotations

import argparse
from importlib.util import find_spec

import pytest

from tests.flags.absent import standing_in_for
from tests.flags.commands import commands

pytestmark = pytest.mark.skipif(find_spec("sglang") is None, reason="make test-flags installs it")


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    with standing_in_for("triton", "IPython"):
        from sglang.srt.server_args import ServerArgs
    made = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(made)
    return made


@pytest.mark.parametrize("name", commands("sglang"))
def test_sglang_takes_the_command(parser: argparse.ArgumentParser, name: str) -> None:
    command = commands("sglang")[name]
    assert command.args[:3] == ("python", "-m", "sglang.launch_server")
    parsed = parser.parse_args(command.args[3:])
    assert (parsed.model_path, parsed.max_total_tokens) == ("Qwen/Qwen2.5-VL-7B-Instruct", 131072)
    assert (parsed.context_length, parsed.max_running_requests, parsed.chunked_prefill_size) == (16384, 64, 2048)


def test_sglang_refuses_what_it_does_not_know(parser: argparse.ArgumentParser) -> None:
    with pytest.raises((SystemExit, argparse.ArgumentError)):
        parser.parse_args(["--model-path", "org/model", "--kv-cache-dtype", "int7"])
