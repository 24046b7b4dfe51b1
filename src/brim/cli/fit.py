"""`brim fit`: the KV cache sized by measurement, and proven."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.cli.engine_options import (
    EnginePlace,
    add_engine_options,
    add_model,
    check_weights,
    cpu_budget,
    make_engine,
    needs_budget,
    read_place,
    serving,
)
from brim.cli.fit_against import compared, read_earlier
from brim.cli.neighbours.encoders import encoders_beside
from brim.cli.neighbours.options import add_neighbour_options, decide_part, part_of_device
from brim.cli.options import add_json
from brim.cli.pooling_options import add_task_options, find_pooling_task, fit_pooling, make_pooling_engine
from brim.errors import InvalidRequest, first_line
from brim.fit.scaling.given import check_given, check_margin, check_mode, parse_scaling
from brim.folders import fits_folder
from brim.model.transformers_classes import check_libraries
from brim.records.progress import Progress, silent
from brim.suggest import shown
from brim.units import parse_bytes, parse_count

if TYPE_CHECKING:
    from brim.cli.options import Commands
    from brim.engine.engine import Engine
    from brim.engine.pooling.engine import PoolingEngine
    from brim.model.tasks import ModelTask
    from brim.ports import MemoryProbe
    from brim.probes.cpu import CpuProbe
    from brim.records.fit import FitReport
    from brim.records.scaling import Scaling
    from brim.reserve.sizing import Sizer


def add_command(commands: Commands) -> None:
    parser = commands.add_parser(
        "fit",
        help="size the KV cache by measurement, and prove it",
        description="Load a model, measure the peak memory of its worst steps, give the rest of the device to the KV "
        "cache, and prove that size by running the worst steps again. On the CPU, --memory is the budget.",
    )
    parser.set_defaults(run=run)
    add_model(parser)
    parser.add_argument("--memory", metavar="SIZE", help="on the CPU: the memory budget, such as 1GiB")
    parser.add_argument("--kv-tokens", metavar="N", help="validate exactly this size, without a search")
    parser.add_argument(
        "--engine", default="brim", choices=("brim", "vllm"), help="vllm: prove a size for vLLM, and print its flag"
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="an earlier report (--json): exit code 1 where KV tokens fell",
    )
    parser.add_argument(
        "--allowed-drop",
        type=float,
        default=2.0,
        metavar="PERCENT",
        help="for --against: so much less is no fall (2)",
    )
    add_task_options(parser)
    add_fit_options(parser)
    add_neighbour_options(parser)
    add_engine_options(parser)
    add_json(parser)


def add_fit_options(parser: argparse.ArgumentParser) -> None:
    """How a size is found, for every command that fits an engine."""
    parser.add_argument(
        "--memory-fraction", type=float, default=1.0, metavar="F", help="fraction of the remaining memory for KV (1.0)"
    )
    parser.add_argument("--canary", default="256MiB", metavar="SIZE", help="safety margin (256MiB)")
    parser.add_argument(
        "--keep-free",
        metavar="SIZE",
        help="memory left free for other processes, in addition to the canary "
        "(0; 512MiB on a card that drives a display, a tenth of the card under WSL)",
    )
    parser.add_argument(
        "--scaling",
        default="auto",
        metavar="MODE",
        help="how the memory of steps scales: auto (learned from a few steps), manual (--scaling-coefficients) or off",
    )
    parser.add_argument(
        "--scaling-coefficients", metavar="FILE|JSON", help="for --scaling manual: the laws, as in the report's JSON"
    )
    parser.add_argument(
        "--safety-margin",
        type=float,
        metavar="PERCENT",
        help="of the budget of a batch, kept back (derived from the residuals of scaling)",
    )
    parser.add_argument("--no-store", action="store_true", help="neither read nor write stored fits")


def run(options: argparse.Namespace) -> int:
    earlier = read_earlier(options)
    if options.engine == "vllm":
        from brim.cli.fit_vllm import run_vllm

        return compared(run_vllm(options), earlier, options)
    check_libraries()
    check_weights(options)
    place = engine_place(options)
    wishes = fit_wishes(options)
    from brim.serving import fit_engine

    shown = None if options.as_json else True  # a log wants a line for each phase; a script wants none
    task = find_pooling_task(options, silent)
    if task is not None:
        report = _fit_batches(options, task, place, wishes, False if options.quiet else shown)
        return compared(report.batch_tokens or 0, earlier, options)
    with (
        encoders_beside(options, place, serves=True) as (place, encoders),
        part_of_device(options, place, None, encoders) as part,
    ):
        probe = budget_probe(place, part)
        with serving(make_engine(options, kv_tokens=0, probe=probe, progress=shown, encoders=encoders)) as engine:
            decide_part(part, probe or gpu_probe(engine))
            report = fit_engine(engine, probe=probe, neighbours=part, **wishes)
            _show(report, options)
    return compared(report.kv_tokens, earlier, options)


def _fit_batches(
    options: argparse.Namespace, task: ModelTask, place: EnginePlace, wishes: dict[str, Any], progress: Progress
) -> FitReport:
    """Of a model that embeds or scores."""
    with part_of_device(options, place) as part:
        probe = budget_probe(place, part)
        with make_pooling_engine(options, task, place, probe, progress) as engine:
            seen = probe or gpu_probe(engine)
            decide_part(part, seen)
            report = fit_pooling(engine, seen, wishes, part, progress)
            _show(report, options)
            return report


def fit_wishes(options: argparse.Namespace) -> dict[str, Any]:
    """What the options ask of `fit_engine`, checked before anything is loaded."""
    mode = check_mode(options.scaling)
    coefficients = _coefficients(options.scaling_coefficients)
    check_given(mode, coefficients)
    return {
        "kv_tokens": parse_count(options.kv_tokens, "kv-tokens") if options.kv_tokens else None,
        "memory_fraction": options.memory_fraction,
        "canary_bytes": parse_bytes(options.canary, "canary"),
        "keep_free_bytes": None if options.keep_free is None else parse_bytes(options.keep_free, "keep-free"),
        "store": None if options.no_store else fits_folder(),
        "scaling": mode,
        "coefficients": coefficients,
        "safety_margin": check_margin(options.safety_margin),
    }


def _coefficients(written: str | None) -> Scaling | None:
    """Laws from a file, or from JSON on the command line."""
    if written is None:
        return None
    if written.lstrip().startswith("{"):
        return parse_scaling(written)
    try:
        return parse_scaling(Path(written).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"scaling-coefficients '{shown(written)}' cannot be read ({first_line(error)})") from None


def budget_probe(place: EnginePlace, part: Sizer | None) -> CpuProbe | None:
    """A budget on the CPU, or this process' part of one; None where the device itself is the limit."""
    if place.budget_bytes is None:
        return None
    return cpu_budget(part.part.promised_bytes if part is not None and part.is_decided else place.budget_bytes)


