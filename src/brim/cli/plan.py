"""`brim plan`: what fits on which GPU, computed without one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.api import find_curves
from brim.api import plan as make_plan
from brim.cli.options import SYNONYM_HELP, SYNONYMS, add_json, add_synonyms, check_svg, gpu_names, write_file
from brim.errors import InvalidRequest
from brim.folders import curves_folder
from brim.model.quantisers.quantisation import NAMED_FORMATS
from brim.planning.devices import find_devices
from brim.planning.engines import ENGINES, chosen_engine
from brim.planning.node import rank_devices
from brim.planning.settings import Curves
from brim.records.plan import Asked, MemoryPlan, PlanRequest
from brim.trace.loading import load_model
from brim.units import parse_bytes, parse_count, parse_pixels

if TYPE_CHECKING:
    from brim.cli.options import Commands

DOES_NOT_FIT = 1
COMPARED_GPUS = ("rtx-4090", "rtx-5090", "l4", "a10g", "l40s", "a100-80gb", "h100-80gb", "h200", "b200", "mi300x")
_COUNTS = (
    *("max_len", "max_seqs", "concurrency", "mean_len", "users", "tokens_per_second"),
    *("batch_tokens", "kv_tokens", "images_per_prompt", "audio_seconds"),
)


def add_command(commands: Commands) -> None:
    parser = commands.add_parser(
        "plan",
        help="does a model fit on a GPU, how many tokens of KV cache, and what would each setting gain",
        description="Does a model fit on a GPU, how many tokens of KV cache, and what would each setting gain? "
        "Those of max-len, max-seqs, kv-tokens and batch-tokens that are not given are solved for. "
        "Exit code 0: it fits. 1: it does not. 2: bad input.",
        epilog=SYNONYM_HELP,
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "model",
        nargs="+",
        help="a directory, a config.json, a GGUF file or folder (folder:Q4_K_M), a name of `brim models`, a hub id or "
        "address, org/name:Q4_K_M, or an Ollama name; several make a comparison; with --diff two, or two files that "
        "--json wrote",
    )
    parser.add_argument(
        "--gpu",
        action="append",
        metavar="GPU",
        help="a name of `brim gpus`, a size such as 24GiB, a node such as 8xh100, cpu:64GiB, or GPUs of this machine: "
        "0, 0,1 or auto (the default); several names make a comparison; with --concurrency or --users and no GPU, or "
        "families such as nvidia or hopper, which GPUs would do",
    )
    parser.add_argument("--tp", type=int, metavar="N", help="tensor-parallel ranks, one GPU each (all of a node)")
    _add_placement(parser)
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
    parser.add_argument("--diff", action="store_true", help="what changed between two plans, line by line, and why")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="with --engine vllm, on a machine with the GPU and vLLM: run the fit inside vLLM, and print both sizes",
    )
    parser.add_argument(
        "--load-format", choices=("auto", "dummy"), help="of --verify: the weights (auto), or random ones (dummy)"
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write a picture of the plan")
    parser.add_argument("--enforce-eager", action="store_false", dest="graphs", default=None, help=argparse.SUPPRESS)
    add_synonyms(parser, *SYNONYMS)
    tracing = parser.add_mutually_exclusive_group()
    tracing.add_argument(
        "--trace", action="store_true", default=None, help="trace the model's code on the meta device; store the curve"
    )
    tracing.add_argument("--no-trace", action="store_false", dest="trace", help="activations by formula only")
    add_json(parser)


def _add_placement(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pp", type=int, default=1, metavar="N", help="pipeline stages, each of tp ranks")
    parser.add_argument("--dp", type=int, default=1, metavar="N", help="data-parallel replicas, each of tp × pp ranks")
    parser.add_argument(
        "--ep",
        "--expert-parallel",
        action="store_true",
        help="expert parallelism: whole experts, over the tp × dp ranks of a stage",
    )
    parser.add_argument("--enable-expert-parallel", action="store_true", dest="ep", help=argparse.SUPPRESS)
    parser.add_argument(
        "--gpu-layers", metavar="N", help="llama.cpp: the last N layers on the GPU, the output being one; or auto"
    )
    parser.add_argument(
        "--cpu-moe", metavar="N", help="llama.cpp: the experts of the first N layers in host memory; or auto"
    )
    parser.add_argument("--lora-rank", metavar="R", help="LoRA adapters of at most this rank (vllm)")
    parser.add_argument("--loras", metavar="N", help="LoRA adapters that are on the GPU at once (1)")
    parser.add_argument(
        "--host-kv", default="0", metavar="SIZE", help="host memory for prefixes that leave the GPU: 64GiB"
    )


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-len", metavar="TOKENS", help="longest request (32k is 32768)")
    parser.add_argument("--max-seqs", metavar="N", help="the most requests that run at once, of whatever length")
    parser.add_argument("--concurrency", metavar="N", help="requests of max-len that must fit at once")
    parser.add_argument("--mean-len", metavar="TOKENS", help="tokens of a request on average: how many run at once?")
    parser.add_argument("--users", metavar="N", help="users at once, of mean-len each: how many run, how fast?")
    parser.add_argument("--tokens-per-second", metavar="N", help="that each user shall get: would bandwidth allow it?")
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
    check_svg(options.svg)
    named = gpu_names(options.gpu or [])
    comparing = options.compare or len(named) > 1 or len(options.model) > 1
    if options.verify:
        return _verify(options, named, several=comparing or options.diff)
    if options.load_format is not None:
        raise InvalidRequest("--load-format is of --verify, and that is not given; leave it out")
    if options.diff:
        return _diff(options)
    if options.svg is not None and comparing:
        raise InvalidRequest("--svg draws one plan and a comparison makes several; give one --gpu and no --compare")
    if _asks_which(options, named):
        return _options(options, named)
    planners = [_planner(options, model) for model in options.model]
    if comparing:
        found = [plan for on in planners for plan in ([on(name) for name in named] if named else _usual(on))]
        return _compared(found, options.as_json)
    return _one(planners[0](named[0] if named else "auto"), options.as_json, options.svg)


def _planner(options: argparse.Namespace, model: str) -> Callable[[str], MemoryPlan]:
    """What plans a model as the options say, on a device or node by name."""
    spec = load_model(model)
    draft = None if options.draft is None else load_model(options.draft)

    @cache
    def curves(ranks: int) -> Curves:
        return find_curves(spec, model, trace=options.trace, folder=curves_folder(), ranks=ranks)

    def on(name: str) -> MemoryPlan:
        devices = rank_devices(find_devices(name), options.tp, options.pp, options.dp)
        return make_plan(
            spec,
            gpu=devices,
            tp=options.tp,
            pp=options.pp,
            dp=options.dp,
            ep=options.ep,
            gpu_layers=options.gpu_layers,
            cpu_moe=options.cpu_moe,
            lora_rank=_count(options.lora_rank, "lora-rank"),
            loras=_count(options.loras, "loras"),
            host_kv=parse_bytes(options.host_kv, "host-kv"),
            draft=draft,
            draft_tokens=_count(options.draft_tokens, "draft-tokens"),
            reserve=parse_bytes(options.reserve, "reserve"),
            attn=options.attn,
            **_wishes(options),
            curves=curves(len(devices) // (options.pp * options.dp)),
        )

    return on


def _wishes(options: argparse.Namespace) -> dict[str, Any]:
    """What is asked of a plan, on whichever device."""
    pixels = options.image_pixels
    return {
        **{name: _count(getattr(options, name), name.replace("_", "-")) for name in _COUNTS},
        **{name: getattr(options, name) for name in ("kv_dtype", "weights", "graphs", "engine")},
        "image_pixels": None if pixels is None else parse_pixels(pixels, "image-pixels"),
    }


def _verify(options: argparse.Namespace, named: list[str], *, several: bool) -> int:
    """One plan, and what the fit proves inside vLLM with its settings."""
    from brim.cli.plan_verify import check_asked, show_verified, verify

    if several or options.svg is not None:
        raise InvalidRequest("--verify starts vLLM for one plan; give one model and one --gpu, no --compare or --svg")
    check_asked(options.engine)
    plan = _planner(options, options.model[0])(named[0] if named else "auto")
    found = verify(plan, load_format=options.load_format or "auto")
    if options.as_json:
        print(json.dumps(plan.to_json() | {"verified": found.to_json()}, indent=2))
    else:
        from brim.cli.show.render import show_plan

        show_plan(plan)
        show_verified(found)
    return 0 if found.difference >= 0 else DOES_NOT_FIT


def _asks_which(options: argparse.Namespace, named: list[str]) -> bool:
    """Whether the question is which GPUs would do: so many requests are asked for and no GPU, or families of them."""
    from brim.planning.options import is_family

    if named:
        return all(map(is_family, named))
    return (
        (options.concurrency is not None or options.users is not None)
        and not options.compare
        and len(options.model) == 1
    )


def _options(options: argparse.Namespace, families: list[str]) -> int:
    """The GPUs that hold what was asked for, as one table."""
    from brim.planning.devices import card_device
    from brim.planning.options import find_options, offered

    for name, given in (("--draft", options.draft), ("--svg", options.svg)):
        if given is not None:
            raise InvalidRequest(f"{name} needs one GPU, and none is named; name one with --gpu")
    _check_plain(options)
    if len(options.model) > 1:
        raise InvalidRequest("which GPUs would do is asked for one model at a time; name one, or a GPU with --gpu")
    model = options.model[0]
    spec, folder = load_model(model), curves_folder()
    request = PlanRequest(
        tensor_parallel=1 if options.tp is None else options.tp,
        reserve_bytes=parse_bytes(options.reserve, "reserve"),
        attention=options.attn,
        **_wishes(options),
    )
    curves = cache(lambda ranks: find_curves(spec, model, trace=options.trace, folder=folder, ranks=ranks))
    found = find_options(spec, request, map(card_device, offered(families)), curves)
    if options.as_json:
        asked = Asked(request, request.concurrency or 1, 0).to_json()
        engine = chosen_engine(spec, options.engine)
        named = {"engine": engine.name if engine else None, "engine_version": engine.version if engine else None}
        rows = [one.to_json() for one in found]
        print(json.dumps({"model": spec.name, "asked": asked, **named, "options": rows}, indent=2))
    else:
        from brim.cli.show.render import show_options

        show_options(spec.name, model, request, found)
    return 0 if found else DOES_NOT_FIT


def _check_plain(options: argparse.Namespace) -> None:
    """Which GPUs would do is answered with tensor parallelism alone."""
    usual = {"pp": 1, "dp": 1, "ep": False, "gpu_layers": None, "cpu_moe": None, "lora_rank": None, "loras": None}
    for name, value in {**usual, "host_kv": "0"}.items():
        if getattr(options, name) != value:
            raise InvalidRequest(f"--{name.replace('_', '-')} needs one GPU, and none is named; name one with --gpu")


def _diff(options: argparse.Namespace) -> int:
    """Two plans: written by `--json` before, or made now of two models with the same options."""
    from brim.planning.diff import LedgerView, diff_plans, read_plan, view

    if len(options.model) != 2:
        raise InvalidRequest(f"--diff compares two plans or models, and {len(options.model)} are named; name two")
    named = gpu_names(options.gpu or [])
    if len(named) > 1:
        raise InvalidRequest("--diff compares two plans, and several --gpu make more; give one --gpu")

    def side(model: str) -> LedgerView:
        return read_plan(Path(model)) or view(_planner(options, model)(named[0] if named else "auto"))

    before, after = side(options.model[0]), side(options.model[1])
    rows = diff_plans(before, after)
    if options.as_json:
        titles = {"before": before.title, "after": after.title}
        print(json.dumps({**titles, "diff": [row.to_json() for row in rows]}, indent=2))
    else:
        from brim.cli.show.render import show_diff

        show_diff(before.title, after.title, rows)
    return 0


def _usual(on: Callable[[str], MemoryPlan]) -> list[MemoryPlan]:
    """Plans for the usual GPUs, but those that the engine does not run on; what all refuse is an error."""
    found: list[MemoryPlan] = []
    refused: InvalidRequest | None = None
    for name in COMPARED_GPUS:
        try:
            found.append(on(name))
        except InvalidRequest as error:
            refused = error
    if not found and refused is not None:
        raise refused
    return found


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
