"""A server's command line is read by the whole parser of vLLM's own command."""

from __future__ import annotations

import argparse
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from brim.vllm.stock.serve_arguments import serve_arguments


class Parser(argparse.ArgumentParser):
    """As vLLM's: what it does to the words first, it does in `parse_args` alone."""

    def parse_args(self, words: Any = None, namespace: Any = None) -> Any:
        return super().parse_args([word.replace("_", "-") for word in words], namespace)


class Serve:
    """vLLM's command, with flags of the engine and of the server."""

    def subparser_init(self, commands: Any) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = commands.add_parser("serve")
        parser.add_argument("model_tag", nargs="?")
        parser.add_argument("--port", type=int)
        group = parser.add_argument_group("engine")
        group.add_argument("--model", default="a/default")
        group.add_argument("--max-model-len", type=int)
        group.add_argument("--gpu-memory-utilization", type=float, default=0.92)
        return parser


class EngineArguments(SimpleNamespace):
    @classmethod
    def from_cli_args(cls, parsed: argparse.Namespace) -> EngineArguments:
        return cls(**{name: getattr(parsed, name) for name in ("model", "max_model_len", "gpu_memory_utilization")})


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {
        "vllm": {"AsyncEngineArgs": EngineArguments},
        "vllm.entrypoints": {},
        "vllm.entrypoints.cli": {},
        "vllm.entrypoints.cli.serve": {"ServeSubcommand": Serve},
        "vllm.utils": {},
        "vllm.utils.argparse_utils": {"FlexibleArgumentParser": Parser},
    }
    for name, content in parts.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)


def test_flags_of_the_server_are_no_model() -> None:
    found = serve_arguments(["--port", "8001", "some/model", "--max_model_len", "512"])
    assert found.engine == EngineArguments(model="some/model", max_model_len=512, gpu_memory_utilization=0.92)
    assert not found.utilization_given


def test_a_utilization_counts_as_given_also_at_its_default() -> None:
    found = serve_arguments(["--gpu-memory-utilization", "0.92"])
    assert found.engine == EngineArguments(model="a/default", max_model_len=None, gpu_memory_utilization=0.92)
    assert found.utilization_given
