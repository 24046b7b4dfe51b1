"""llama.cpp's own parser, as a published library has it, takes every command.

The parser would download what a hub id names, so models are given as files here; that the options for hub ids exist is
seen from the parser's complaint about a missing value.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tests.flags.commands import commands

library: Any = pytest.importorskip("xllamacpp", reason="make test-flags installs it")

_PARSE = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
_SERVER = 12  # of the programs that share the parser, which one: `llama_example` in common.h
_OBJECT_HEAD = object.__basicsize__  # a Python object begins with this; the C++ record follows
_HUB = {"--hf-repo": "--model", "--spec-draft-hf": "--spec-draft-model"}


def parse(args: tuple[str, ...]) -> Any:
    """The parsed parameters; None where the parser refuses."""
    function = getattr(ctypes.CDLL(library.xllamacpp.__file__), _PARSE)
    function.restype = ctypes.c_bool
    given = library.CommonParams()
    values = (ctypes.c_char_p * (len(args) + 1))(*[one.encode() for one in args], None)
    taken = function(len(args), values, ctypes.c_void_p(id(given) + _OBJECT_HEAD), _SERVER, None)
    return given if taken else None


@pytest.mark.parametrize("name", commands("llama.cpp"))
def test_llama_cpp_takes_the_command(name: str) -> None:
    command = commands("llama.cpp")[name]
    assert command.args[0] == "llama-server"
    given = parse(tuple(_HUB.get(one, one) for one in command.args))
    assert given is not None
    assert (given.n_ctx, given.n_parallel, given.n_ubatch) == (8 * 16384, 8, 2048)


def test_gguf_files_are_the_model_and_the_projector() -> None:
    given = parse(commands("llama.cpp")["a GGUF file with its projector"].args)
    assert given is not None
    assert given.model.path == "/models/big-Q4_K_M-00001-of-00003.gguf"
    assert given.mmproj.path == "/models/mmproj-F16.gguf"
    assert not given.no_mmproj
    without = parse(commands("llama.cpp")["a GGUF file without images"].args)
    assert without is not None
    assert without.no_mmproj
    quant = commands("llama.cpp")["a quant of a repository"].args
    assert quant[1:3] == ("--hf-repo", "org/name-GGUF:Q4_K_M")


def test_llama_cpp_places_layers_so() -> None:
    layers, experts = (commands("llama.cpp")[name].args for name in ("layers in host memory", "experts in host memory"))
    given = parse(tuple(_HUB.get(one, one) for one in layers))
    assert given.n_gpu_layers == 20
    assert parse(tuple(_HUB.get(one, one) for one in experts)) is not None
    assert experts[experts.index("--n-cpu-moe") + 1] == "12"


@pytest.mark.parametrize("name", _HUB)
def test_the_options_for_hub_ids_exist(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert parse(("llama-server", name)) is None
    assert "expected value for argument" in capfd.readouterr().err


def test_llama_cpp_refuses_what_it_does_not_know() -> None:
    assert parse(("llama-server", "--model", "a.gguf", "--draft-max", "4")) is None
    assert parse(("llama-server", "--model", "a.gguf", "--cache-type-k", "int7")) is None
