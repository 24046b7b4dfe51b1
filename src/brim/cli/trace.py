"""`brim trace`: the peak memory of a step, from the model's own code on the meta device."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from brim.cli.options import add_json, check_svg, write_file
from brim.errors import InvalidRequest
from brim.model.source import load_config
from brim.records.trace import Phase, Trace, TraceShape
from brim.trace.attention import FUSED
from brim.units import parse_count

if TYPE_CHECKING:
    from brim.cli.options import Commands

DTYPES = ("bf16", "fp16", "fp32")
ATTENTION = {"auto": "sdpa", "sdpa": "sdpa", "eager": "eager", "fused": FUSED}


def add_command(commands: Commands) -> None:
    parser = commands.add_parser(
        "trace",
        help="run a model's own code on the meta device: peak memory of a step, and where it occurs",
        description="Run a model's own code on the meta device and record every allocation: the peak above the "
        "weights, where it occurs, which tensors are alive there, and what the CUDA allocator would reserve. Needs "
        "torch and transformers (the extra 'engine'), no GPU and no weights.",
    )
    parser.set_defaults(run=run)
    parser.add_argument("model", help="a directory, a config.json, a name of `brim models`, or a hub id")
    parser.add_argument("--tokens", default="2048", metavar="N", help="tokens of each sequence; patches of an image")
    parser.add_argument("--batch", default="1", metavar="B", help="sequences; tiles of an image")
    parser.add_argument("--phase", default="prefill", metavar="PHASE", help=f"one of {', '.join(Phase)}")
    parser.add_argument("--context", default="0", metavar="N", help="tokens already in the cache (decode, verify)")
    parser.add_argument("--logits", default="last", metavar="WHICH", help="last, all, or a number of positions")
    parser.add_argument("--kv", action="store_true", help="let the model keep its own cache, and count what it copies")
    kinds = f"attention: {', '.join(ATTENTION)}; auto is sdpa, and fused for packed, decode and verify"
    parser.add_argument("--attn", default="auto", metavar="KIND", help=kinds)
    parser.add_argument("--dtype", default="bf16", metavar="TYPE", help=f"one of {', '.join(DTYPES)}")
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="trace one of N tensor-parallel ranks")
    parser.add_argument(
        "--svg",
        type=Path,
        metavar="FILE",
        help="write a picture: live bytes of the step and of the layer at the peak, by owner",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    check_svg(options.svg)
    shape = _shape(options)
    if options.tp < 1:
        raise InvalidRequest(f"tp is {options.tp}; it must be at least 1")
    if options.dtype not in DTYPES:
        raise InvalidRequest(f"dtype '{options.dtype[:40]}' is not one of {', '.join(DTYPES)}")
    name, config = load_config(options.model)
    from brim.trace.tracer import trace_config

    pictured = options.svg is not None
    found = trace_config(config, shape, name=name, dtype=options.dtype, ranks=options.tp, with_timeline=pictured)
    if pictured:
        from brim.cli.show.timeline import timeline_svg

        write_file(options.svg, timeline_svg(found))
    _show(found, options.as_json)
    return 0


def _show(found: Trace, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
        return
    from brim.cli.show.render import show_trace

    show_trace(found)


def _shape(options: argparse.Namespace) -> TraceShape:
    if options.phase not in tuple(Phase):
        raise InvalidRequest(f"phase '{options.phase[:40]}' is not one of {', '.join(Phase)}")
    if options.attn not in ATTENTION:
        raise InvalidRequest(f"attn '{options.attn[:40]}' is not one of {', '.join(ATTENTION)}")
    phase = Phase(options.phase)
    stepping = phase in (Phase.PACKED, Phase.DECODE, Phase.VERIFY)  # engines keep the KV of these in a pool
    tokens = parse_count(options.tokens, "tokens")
    if tokens < 1:
        raise InvalidRequest("tokens is 0; a step has at least 1")
    context = parse_count(options.context, "context")
    if phase is Phase.DECODE:
        tokens, context = 1, context or tokens
    return TraceShape(
        phase=phase,
        tokens=tokens,
        batch=parse_count(options.batch, "batch"),
        context=context,
        logit_rows=_logit_rows(options.logits, phase, tokens),
        keeps_kv=options.kv,
        attention=FUSED if stepping and options.attn == "auto" and not options.kv else ATTENTION[options.attn],
    )


def _logit_rows(text: str, phase: Phase, tokens: int) -> int:
    if text == "all" or (phase is Phase.VERIFY and text == "last"):
        return 0
    rows = 1 if text == "last" else parse_count(text, "logits")
    if not 1 <= rows <= tokens:
        raise InvalidRequest(f"logits {text} is not last, all, or a number from 1 to the {tokens} tokens")
    return rows
