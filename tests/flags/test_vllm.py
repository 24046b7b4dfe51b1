"""vLLM's own argument classes take every command."""

from __future__ import annotations

import argparse
from typing import get_args

import pytest

import brim
from brim.planning.engines import ENGINES
from brim.planning.placement.adapters import RANKS
from tests.flags.commands import commands
from tests.flags.quickstart import flags, rows

pytest.importorskip("vllm", reason="make test-flags installs it")


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser(exit_on_error=False))


@pytest.mark.parametrize("name", commands("vllm"))
def test_vllm_takes_the_command(parser: argparse.ArgumentParser, name: str) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    command = commands("vllm")[name]
    assert command.args[:2] == ("vllm", "serve")
    parsed = parser.parse_args(command.args[2:])
    assert parsed.model_tag == command.args[2]
    given = AsyncEngineArgs.from_cli_args(parsed)
    assert given.kv_cache_memory_bytes == int(command.args[command.args.index("--kv-cache-memory-bytes") + 1])
    assert (given.max_model_len, given.max_num_seqs, given.max_num_batched_tokens) == (16384, 64, 2048)


def test_vllm_places_the_model_so(parser: argparse.ArgumentParser) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    def given(name: str) -> AsyncEngineArgs:
        return AsyncEngineArgs.from_cli_args(parser.parse_args(commands("vllm")[name].args[2:]))

    whole = given("stages of replicas")
    assert (whole.tensor_parallel_size, whole.pipeline_parallel_size, whole.data_parallel_size) == (2, 2, 2)
    assert whole.enable_expert_parallel
    adapters = given("adapters")
    assert (adapters.enable_lora, adapters.max_loras, adapters.max_lora_rank) == (True, 4, 64)
    assert given("host KV").kv_offloading_size == 96


def test_ranks_of_adapters_are_those_that_vllm_takes() -> None:
    from vllm.config.lora import MaxLoRARanks

    assert get_args(MaxLoRARanks) == RANKS


def test_vllm_has_the_flags_of_the_quick_start(parser: argparse.ArgumentParser) -> None:
    named = {flag for row in rows() for flag in flags(row[0])}
    assert sorted(named - set(parser._option_string_actions)) == []


def test_vllm_refuses_what_it_does_not_know(parser: argparse.ArgumentParser) -> None:
    with pytest.raises((SystemExit, argparse.ArgumentError)):
        parser.parse_args(["org/model", "--kv-cache-dtype", "int7"])


def test_the_bytes_are_the_blocks_of_the_plan() -> None:
    """By vLLM's own size of a block: those of the tokens that were asked for, and the one that is nobody's."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    plan = brim.plan("llama-3.1-8b", gpu="h200", engine="vllm", max_len=8192, kv_tokens=100_000, trace=False)
    given = int(plan.flags[plan.flags.index("--kv-cache-memory-bytes") + 1])
    layer = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype=torch.bfloat16)
    assert divmod(given, 32 * layer.page_size_bytes) == (100_000 // 16 + 1, 0)


def test_drafts_and_formats_have_names_that_vllm_knows() -> None:
    from vllm.config.speculative import SpeculativeMethod
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

    assert set(ENGINES["vllm"].drafts.values()) <= set(_flat(get_args(SpeculativeMethod)))
    assert set(ENGINES["vllm"].converts.values()) <= set(QUANTIZATION_METHODS)


def _flat(values: tuple[object, ...]) -> list[object]:
    """The values of a literal type made of literal types."""
    return [one for value in values for one in (_flat(get_args(value)) if get_args(value) else [value])]