def gpu_probe(engine: Engine | PoolingEngine) -> MemoryProbe:
    from brim.probes.cuda import CudaProbe

    return CudaProbe(engine.device.index or 0)


def engine_place(options: argparse.Namespace, default: str | None = None) -> EnginePlace:
    """Where the engine runs, with the budget that the CPU needs, or the default one."""
    place = read_place(options.device)
    if options.memory is not None and place.budget_bytes is not None:
        raise InvalidRequest("memory and device both give a budget; give it once, such as --memory 1GiB")
    budget = place.budget_bytes if options.memory is None else parse_bytes(options.memory, "memory")
    if budget is None:
        if place.device != "cpu" and _has_cuda():
            return place
        if default is None:
            raise needs_budget(options.model, asked_for_cpu=place.device == "cpu")
        budget = parse_bytes(default, "memory")
    if budget < 1:
        raise InvalidRequest("memory is 0; give a budget that holds the model, such as --memory 1GiB")
    if place.device not in (None, "cpu"):
        raise InvalidRequest("memory is a budget for the CPU only; on a GPU use --keep-free or --memory-fraction")
    options.device = "cpu"
    return EnginePlace("cpu", budget, place.budget_name)


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _show(report: FitReport, options: argparse.Namespace) -> None:
    if options.as_json:
        print(json.dumps(report.to_json(), indent=2))
        return
    from brim.cli.show.fit_report import show_fit

    show_fit(options.model, report)
