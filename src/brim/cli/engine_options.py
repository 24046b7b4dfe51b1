"""The options of an engine, for every command that runs one."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.cli.options import add_synonyms
from brim.engine.weights.builtin import BUILTIN_NAME
from brim.errors import InputError, InvalidRequest
from brim.model.catalogue import find_entry
from brim.model.packaged import packaged_folder
from brim.model.source import is_hub_id, load_config, load_model
from brim.model.transformers_classes import check_libraries
from brim.planning.gpus.text import CpuBudget, OwnGpus, read_device
from brim.records.progress import Progress
from brim.suggest import shown
from brim.units import GIB, ceil_div, format_bytes, parse_bytes, parse_count, parse_pixels

if TYPE_CHECKING:
    from brim.engine.encoders.pool import Encoders
    from brim.engine.engine import Engine
    from brim.engine.settings import EngineSettings
    from brim.probes.cpu import CpuProbe

DEFAULT_MODEL = "brim-tiny"
_DRAFT_TOKENS = 7


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        default=DEFAULT_MODEL,
        help="a directory with weights, or org/name of the Hugging Face hub, which is downloaded once; any model with "
        "--load-format dummy; brim-tiny, in the package, by default",
    )


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    engine = parser.add_argument_group("engine")
    engine.add_argument("--load-format", default="auto", choices=("auto", "dummy"), help="dummy: random weights")
    engine.add_argument("--dtype", default="auto", choices=("auto", "bf16", "fp16", "fp32"), help="type of the weights")
    engine.add_argument(
        "--kv-dtype",
        default="auto",
        choices=("auto", "bf16", "fp16", "fp32", "fp8"),
        help="type of the KV cache (auto: as the model)",
    )
    engine.add_argument("--max-len", metavar="N", help="most tokens of a request (default: the model's context)")
    engine.add_argument("--max-seqs", type=int, default=64, metavar="N", help="largest batch, in requests (64)")
    engine.add_argument(
        "--batch-tokens", default="2048", metavar="N", help="most tokens of a step (2048; to serve on the CPU 512)"
    )
    engine.add_argument("--image-pixels", metavar="PIXELS", help="largest image allowed: 1003520 or 1280x784")
    engine.add_argument("--audio-seconds", metavar="S", help="longest audio allowed")
    engine.add_argument(
        "--resize-images", action="store_true", help="make larger ones smaller instead of refusing them"
    )
    engine.add_argument(
        "--device", metavar="NAME", help="cpu, cpu:4GiB (a budget), cuda, cuda:1 or 1 (auto: a GPU if there is one)"
    )
    engine.add_argument(
        "--tp", type=int, default=1, metavar="N", help="tensor parallelism: one of N ranks, started by torchrun"
    )
    engine.add_argument("--compile", action="store_true", help="compile the decoder: slower start, faster steps")
    engine.add_argument("--no-graphs", action="store_true", help="do not capture CUDA graphs of decode steps")
    engine.add_argument(
        "--admission",
        default="expected",
        choices=("expected", "worst"),
        help="requests start if answers as long as usual fit (expected), or the longest allowed: no preemption (worst)",
    )
    engine.add_argument(
        "--host-memory",
        metavar="SIZE",
        help="host memory for preempted requests, 0 for none (a quarter of what is available, 4GiB at most)",
    )
    engine.add_argument(
        "--scoring-memory",
        default="64MiB",
        metavar="SIZE",
        help="most memory that log-probabilities of prompts take while they are computed (64MiB)",
    )
    add_synonyms(parser, "--max-len", "--max-seqs", "--batch-tokens", "--tp", "--kv-dtype")
    _add_encoders(parser)
    engine.add_argument("--quiet", action="store_true", help="no progress on standard error")
    _add_speculation(parser)


def _add_encoders(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("encoders", "What makes features of images: the engine itself, or processes.")
    group.add_argument(
        "--encoder",
        default="auto",
        choices=("auto", "inline", "process"),
        help="media are encoded in the engine's own steps (inline), or in a process beside it (auto: a process for "
        "serve and fit on a GPU)",
    )
    group.add_argument(
        "--encoder-batch", type=int, default=1, metavar="N", help="largest images in one call of an encoder (1)"
    )
    group.add_argument(
        "--encoder-reserve",
        metavar="SIZE",
        help="the most that an encoder's process holds; images are limited to what fits (what its worst batch takes)",
    )
    group.add_argument(
        "--encoder-gpus", metavar="GPUS", help="where encoders run: 1,2, or budgets such as cpu:a:1GiB (the engine's)"
    )
    group.add_argument(
        "--feature-cache", metavar="SIZE", help="memory for features of images (those of a full batch, 512MiB at most)"
    )


def _add_speculation(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("speculation", "Draft tokens and verify them in one step: the same text, faster.")
    group.add_argument(
        "--speculate", choices=("lookup",), help="lookup: tokens that followed the same ones earlier in the text"
    )
    group.add_argument("--draft", metavar="MODEL", help="a smaller model of the same vocabulary that drafts")
    group.add_argument("--draft-tokens", type=int, metavar="N", help=f"most tokens of a draft ({_DRAFT_TOKENS})")
    group.add_argument(
        "--speculate-max-batch", type=int, default=16, metavar="N", help="not while more requests run (16)"
    )
    group.add_argument(
        "--speculate-max-weight",
        type=float,
        default=0.75,
        metavar="X",
        help="not while the running requests will hold more than this part of the KV pool (0.75)",
    )


def check_weights(options: argparse.Namespace) -> None:
    """Refuse names that stand for dimensions alone: what runs a model needs its weights."""
    for option, model in (("", options.model), ("draft: ", options.draft)):
        if model is not None and options.load_format != "dummy":
            _check_weights(option, model)


def _check_weights(option: str, model: str) -> None:
    from brim.model.weights import weight_bytes

    if is_in_package(model) or Path(model).expanduser().exists() or is_hub_id(model):
        return
    entry = find_entry(model)
    if entry is None:
        load_config(model)  # says what may have been meant
    size = format_bytes(weight_bytes(load_model(model)).total_bytes)
    hub_id = entry.hub_id if entry else "org/name"
    raise InvalidRequest(
        f"{option}'{shown(model)}' is a name of the catalogue, which has no weights; write {hub_id} to download them "
        f"({size}, once), give a directory that has them (hf download {hub_id} --local-dir DIR), or run it with random "
        f"ones: --load-format dummy. What it takes, without weights: brim plan {shown(model)}"
    )


def is_in_package(model: str) -> bool:
    return model == BUILTIN_NAME or packaged_folder(model) is not None


def needs_budget(model: str, *, asked_for_cpu: bool) -> InvalidRequest:
    """The CPU is where the model would run, and nothing says how much of its memory: an error with a size that does."""
    from brim.model.weights import weight_bytes

    why = "the CPU needs a budget" if asked_for_cpu else "torch sees no GPU, and the CPU needs a budget"
    try:
        weights = 0 if is_in_package(model) else weight_bytes(load_model(model)).total_bytes
    except InputError:  # loading it says why, once there is a budget
        weights = 0
    held = f", which holds the {format_bytes(weights)} of its weights" if weights else ""
    size = ceil_div(weights * 5, GIB * 4) + 1 if weights else 1
    plan = "" if asked_for_cpu else f"; without a GPU, plan for one: brim plan {shown(model)} --gpu h100"
    return InvalidRequest(f"memory is not set; {why}, such as --memory {size}GiB{held}{plan}")


def engine_settings(options: argparse.Namespace) -> EngineSettings:
    from brim.engine.settings import INLINE, EngineSettings

    return EngineSettings(
        max_batch=options.max_seqs,
        max_batch_tokens=parse_count(options.batch_tokens, "batch-tokens"),
        max_length=parse_count(options.max_len, "max-len") if options.max_len else None,
        kv_dtype=options.kv_dtype,
        compile=options.compile,
        graphs=not options.no_graphs,
        max_image_pixels=parse_pixels(options.image_pixels, "image-pixels") if options.image_pixels else None,
        resize_images=options.resize_images,
        encoder=INLINE if options.encoder == "auto" else options.encoder,
        encoder_batch=options.encoder_batch,
        encoder_reserve=_size(options.encoder_reserve, "encoder-reserve"),
        feature_cache=_size(options.feature_cache, "feature-cache"),
        max_audio_seconds=parse_count(options.audio_seconds, "audio-seconds") if options.audio_seconds else None,
        admission=options.admission,
        scoring_memory=parse_bytes(options.scoring_memory, "scoring-memory"),
        host_memory=_size(options.host_memory, "host-memory"),
        speculate=options.speculate,
        draft_tokens=_draft_tokens(options),
        speculate_max_batch=options.speculate_max_batch,
        speculate_max_weight=options.speculate_max_weight,
    )


def _draft_tokens(options: argparse.Namespace) -> int:
    if options.draft_tokens is None:
        return _DRAFT_TOKENS
    if options.draft is None and options.speculate is None:
        raise InvalidRequest(
            "draft-tokens is given and nothing drafts; name a model with --draft, or --speculate lookup"
        )
    return int(options.draft_tokens)


def _size(written: str | None, what: str) -> int | None:
    return parse_bytes(written, what) if written else None


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """Where an engine runs: a device as torch writes it (None: a GPU if there is one), and a budget on the CPU."""

    device: str | None
    budget_bytes: int | None = None
    budget_name: str | None = None  # by which other processes share it


def read_place(text: str | None) -> EnginePlace:
    """The place of an engine, written like a device of a plan; None is auto."""
    written = "auto" if text is None else shown(text)
    wanted = read_device(written, "device")
    if isinstance(wanted, CpuBudget):
        return EnginePlace("cpu", wanted.bytes, None if wanted.name == "cpu" else wanted.name)
    if wanted == OwnGpus(None):
        return EnginePlace(None)
    if isinstance(wanted, OwnGpus) and wanted.indices and len(wanted.indices) == 1:
        return EnginePlace(f"cuda:{wanted.indices[0]}")
    if isinstance(wanted, OwnGpus):
        raise InvalidRequest(
            f"device '{written}' is several, and a process runs on one; start a rank for each with torchrun and --tp"
        )
    raise InvalidRequest(f"device '{written}' is not one of this machine; write cpu, cpu:4GiB, cuda or cuda:1")


def cpu_budget(budget_bytes: int) -> CpuProbe:
    """A budget on the CPU that refuses what is beyond it. After a fit, serving relies on what that has proven."""
    from brim.probes.cpu import CpuProbe

    return CpuProbe(budget_bytes, counts_serving=False)


def make_engine(
    options: argparse.Namespace,
    *,
    kv_tokens: int | None,
    probe: Any = None,
    progress: Progress = None,
    encoders: Encoders | None = None,
) -> Engine:
    """The engine that the options describe; `kv_tokens` of 0 leaves it loaded and not built.

    `encoders` were started before it; None: the engine starts them where its settings say so.
    """
    check_weights(options)
    _check_ranks(options.tp)
    with _importing():
        check_libraries()
        import transformers.modeling_utils  # noqa: F401

        from brim.engine.engine import Engine
    settings = engine_settings(options)
    place = read_place(options.device)
    if probe is None and place.budget_bytes is not None:
        probe = cpu_budget(place.budget_bytes)
    return Engine(
        options.model,
        draft=options.draft,
        kv_tokens=kv_tokens,
        settings=settings,
        load_format=options.load_format,
        dtype=options.dtype,
        device=place.device,
        tensor_parallel=options.tp > 1,
        encoders=encoders,
        probe=probe,
        progress=False if options.quiet and not callable(progress) else progress,
    )


@contextmanager
def _importing() -> Iterator[None]:
    """Modules are no garbage: they are not searched for it while they are imported (a fifth of the time), nor later.

    Only the first time: a later freeze would keep what an earlier engine has left behind.
    """
    if "torch" in sys.modules:
        yield
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def _check_ranks(ranks: int) -> None:
    started = os.environ.get("WORLD_SIZE", "1")
    if ranks < 1:
        raise InvalidRequest(f"tp is {ranks}; it must be at least 1")
    if str(ranks) != started:
        raise InvalidRequest(
            f"tp is {ranks} and {started} ranks were started; use torchrun --nproc-per-node {ranks} -m brim.cli.main …"
        )


@contextmanager
def serving(engine: Engine) -> Iterator[Engine]:
    """The engine until its command is done. Only rank 0 prints, and shows the engine's warnings at the end."""
    first = engine.ranks is None or engine.ranks.rank == 0
    with engine, nullcontext() if first else redirect_stdout(StringIO()):
        yield engine
        for warning in engine.warnings if first else ():
            print(f"note: {warning}", file=sys.stderr)


@contextmanager
def bar(what: str, wanted: bool = True) -> Iterator[Callable[..., None]]:
    """A progress bar on standard error: call it with done, total and, if that changes, the description."""
    if not wanted or not sys.stderr.isatty():
        yield lambda done, total, what=None: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total, what=None: shown.update(task, completed=done, total=total, description=what)
