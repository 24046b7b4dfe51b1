"""`brim fit --engine vllm`: what the fit proves inside vLLM, as a flag for stock vLLM."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from brim.cli.interpreter import module_command
from brim.errors import DeviceError, InvalidRequest
from brim.units import format_bytes, parse_count
from brim.vllm.settings import SWITCH

_DECISIVE = ("dtype", "max_model_len", "max_num_batched_tokens", "max_num_seqs", "tensor_parallel_size")
_DTYPES = {"auto": "auto", "bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def run_vllm(options: argparse.Namespace) -> int:
    """Start vLLM with Brim's worker, and print the size that it has proven."""
    if importlib.util.find_spec("vllm") is None:
        raise InvalidRequest("vLLM is not installed; install it with pip install 'brim[vllm]'")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "fit.json"
        given = llm_arguments(options)
        command = module_command("brim.vllm.stock.advice", str(file), json.dumps(given))
        environment = {name: value for name, value in os.environ.items() if name != SWITCH}
        ended = subprocess.run(command, env=environment, stdout=sys.stderr, check=False)
        if ended.returncode:
            raise DeviceError(f"vLLM ended with code {ended.returncode}; see its log above")
        report = json.loads(file.read_text(encoding="utf-8"))
    print(json.dumps(report, indent=2) if options.as_json else advice(given, report))
    return 0


def advice(given: dict[str, Any], report: dict[str, Any]) -> str:
    """The size in words, and as a command with the settings under which it was proven."""
    size = report["kv_cache_memory_bytes"]
    flags = {name: given[name] for name in _DECISIVE if name in given} | {"kv_cache_memory_bytes": size}
    allocator = "PYTORCH_ALLOC_CONF=expandable_segments:True " if report["growing_segments"] else ""
    words = [f"--{name.replace('_', '-')} {value}" for name, value in flags.items()]
    return (
        f"{report['kv_tokens']:,} KV tokens proven inside vLLM ({format_bytes(size)})\n"
        f"{allocator}vllm serve {given['model']} {' '.join(words)}"
    )


def llm_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """The options of `brim fit` as arguments of vLLM and settings of Brim's worker."""
    if options.kv_dtype != "auto" or options.speculate or options.draft:
        raise InvalidRequest(
            "kv-dtype and speculation are not passed on to vLLM; use brim vllm serve with its own flags"
        )
    settings: dict[str, Any] = {
        "canary": options.canary,
        "memory_fraction": options.memory_fraction,
        "score_in_pieces": False,  # the size is for stock vLLM
    }
    given = {"keep_free": options.keep_free, "budget": options.memory, "store": False if options.no_store else None}
    settings |= {name: value for name, value in given.items() if value is not None}
    wanted: dict[str, Any] = {
        "model": options.model,
        "load_format": options.load_format,
        "dtype": _DTYPES[options.dtype],
        "max_num_seqs": options.max_seqs,
        "max_num_batched_tokens": parse_count(options.batch_tokens, "batch-tokens"),
        "tensor_parallel_size": options.tp,
        "additional_config": {"brim": settings},
    }
    if options.max_len is not None:
        wanted["max_model_len"] = parse_count(options.max_len, "max-len")
    if options.load_format == "dummy":
        wanted["skip_tokenizer_init"] = True
    return wanted
