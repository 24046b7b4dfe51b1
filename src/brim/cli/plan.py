"""`brim plan`: what fits on which GPU, computed without one."""

from __future__ import annotations

import argparse
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from brim.api import find_curves
from brim.api import plan as make_plan
from brim.cli.options import add_json, gpu_names, write_file
from brim.errors import InvalidRequest
from brim.folders import curves_folder
from brim.model.quantisers.quantisation import NAMED_FORMATS
from brim.model.source import load_model
from brim.planning.devices import find_devices
from brim.planning.engines import ENGINES
from brim.planning.node import rank_devices
from brim.planning.settings import Curves
from brim.records.plan import MemoryPlan
from brim.units import parse_bytes, parse_count, parse_pixels

if TYPE_CHECKING:
    from brim.cli.options import Commands

DOES_NOT_FIT = 1
COMPARED_GPUS = ("rtx-4090", "rtx-5090", "l4", "a10g", "l40s", "a100-80gb", "h100-80gb", "h200", "b200", "mi300x")


def add_command(commands: Commands) -> None:
    parser = commands.add_parser(
        "plan",
        help="does a model fit on a GPU, how many tokens of KV cache, and what would each setting gain",
        description="Does a model fit on a GPU, how many tokens of KV cache, and what would each setting gain? "
        "Those of max-len, max-seqs, kv-tokens and batch-tokens that are not given are solved for. "
        "Exit code 0: it fits. 1: it does not. 2: bad input.",
    )
    parser.set_defaults(run=run)
    parser.add_argument("model", help="a directory, a config.json, a name of `brim models`, or a hub id")
    parser.add_argument(
        "--gpu",
        action="append",
        metavar="GPU",
        help="a name of `brim gpus`, a size such as 24GiB, a node such as 8xh100, cpu:64GiB, or GPUs of this machine: "
        "0, 0,1 or auto (the default); several names make a comparison",
    )
    parser.add_argument("--tp", type=int, metavar="N", help="tensor-parallel ranks, one GPU each (all of a node)")
    _add_sizes(parser)
    _add_formats(parser)
    _add_media(parser)
    parser.add_argument("--draft", metavar="MODEL", help="draft model of speculative decoding")
    parser.add_argument("--reserve", default="0", metavar="SIZE", help="memory of other processes on the GPU: 4GiB")
    parser.add_argument("--draft-tokens", metavar="N", help="tokens that it drafts at a time (3)")
    parser.add_argument(
        "--graphs",
        action=argparse.BooleanOptionalAction,
        help="with or without CUDA graphs (with them, unless memory is too short)",
    )
    parser.add_argument("--engine", metavar="ENGINE", help=f"the plan as an engine's flags: {', '.join(ENGINES)}")
    parser.add_argument("--compare", action="store_true", help="one line per GPU: those given, or a usual ten")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write a picture of the plan")
    tracing = parser.add_mutually_exclusive_group()
    tracing.add_argument(
        "--trace", action="store_true", default=None, help="trace the model's code on the meta device; store the curve"
    )
    tracing.add_argument("--no-trace", action="store_false", dest="trace", help="activations by formula only")
    add_json(parser)


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-len", metavar="TOKENS", help="longest request (32k is 32768)")
    parser.add_argument("--max-seqs", metavar="N", help="the most requests that run at once, of whatever length")
    parser.add_argument("--concurrency", metavar="N", help="requests of max-len that must fit at once")
    parser.add_argument("--mean-len", metavar="TOKENS", help="tokens of a request on average: how many run at once?")
    parser.add_argument("--kv-tokens", metavar="TOKENS", help="tokens of KV cache that must fit")
    parser.add_argument(
        "--batch-tokens", metavar="TOKENS", help="tokens of a step (8192, and fewer where that fits only so)"
    )


def _add_formats(parser: argparse.ArgumentParser) -> None:
    known = ", ".join(("bf16", "fp16", "fp32", *NAMED_FORMATS))
    parser.add_argument("--kv-dtype", metavar="TYPE", help="KV cache: auto, bf16, fp16, fp8 or int8")
    parser.add_argument("--weights", metavar="FORMAT", help=f"plan for weights in another format: {known}")
    parser.add_argument("--attn", metavar="KIND", help="attention: fused, or eager (materialises the scores)")


def _add_media(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--image-pixels", metavar="PIXELS", help="largest image allowed: 1003520 or 1280x784")
    parser.add_argument("--images-per-prompt", metavar="N", help="images in one prompt, encoded together")
    parser.add_argument("--audio-seconds", metavar="S", help="longest audio allowed")


def run(options: argparse.Namespace) -> int:
    named = gpu_names(options.gpu or [])
    comparing = options.compare or len(named) > 1
    if options.svg is not None and comparing:
        raise InvalidRequest("--svg draws one plan and a comparison makes several; give one --gpu and no --compare")
    spec = load_model(options.model)
    draft = None if options.draft is None else load_model(options.draft)

    @cache
    def curves(ranks: int) -> Curves:
        return find_curves(spec, options.model, trace=options.trace, folder=curves_folder(), ranks=ranks)

    def on(name: str) -> MemoryPlan:
        devices = rank_devices(find_devices(name), options.tp)
        return make_plan(
            spec,
            gpu=devices,
            tp=options.tp,
            max_len=_count(options.max_len, "max-len"),
            max_seqs=_count(options.max_seqs, "max-seqs"),
            concurrency=_count(options.concurrency, "concurrency"),
            mean_len=_count(options.mean_len, "mean-len"),
            batch_tokens=_count(options.batch_tokens, "batch-tokens"),
            kv_tokens=_count(options.kv_tokens, "kv-tokens"),
            kv_dtype=options.kv_dtype,
            weights=options.weights,
            image_pixels=None if options.image_pixels is None else parse_pixels(options.image_pixels, "image-pixels"),
            images_per_prompt=_count(options.images_per_prompt, "images-per-prompt"),
            audio_seconds=_count(options.audio_seconds, "audio-seconds"),
            draft=draft,
            draft_tokens=_count(options.draft_tokens, "draft-tokens"),
            reserve=parse_bytes(options.reserve, "reserve"),
            graphs=options.graphs,
            engine=options.engine,
            attn=options.attn,
            curves=curves(len(devices)),
        )

    if comparing:
        return _compared([on(name) for name in named or COMPARED_GPUS], options.as_json)
    return _one(on(named[0] if named else "auto"), options.as_json, options.svg)


def _count(text: str | None, what: str) -> int | None:
    return None if text is None else parse_count(text, what)


def _one(found: MemoryPlan, as_json: bool, svg: Path | None) -> int:
    if svg is not None:
        from brim.cli.show.picture import plan_svg

        write_file(svg, plan_svg(found))
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        from brim.cli.show.render import show_plan

        show_plan(found)
    return 0 if found.fits else DOES_NOT_FIT


def _compared(found: list[MemoryPlan], as_json: bool) -> int:
    if as_json:
        print(json.dumps({"plans": [one.to_json() for one in found]}, indent=2))
    else:
        from brim.cli.show.render import show_comparison

        show_comparison(found)
    return 0 if any(one.fits for one in found) else DOES_NOT_FIT
