"""`brim vllm`: vLLM's own commands, with Brim's worker and scheduler in them."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn

from brim.cli.interpreter import module_command
from brim.errors import DeviceError, InvalidRequest
from brim.install import install_command
from brim.suggest import shown
from brim.vllm import SCHEDULER, WORKER
from brim.vllm.command import is_written, written_flags

if TYPE_CHECKING:
    from brim.cli.options import Commands

_WORKER_FLAG, _SCHEDULER_FLAG, _CONFIG_FLAG = "--worker-cls", "--scheduler-cls", "--additional-config"
_UTILIZATION_FLAGS = ("--gpu-memory-utilization", "--device-memory-utilization")


def add_command(commands: Commands) -> None:
    parser = commands.add_parser(
        "vllm",
        help="serve a model with vLLM, its KV cache sized and proven by Brim",
        description="vLLM's own command with Brim's worker and scheduler in it: `brim vllm serve MODEL …` takes every "
        "flag of `vllm serve` and becomes that process. Settings of Brim: "
        '--additional-config \'{"brim": {"canary": "512MiB"}}\'. Stock vLLM: BRIM=off.',
        usage="brim vllm serve MODEL [flags of vllm serve]",
    )
    parser.set_defaults(run=run)
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="serve MODEL …", help="as for vllm itself")


def run(options: argparse.Namespace) -> NoReturn:
    words = list(options.words)
    if words[:1] != ["serve"]:
        said = f"'{shown(words[0])}' is no command of brim vllm" if words else "the command is missing"
        raise InvalidRequest(f"{said}; write brim vllm serve MODEL")
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        raise InvalidRequest(f"vLLM is not installed; install it with {install_command('vllm')}")
    _become(_sized(words, Path(found.origin).parent), vllm_environment(words))


def _sized(words: list[str], folder: Path) -> list[str]:
    """What vLLM is started with: Brim's worker, or a measured size where a version lacks what that needs."""
    from brim.vllm.names import Where, in_words, missing_names
    from brim.vllm.settings import read_settings

    if not read_settings(_written_config(words), os.environ).enabled:
        return words
    lacks = missing_names(folder, Where.EVERYWHERE)
    if not lacks:
        return rescued_words(vllm_words(words), folder)
    print(f"brim vllm: this vLLM lacks {in_words(lacks)}: it is sized by two starts", file=sys.stderr)
    return _sized_by_two_starts(words)


def _sized_by_two_starts(words: list[str]) -> list[str]:
    """The command of stock vLLM with the exact size, which a first start has measured if there is anything to size."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "size.json"
        ended = subprocess.run(module_command("brim.vllm.stock.two_starts", str(file), *words[1:]), check=False)
        if ended.returncode:
            raise DeviceError(f"the first start of vLLM ended with code {ended.returncode}; see its log above")
        measured = json.loads(file.read_text(encoding="utf-8"))
    if measured["kv_cache_memory_bytes"] is None:
        print(f"brim vllm: stock vLLM as it was asked for: {measured['why']}", file=sys.stderr)
        return words
    return [*words, "--kv-cache-memory-bytes", str(measured["kv_cache_memory_bytes"])]


def vllm_words(words: list[str]) -> list[str]:
    """The same command with Brim's worker."""
    if is_written((_WORKER_FLAG,), words):
        raise InvalidRequest(
            f"--worker-cls is given, and brim vllm sets it to {WORKER}; leave it out, or run vllm serve"
        )
    return [*words, _WORKER_FLAG, WORKER]


def rescued_words(words: list[str], folder: Path) -> list[str]:
    """The same command with Brim's scheduler, which rescues steps; not where another one is given."""
    from brim.vllm.names import RESCUE_NAMES, Where, in_words, missing_names

    lacks = missing_names(folder, Where.EVERYWHERE, RESCUE_NAMES)
    if is_written((_SCHEDULER_FLAG,), words):
        print("brim vllm: --scheduler-cls is given: steps that run out of memory are not rescued", file=sys.stderr)
    elif lacks:
        print(f"brim vllm: this vLLM lacks {in_words(lacks)}: steps are not rescued", file=sys.stderr)
    else:
        return [*words, _SCHEDULER_FLAG, SCHEDULER]
    return words


def vllm_environment(words: list[str]) -> dict[str, str]:
    """The environment of vLLM. A utilization that was written is a cap, also if it is vLLM's default."""
    from brim.vllm.settings import UTILIZATION

    given = {UTILIZATION: "1"} if is_written(_UTILIZATION_FLAGS, words) else {}
    return {**os.environ, **given}


def _written_config(words: list[str]) -> dict[str, Any]:
    """The additional config that is written as JSON, to name what is wrong in it before anything starts.

    Dotted flags replace it, as in vLLM, and are left to the worker: it is given what vLLM's own parser made of them.
    """
    flags = written_flags(words)
    written = flags.get(_CONFIG_FLAG, "{}")
    if any(flag.startswith(f"{_CONFIG_FLAG}.") for flag in flags):
        return {}
    try:
        config = json.loads(written)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise InvalidRequest(f"--additional-config '{shown(written)}' is no JSON object; write '{{\"brim\": {{…}}}}'")
    return config


def _become(words: list[str], environment: dict[str, str]) -> NoReturn:
    """Replace this process: vLLM has its pid, its signals and its exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, module_command("vllm.entrypoints.cli.main", *words), environment)
