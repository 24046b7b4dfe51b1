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
    inside = parsed.dp_size if parsed.enable_dp_attention else 1
    limits = (parsed.max_running_requests // inside, parsed.chunked_prefill_size // inside)
    assert (parsed.context_length, *limits) == (16384, 64, 2048)


def test_sglang_places_the_model_so(parser: argparse.ArgumentParser) -> None:
    def given(name: str) -> argparse.Namespace:
        return parser.parse_args(commands("sglang")[name].args[3:])

    whole = given("stages of replicas")
    assert (whole.tp_size, whole.pp_size, whole.dp_size, whole.ep_size) == (4, 2, 2, 4)
    assert whole.enable_dp_attention
    assert (given("replicas").tp_size, given("replicas").dp_size, given("replicas").enable_dp_attention) == (
        2,
        3,
        False,
    )
    assert (given("host KV").enable_hierarchical_cache, given("host KV").hicache_size) == (True, 51)


def test_sglang_refuses_what_it_does_not_know(parser: argparse.ArgumentParser) -> None:
    with pytest.raises((SystemExit, argparse.ArgumentError)):
        parser.parse_args(["--model-path", "org/model", "--kv-cache-dtype", "int7"])
