"""Brim's own parser, and the config class of continuous batching in transformers."""

from __future__ import annotations

import argparse
from dataclasses import fields

import pytest

from brim.cli import serve
from tests.flags.commands import commands


@pytest.mark.parametrize("name", commands("brim"))
def test_brim_takes_the_command(name: str) -> None:
    command = commands("brim")[name]
    assert command.args[:2] == ("brim", "serve")
    parser = argparse.ArgumentParser(exit_on_error=False)
    serve.add_command(parser.add_subparsers())
    parsed = parser.parse_args(command.args[1:])
    assert (parsed.kv_tokens, parsed.max_seqs, parsed.batch_tokens) == ("131072", 64, "2048")


@pytest.mark.parametrize("name", commands("transformers"))
def test_transformers_has_the_fields(name: str) -> None:
    config = pytest.importorskip("transformers").generation.configuration_utils.ContinuousBatchingConfig
    for_model = {"pretrained_model_name_or_path", "quantization_config", "dtype", "tp_plan", "tp_size"}
    given = {one.partition("=")[0] for one in commands("transformers")[name].args} - for_model
    known = {field.name for field in fields(config)}
    if "page_size" not in known:  # transformers 5.17 calls it block_size, which later versions still take
        given = {"block_size" if one == "page_size" else one for one in given}
    assert given <= known
    assert {"num_blocks", "max_batch_tokens"} <= given
