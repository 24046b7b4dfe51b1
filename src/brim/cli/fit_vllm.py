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

from brim.cli.engine_options import read_place
from brim.cli.interpreter import module_command
from brim.cli.neighbours.options import read_neighbours
from brim.errors import DeviceError, InvalidRequest
from brim.install import install_command
from brim.units import format_bytes, parse_count
from brim.vllm.settings import SWITCH

_DECISIVE = (
    "dtype",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "tensor_parallel_size",
    "device_ids",
    "enforce_eager",
)
_DTYPES = {"auto": "auto", "bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_TO_VLLM = {"model", "load_format", "dtype", "max_len", "max_seqs", "batch_tokens", "tp", "device", "no_graphs"}
_TO_WORKER = {"memory", "memory_fraction", "canary", "keep_free", "no_store"}
_TO_LEASES = {"share", "expect_neighbours", "wait_neighbours"}
_READ_HERE = {"command", "run", "engine", "as_json", "quiet", "against", "allowed_drop"}
PASSED_ON = frozenset(_TO_VLLM | _TO_WORKER | _TO_LEASES | _READ_HERE)
_OWN_FLAG = "give vLLM's own {} to brim vllm serve"
_REMEDIES = {
    "kv_tokens": "a size is validated by brim vllm serve --kv-cache-memory-bytes",
    "kv_dtype": _OWN_FLAG.format("--kv-cache-dtype"),
    "image_pixels": _OWN_FLAG.format("--mm-processor-kwargs"),
    "resize_images": _OWN_FLAG.format("--mm-processor-kwargs"),
    "audio_seconds": _OWN_FLAG.format("--limit-mm-per-prompt"),
    "compile": "vLLM compiles by itself; leave it out",
    **dict.fromkeys(
        ("speculate", "draft", "draft_tokens", "speculate_max_batch", "speculate_max_weight"),
        _OWN_FLAG.format("--speculative-config"),
    ),
}


def run_vllm(options: argparse.Namespace) -> int:
    """Start vLLM with Brim's worker, and print the size that it has proven; its KV tokens."""
    check_installed()
    given = llm_arguments(options)
    wanted = (read_place(options.device).device or "auto").partition(":")[0]
    report = proven_report(given, wanted, quiet=options.quiet)
    print(json.dumps(report, indent=2) if options.as_json else advice(given, report))
    return int(report["kv_tokens"])


def check_installed() -> None:
    if importlib.util.find_spec("vllm") is None:
        raise InvalidRequest(f"vLLM is not installed; install it with {install_command('vllm')}")


def proven_report(given: dict[str, Any], wanted: str, *, quiet: bool) -> dict[str, Any]:
    """What the fit inside vLLM reports, started with these arguments of `vllm.LLM` in a process of its own."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "fit.json"
        command = module_command("brim.vllm.stock.advice", str(file), json.dumps(given), wanted)
        ended = subprocess.run(command, env=_environment(quiet), stdout=sys.stderr, check=False)
        if ended.returncode:
            raise DeviceError(f"vLLM ended with code {ended.returncode}; see its log above")
        report: dict[str, Any] | None = json.loads(file.read_text(encoding="utf-8"))
    if report is None:
        raise InvalidRequest("nothing was sized: this is stock vLLM, for the reason in its log above")
    return report


def _environment(quiet: bool) -> dict[str, str]:
    """Brim's worker is wanted, whatever the environment says; quiet: vLLM logs what is wrong only."""
    kept = {name: value for name, value in os.environ.items() if name != SWITCH}
    return {**kept, "VLLM_LOGGING_LEVEL": "WARNING"} if quiet else kept


def advice(given: dict[str, Any], report: dict[str, Any]) -> str:
    """The size in words, and as a command with the settings under which it was proven."""
    size = report["kv_cache_memory_bytes"]
    flags = {name: given[name] for name in _DECISIVE if name in given} | {"kv_cache_memory_bytes": size}
    allocator = "PYTORCH_ALLOC_CONF=expandable_segments:True " if report["growing_segments"] else ""
    words = [_flag(name, value) for name, value in flags.items()]
    return (
        f"{report['kv_tokens']:,} KV tokens proven inside vLLM ({format_bytes(size)})\n"
        f"{allocator}vllm serve {given['model']} {' '.join(words)}"
    )


def _flag(name: str, value: Any) -> str:
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        return flag
    return f"{flag} {','.join(map(str, value)) if isinstance(value, list) else value}"


def llm_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """The options of `brim fit` as arguments of vLLM and settings of Brim's worker; what neither has is refused."""
    _check_passed_on(options)
    wanted: dict[str, Any] = {
        "model": options.model,
        "load_format": options.load_format,
        "dtype": _DTYPES[options.dtype],
        "max_num_seqs": options.max_seqs,
        "max_num_batched_tokens": parse_count(options.batch_tokens, "batch-tokens"),
        "tensor_parallel_size": options.tp,
        "additional_config": {"brim": worker_settings(options)},
    }
    device = read_place(options.device).device
    if options.max_len is not None:
        wanted["max_model_len"] = parse_count(options.max_len, "max-len")
    if options.load_format == "dummy":
        wanted["skip_tokenizer_init"] = True
    if options.no_graphs:
        wanted["enforce_eager"] = True
    if device not in (None, "cpu"):
        if options.tp > 1:
            raise InvalidRequest(f"device is {device}, and tp {options.tp}; choose GPUs by CUDA_VISIBLE_DEVICES")
        wanted["device_ids"] = [int(device.partition(":")[2])]
    return wanted


def worker_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The options that are settings of Brim's worker."""
    place = read_place(options.device)
    if options.memory is not None and place.budget_bytes is not None:
        raise InvalidRequest("memory and device both give a budget; give it once, such as --memory 1GiB")
    seconds, expected, share = read_neighbours(options)
    given = {
        "keep_free": options.keep_free,
        "budget": place.budget_bytes if options.memory is None else options.memory,
        "budget_name": place.budget_name,
        "store": False if options.no_store else None,
        "share": share.fraction if share.bytes is None else f"{share.bytes}B",
        "expect_neighbours": list(expected.roles) or expected.count or None,
        "wait_neighbours": None if options.wait_neighbours is None else seconds,
    }
    return {
        "canary": options.canary,
        "memory_fraction": options.memory_fraction,
        "score_in_pieces": False,  # the size is for stock vLLM
        **{name: value for name, value in given.items() if value is not None},
    }


def _check_passed_on(options: argparse.Namespace) -> None:
    """Refuse what was given and would have no effect."""
    from brim.cli.main import make_parser

    defaults = vars(make_parser("fit").parse_args(["fit"]))
    for name, value in vars(options).items():
        if name not in PASSED_ON and value != defaults[name]:
            remedy = _REMEDIES.get(name, "vLLM has nothing like it; leave it out")
            raise InvalidRequest(f"{name.replace('_', '-')} is not passed on to vLLM; {remedy}")
